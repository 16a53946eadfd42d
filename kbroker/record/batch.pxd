"""Declares the 61-byte header of a record batch, which C code reads without a Python object.

offset  field                    type
     0  base_offset              int64
     8  batch_length             int32   bytes after this field: size_bytes - 12
    12  partition_leader_epoch   int32   outside the CRC
    16  magic                    int8    2
    17  crc                      uint32  CRC-32C of everything from byte 21
    21  attributes               int16
    23  last_offset_delta        int32   survives compaction
    27  base_timestamp_ms        int64   the delete horizon when attribute bit 6 is set
    35  max_timestamp_ms         int64
    43  producer_id              int64   -1: none
    51  producer_epoch           int16   -1: none
    53  base_sequence            int32   -1: none
    57  records_count            int32   may be 0 after compaction
    61  records, compressed as one block
"""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker.wire.bytes cimport read_int16, read_int32, read_int64


cpdef enum:
    LOG_OVERHEAD_BYTES = 12
    HEADER_BYTES = 61
    MAGIC = 2

cdef enum:
    PARTITION_LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    RECORDS_COUNT_AT = 57

cdef enum:
    COMPRESSION_MASK = 0x07
    LOG_APPEND_TIME_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    DELETE_HORIZON_BIT = 0x40
    ASSIGNED_BITS = 0x7f


cdef enum HeaderFault:
    HEADER_READ = 0
    HEADER_CUT          # fewer than 61 bytes are available
    BATCH_LENGTH_WRONG  # batch_length below 49, the minimum for a header
    MAGIC_WRONG         # not 2


cdef struct BatchFields:
    int64_t base_offset
    int32_t batch_length
    int32_t partition_leader_epoch
    int8_t magic
    uint32_t crc
    int16_t attributes
    int32_t last_offset_delta
    int64_t base_timestamp_ms
    int64_t max_timestamp_ms
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence
    int32_t records_count


cdef inline HeaderFault parse_header(const uint8_t *data, Py_ssize_t available, BatchFields *fields) noexcept nogil:
    """Read the header at `data`, where `available` bytes exist. The batch may be longer than that. After a fault other
    than HEADER_CUT, `base_offset`, `batch_length` and `magic` have the values in the header.
    """
    if available < HEADER_BYTES:
        return HEADER_CUT
    fields.base_offset = read_int64(data)
    fields.batch_length = read_int32(data + 8)
    fields.magic = <int8_t>data[MAGIC_AT]
    if fields.batch_length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
        return BATCH_LENGTH_WRONG
    if fields.magic != MAGIC:
        return MAGIC_WRONG
    fields.partition_leader_epoch = read_int32(data + PARTITION_LEADER_EPOCH_AT)
    fields.crc = <uint32_t>read_int32(data + CRC_AT)
    fields.attributes = read_int16(data + ATTRIBUTES_AT)
    fields.last_offset_delta = read_int32(data + LAST_OFFSET_DELTA_AT)
    fields.base_timestamp_ms = read_int64(data + BASE_TIMESTAMP_AT)
    fields.max_timestamp_ms = read_int64(data + MAX_TIMESTAMP_AT)
    fields.producer_id = read_int64(data + PRODUCER_ID_AT)
    fields.producer_epoch = read_int16(data + PRODUCER_EPOCH_AT)
    fields.base_sequence = read_int32(data + BASE_SEQUENCE_AT)
    fields.records_count = read_int32(data + RECORDS_COUNT_AT)
    return HEADER_READ


cdef inline int64_t batch_size_bytes(const BatchFields *fields) noexcept nogil:
    """Return the size of the whole batch, including its header."""
    return <int64_t>fields.batch_length + LOG_OVERHEAD_BYTES


cdef inline int64_t batch_last_offset(const BatchFields *fields) noexcept nogil:
    return fields.base_offset + fields.last_offset_delta


cdef inline int32_t sequence_after(int32_t sequence, int32_t steps) noexcept nogil:
    """Return the sequence that is `steps` after `sequence`. Sequences are in 0..2^31-1 and wrap to 0. Return -1 if
    `sequence` is -1, which means that there is none.
    """
    if sequence < 0:
        return -1
    return <int32_t>((<int64_t>sequence + steps) & 0x7fffffff)


cdef class BatchHeader:
    cdef readonly int64_t base_offset
    cdef readonly int32_t batch_length
    cdef readonly int32_t partition_leader_epoch
    cdef readonly int8_t magic
    cdef readonly uint32_t crc
    cdef readonly int16_t attributes
    cdef readonly int32_t last_offset_delta
    cdef readonly int64_t base_timestamp_ms
    cdef readonly int64_t max_timestamp_ms
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence
    cdef readonly int32_t records_count

    cdef int64_t get_size_bytes(self) noexcept
    cdef int64_t get_last_offset(self) noexcept
    cdef int32_t get_last_sequence(self) noexcept


cdef BatchHeader header_of(const BatchFields *fields)
cdef int refuse_header(HeaderFault fault, const BatchFields *fields, Py_ssize_t available) except -1
cdef int check_crc_at(const uint8_t *data, Py_ssize_t available, const BatchFields *fields) except -1
cdef int write_header(uint8_t *at, Py_ssize_t size_bytes, const BatchFields *fields) except -1


cdef enum MarkerKind:
    NO_MARKER
    ABORT_MARKER
    COMMIT_MARKER


cdef struct Marker:
    MarkerKind kind
    int32_t coordinator_epoch
    int64_t timestamp_ms


cdef MarkerKind read_marker(const uint8_t *batch, int64_t size, const BatchFields *fields, Marker *marker) except *
