# cython: language_level=3
"""The C interface of the stopwatch. Each lap reads the clock once."""
from libc.stdint cimport int64_t
from posix.time cimport clock_gettime, timespec
from posix.types cimport clockid_t


cdef inline int64_t read_us(clockid_t clock) noexcept nogil:
    cdef timespec now
    clock_gettime(clock, &now)
    return <int64_t>now.tv_sec * 1_000_000 + now.tv_nsec // 1000


cdef class TurnWatch:
    cdef clockid_t clock
    cdef readonly bint measures_cpu
    cdef int64_t limit_us           # of a turn
    cdef int64_t tick_limit_us
    cdef int64_t notice_us          # `notice` judges the laps of at least this length
    cdef int64_t lap_began_us
    cdef int64_t tick_began_us
    cdef int64_t collection_began_us
    cdef bint had_long_turn         # in this tick
    cdef int64_t next_report_us     # the time of the clock before which no further report is logged
    cdef int64_t unlogged
    cdef readonly int64_t turns
    cdef readonly int64_t long_turns
    cdef readonly int64_t longest_turn_us
    cdef readonly object longest_turn
    cdef readonly int64_t longest_tick_us

    cdef inline void restart(self) noexcept:
        """Begin a new lap now, without a report of the time since the last lap."""
        self.lap_began_us = read_us(self.clock)

    cdef inline void begin_tick(self) noexcept:
        self.restart()
        self.had_long_turn = False
        self.tick_began_us = self.lap_began_us

    cdef inline int lap(self, object turn) except -1:
        """End the lap of a turn, and begin the lap of the next turn.

        `turn` names the work of the ended turn in reports: a callable, or an object with a `repr` for operators.
        """
        cdef int64_t now_us = read_us(self.clock)
        cdef int64_t taken_us = now_us - self.lap_began_us
        self.lap_began_us = now_us
        self.turns += 1
        if taken_us >= self.notice_us:
            self.notice(turn, taken_us)
        return 0

    cdef inline int end_tick(self) except -1:
        """End the tick. The caller has ended the lap of its last turn."""
        cdef int64_t taken_us = self.lap_began_us - self.tick_began_us
        if taken_us > self.longest_tick_us:
            self.longest_tick_us = taken_us
        if taken_us >= self.tick_limit_us:
            self.notice_tick(taken_us)
        return 0

    cdef int notice(self, object turn, int64_t taken_us) except -1
    cdef int notice_tick(self, int64_t taken_us) except -1
    cdef int report(self, object turn, int64_t taken_us) except -1
