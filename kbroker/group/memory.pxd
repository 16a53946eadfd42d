# cython: language_level=3
from libc.stdint cimport int64_t

from kbroker.base.clock cimport Clock


cdef class GroupMemory:
    cdef readonly int64_t held_bytes
    cdef readonly int64_t most_bytes
    cdef Clock _clock
    cdef int64_t _next_report_ms

    cpdef hold(self, int64_t more_bytes)
    cdef bint is_nearly_full(self) noexcept
    cpdef bint has_room_for(self, int64_t more_bytes)
    cpdef check(self, int64_t more_bytes)
