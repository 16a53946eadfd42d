"""Declares the fields of a record, which C code reads without a Python object."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kbroker.record.batch cimport BatchFields
from kbroker.wire.bytes cimport Cursor


cdef struct RecordFields:
    int64_t timestamp_delta_ms
    int32_t offset_delta
    Py_ssize_t key_size        # -1: null
    const uint8_t *key
    Py_ssize_t value_size      # -1: null
    const uint8_t *value
    bint has_odd_null          # True if the length of a null is below -1
    int32_t headers_count
    Cursor headers


cdef class Record:
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ms
    cdef readonly bytes key
    cdef readonly bytes value
    cdef readonly list headers
    cdef readonly int32_t sequence
    cdef readonly int32_t leader_epoch
    cdef bint is_log_append_time


cdef inline int64_t add_wrapping(int64_t a, int64_t b) noexcept nogil:
    """Return a + b, wrapped to 64 bits. A hostile delta could make the sum of two signed integers overflow, which is
    undefined in C.
    """
    return <int64_t>(<uint64_t>a + <uint64_t>b)


cdef int refuse_record(const char *what, int64_t found) except -1 with gil
cdef int take_record(Cursor *cursor, RecordFields *record) except -1 nogil
cdef bytes records_of(const uint8_t *data, const BatchFields *fields, Py_ssize_t max_decompressed_bytes)
