# cython: language_level=3
from kbroker.clock cimport Timers


cdef class LongWork:
    cdef Timers timers
    cdef object works           # deque of Work
    cdef bint is_scheduled

    cpdef start(self, steps, done=*)
    cdef bint advance(self, Work work) except -1
    cdef int schedule(self) except -1


cdef class Work:
    cdef object steps           # the generator
    cdef object done            # called with (error, result), or None
