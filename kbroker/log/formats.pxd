# cython: language_level=3
cimport kbroker.wire.bytes
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t

cpdef enum:
    INDEX_VALUE_BYTES = 4       # the size of the int32 value behind the key in an `.index` or `.timeindex` entry
    SNAPSHOT_VERSION = 1


cdef extern from *:             # kbroker/wire/bytes.pxd defines these functions
    int16_t big_endian_int16 "KB_BE16"(int16_t value) noexcept nogil
    int32_t big_endian_int32 "KB_BE32"(int32_t value) noexcept nogil
    int64_t big_endian_int64 "KB_BE64"(int64_t value) noexcept nogil


cdef packed struct SnapshotHead:
    int16_t version
    uint32_t crc                # the CRC-32C of `count` and all bytes behind it
    int32_t count               # the number of entries


cdef packed struct SnapshotEntry:       # one producer and the last batch of its current epoch
    int64_t producer_id
    int16_t producer_epoch
    int32_t last_sequence               # -1: no batch is known
    int64_t last_offset                 # -1: no batch is known
    int32_t offset_delta
    int64_t timestamp_ms
    int32_t coordinator_epoch
    int64_t transaction_first_offset    # -1: no transaction is open


cdef inline void swap_head(SnapshotHead *head) noexcept nogil:
    """Turn the fields from the byte order of the file to that of the machine, or back."""
    head.version = big_endian_int16(head.version)
    head.crc = <uint32_t>big_endian_int32(<int32_t>head.crc)
    head.count = big_endian_int32(head.count)


cdef inline void swap_entry(SnapshotEntry *entry) noexcept nogil:
    """Turn the fields from the byte order of the file to that of the machine, or back."""
    entry.producer_id = big_endian_int64(entry.producer_id)
    entry.producer_epoch = big_endian_int16(entry.producer_epoch)
    entry.last_sequence = big_endian_int32(entry.last_sequence)
    entry.last_offset = big_endian_int64(entry.last_offset)
    entry.offset_delta = big_endian_int32(entry.offset_delta)
    entry.timestamp_ms = big_endian_int64(entry.timestamp_ms)
    entry.coordinator_epoch = big_endian_int32(entry.coordinator_epoch)
    entry.transaction_first_offset = big_endian_int64(entry.transaction_first_offset)


cdef uint32_t write_head(SnapshotHead *head, int32_t count) noexcept nogil
cdef void seal_head(SnapshotHead *head, uint32_t crc) noexcept nogil
