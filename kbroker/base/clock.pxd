from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC

from kbroker.base.turn_watch cimport TurnWatch, read_us


cdef inline int64_t now_us() noexcept nogil:
    """Return the microseconds of the system's monotonic clock.

    Time budgets use this clock. No other clock replaces it.
    """
    return read_us(CLOCK_MONOTONIC)


cdef class Clock:
    cdef readonly bint is_stopped
    cpdef int64_t wall_ms(self) except? -1
    cpdef int64_t monotonic_ms(self) except? -1


cdef class Timer:
    cdef readonly int64_t deadline_ms
    cdef readonly object callback       # None once the timer has fired or was cancelled
    cdef Timers timers

    cpdef cancel(self)


cdef class Timers:
    cdef readonly Clock clock
    cdef TurnWatch turn_watch
    cdef list heap
    cdef list leaving                   # a second heap: its timers move to `heap`, the cancelled ones are dropped
    cdef int64_t next_sequence
    cdef Py_ssize_t cancelled           # cancelled timers still in a heap
    cdef int64_t next_deadline_ms       # no deadline is earlier; NEVER without timers

    cpdef Timer after(self, int64_t delay_ms, callback)
    cdef int forget_cancelled(self) except -1
    cdef list earlier_heap(self)
    cdef int look_ahead(self) except -1
    cdef int64_t delay_ms(self) except? -1
    cdef int64_t wait_ms(self) except? -1
    cdef int run_due_callbacks(self, int64_t most_us=*) except -1
