from libc.stdint cimport int64_t, uint32_t

from kbroker.base.clock cimport Timers
from kbroker.base.turn_watch cimport TurnWatch


cdef extern from '<sys/epoll.h>' nogil:
    int EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP


cdef enum Waiting:
    NOT_WAITING
    FOR_NEXT_TICK       # a turn in the next tick
    FOR_SHARE           # a long turn, for which all long turns of a tick share a time


cdef class EventHandler:
    cdef readonly int fd
    cdef readonly uint32_t interest
    cdef Waiting waiting
    cdef bint waits_for_tick_end

    cdef int on_events(self, uint32_t events) except -1
    cdef int on_tick_end(self) except -1


cdef class Reactor:
    cdef readonly object clock
    cdef readonly Timers timers
    cdef readonly Timers machine_timers     # `timers`, unless a test controls their clock
    cdef TurnWatch turn_watch
    cdef public bint takes_times    # whether each tick reads the clock, so that the times of requests are measured
    cdef int64_t tick_us            # when the tick's events were there; 0 unless `takes_times`
    cdef readonly list at_tick_end
    cdef int epoll_fd
    cdef int wake_fd
    cdef bint is_crowded        # the last wait returned the most events that a tick takes: more may be ready
    cdef bint wake_sent
    cdef bint stopping
    cdef set handlers
    cdef list retired
    cdef list turns
    cdef object long_turns      # the handlers that wait FOR_SHARE, in the order in which they asked; a deque
    cdef list tick_ends
    cdef int64_t sends_end_us   # the end of the time for long sends in this tick; 0 before the first
    cdef object calls
    cdef object signals

    cdef int register(self, int fd, EventHandler handler, uint32_t interest) except -1
    cdef int modify(self, EventHandler handler, uint32_t interest) except -1
    cpdef unregister(self, EventHandler handler)
    cdef int give_turn(self, EventHandler handler) except -1
    cdef int give_long_turn(self, EventHandler handler) except -1
    cdef int call_at_tick_end(self, EventHandler handler) except -1
    cdef bint has_time_for_long_send(self) noexcept
    cdef int tick(self, int64_t timeout_ms) except -1
    cdef int wait(self, void *batch, int64_t timeout_ms) except -1
    cdef int run_long_turns(self, Py_ssize_t left) except -1
    cdef int run_calls(self) except -1
    cdef int end_tick(self) except -1
    cdef int wake(self) except -1
