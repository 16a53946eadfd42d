"""Messages of magic 0 and 1."""
from libc.stdint cimport int16_t, int64_t, uint8_t, uint32_t

from kbroker.wire.bytes cimport Cursor


cdef struct LegacyMessage:
    int64_t offset
    int64_t timestamp_ms       # -1 in magic 0
    uint32_t crc
    bint is_valid
    Py_ssize_t key_size        # -1 for null
    const uint8_t *key
    Py_ssize_t value_size      # -1 for null
    const uint8_t *value


cdef class LegacyMessages:
    cdef readonly int16_t attributes
    cdef bytes data
    cdef Cursor cursor
    cdef int64_t offset_shift
    cdef int64_t append_time_ms
    cdef int over(self, bytes data) except -1
    cdef bint step(self, LegacyMessage *message) except -1
