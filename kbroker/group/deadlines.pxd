# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t

from kbroker.base.clock cimport Clock, Timer, Timers


@cython.final
cdef class Deadline:
    cdef int64_t at_ms
    cdef object missed
    cdef Timer timer


cdef class Deadlines:
    cdef Clock _clock
    cdef Timers _timers
    cdef dict _armed        # {(kind, group id, member id): Deadline}

    cpdef bint is_armed(self, str kind, str group_id, str member_id) except -1
    cpdef bint postpone(self, str kind, str group_id, str member_id, int64_t timeout_ms) except -1
    cpdef arm(self, str kind, str group_id, str member_id, int64_t timeout_ms, missed)
    cpdef cancel(self, str kind, str group_id, str member_id)
    cdef Timer timer_of(self, tuple key, int64_t delay_ms)
