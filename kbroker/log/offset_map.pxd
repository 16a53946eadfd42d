# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef struct Slot:
    uint64_t low                # the low half of the key's hash
    uint64_t high
    int64_t offset_plus_1       # 0: the slot is free


cdef class OffsetMap:
    cdef Slot *table
    cdef readonly int64_t slots
    cdef readonly int64_t max_entries
    cdef readonly int64_t entries
    cdef public int64_t latest_offset
    cdef uint64_t secret_low
    cdef uint64_t secret_high

    cdef Slot *slot_of(self, uint64_t low, uint64_t high) noexcept nogil
    cdef bint put_key(self, const uint8_t *key, Py_ssize_t size, int64_t offset) noexcept nogil
    cdef int64_t offset_of(self, const uint8_t *key, Py_ssize_t size) noexcept nogil
