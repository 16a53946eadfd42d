# cython: language_level=3
from libc.stdint cimport int64_t

from kbroker.base.clock cimport Timers


cdef enum:
    # The elements that one part of a work processes. One element takes a microsecond or two.
    ELEMENTS_OF_A_PART = 64


cdef int charge(int64_t elements) noexcept


cdef class LongWork:
    cdef Timers timers
    cdef object works           # deque of Work
    cdef bint is_scheduled
    cdef int64_t slice_us
    cdef readonly Py_ssize_t paused
    cdef readonly Py_ssize_t full_slices    # the number of slices that used up their time
    # The lines for requests. Each line has a limit on the memory that one of its requests may hold.
    cdef readonly Line small_requests
    cdef readonly Line medium_requests
    cdef readonly Line large_requests
    cdef readonly Line slow_requests

    cpdef start(self, steps, done=*)
    cdef bint advance(self, Work work) except -1
    cdef int resume(self, Work work) except -1
    cdef int schedule(self) except -1


cdef class Pause:
    cdef readonly bint is_over
    cdef list works             # of Work
    cdef LongWork long_work     # the LongWork in which the waiting works advance

    cpdef end(self)
    cdef int hold(self, LongWork long_work, Work work) except -1


cdef class Work:
    cdef object steps           # the generator
    cdef object done            # called with (error, result), or None
    cdef object is_wanted       # called before the first part, which runs if it returns true; or None
    cdef Line line              # the line in which the work has a place, or None
    cdef bint gives_way         # whether the work gives up its place while it waits for another work


cdef class Line:
    cdef LongWork long_work
    cdef Py_ssize_t places
    cdef Py_ssize_t taken_places
    cdef object waiting             # deque of Work
    cdef Py_ssize_t begun_waiting   # the works of `waiting` that have begun
    cdef Py_ssize_t last_sweep      # the works left after the last removal of unwanted ones

    cdef int enter(self, Work work) except -1
    cdef int leave(self) except -1
    cdef int wait(self, Work work) except -1
