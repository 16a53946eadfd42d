# cython: language_level=3
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.record.batch cimport BatchFields

cdef enum:
    # The maximum number of bytes of a record's head: length (5), attributes (1), timestamp delta (10) and offset delta
    # (5).
    LARGEST_HEAD_BYTES = 21


cdef enum Step:
    MORE        # all bytes are read, the scan needs more
    FOUND
    MALFORMED


cdef class TimestampScan:
    cdef BatchFields fields
    cdef int64_t timestamp_ms
    cdef int64_t start_offset
    cdef int64_t room_bytes         # how many more bytes the records may have
    cdef int32_t left               # the number of records that have not begun
    cdef int64_t skipped            # the number of bytes of the current record that are still to come
    cdef uint8_t head[LARGEST_HEAD_BYTES]       # the first bytes of a head that the last piece cut
    cdef int head_bytes
    cdef readonly int64_t found_timestamp_ms
    cdef readonly int64_t found_offset

    cdef Step scan(self, const uint8_t *at, int64_t size) noexcept nogil
    cdef int64_t take_head(self, const uint8_t *at, int64_t size, bint *is_found) noexcept nogil
    cdef bint add_bytes(self, const uint8_t *at, int64_t size) except -1
    cdef int refuse(self, str found) except -1
    cdef int end(self) except -1


cdef TimestampScan scan_of(const BatchFields *fields, int64_t timestamp_ms, int64_t start_offset)
