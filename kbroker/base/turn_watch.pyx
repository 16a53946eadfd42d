"""The stopwatch of the loop. It measures how long each turn holds the loop.

A turn is one call that the loop makes, for example a request's handler, the rest of a connection's turn, a timer's
callback, a part of long work, a call that a worker queued, or the end of a tick. Each turn ends with a lap, and the
time since the previous lap is the time of the turn. So each turn reads the clock only once.

In production the clock is a coarse one, with steps of a few milliseconds, because it is cheaper to read than the exact
clock. A turn or tick above LONG_TURN_US is logged, at most one in each REPORT_INTERVAL_US. During a long turn the loop
may have worked, waited for the disk, or waited for a processor.

If `kbroker.measure.turns` is true, the clock is the processor time of the loop's thread, which does not depend on the
load of the machine. Each turn above LONG_MEASURED_TURN_US is logged, and `log_longest` logs the longest turn. Tests use
this setting.
"""
import gc
import logging
import os
from functools import partial
from types import GeneratorType

from libc.stdint cimport int64_t
from posix.time cimport CLOCK_THREAD_CPUTIME_ID


cdef extern from *:
    """
    #include <time.h>
    #ifdef __APPLE__
    #define CLOCK_MONOTONIC_COARSE CLOCK_MONOTONIC_RAW_APPROX
    #endif
    """
    int CLOCK_MONOTONIC_COARSE


cdef enum:
    LONG_TURN_US = 100_000
    LONG_MEASURED_TURN_US = 10_000
    LONG_MEASURED_TICK_US = 50_000
    REPORT_INTERVAL_US = 10_000_000

logger = logging.getLogger('kbroker.turns')


cdef class TurnWatch:
    """Measures the turns of one loop. It logs each turn that is too long, and on request the longest turn."""

    def __init__(self, bint measures_cpu=False):
        self.measures_cpu = measures_cpu
        self.clock = CLOCK_THREAD_CPUTIME_ID if measures_cpu else CLOCK_MONOTONIC_COARSE
        self.limit_us = LONG_MEASURED_TURN_US if measures_cpu else LONG_TURN_US
        self.tick_limit_us = LONG_MEASURED_TICK_US if measures_cpu else LONG_TURN_US
        self.notice_us = 0 if measures_cpu else self.limit_us
        self.begin_tick()

    cdef int notice(self, object turn, int64_t taken_us) except -1:
        """Remember the turn if it is the longest, and log it if it is too long."""
        if taken_us > self.longest_turn_us:
            self.longest_turn_us = taken_us
            self.longest_turn = describe(turn)
            if self.measures_cpu:
                self.notice_us = min(self.limit_us, taken_us)
        if taken_us >= self.limit_us:
            self.long_turns += 1
            self.had_long_turn = True
            self.report(turn, taken_us)
        return 0

    cdef int notice_tick(self, int64_t taken_us) except -1:
        """Log a tick that is too long although none of its turns is too long."""
        if not self.had_long_turn:
            self.report('the whole tick', taken_us)
        return 0

    cdef int report(self, object turn, int64_t taken_us) except -1:
        if self.measures_cpu or self.lap_began_us >= self.next_report_us:
            self.next_report_us = self.lap_began_us + REPORT_INTERVAL_US
            others = f'; {self.unlogged} more since the last report' if self.unlogged else ''
            self.unlogged = 0
            what = describe(turn)
            logger.warning('the loop was held for %d ms: %s%s', taken_us // 1000, what, others,
                           extra={'event': 'long-turn', 'turn': what, 'held_us': taken_us})
        else:
            self.unlogged += 1
        return 0

    def watch_collections(self):
        """Measure garbage collections separately from the turns that they interrupt."""
        gc.callbacks.append(self._collection)

    def _collection(self, phase, info):
        cdef int64_t now_us = read_us(self.clock)
        if phase == 'start':
            self.collection_began_us = now_us
        else:
            self.lap_began_us += now_us - self.collection_began_us
            self.notice(f'collection of generation {info["generation"]}', now_us - self.collection_began_us)

    def log_longest(self):
        """Log the number of turns, the longest turn and the longest tick since the last call of this function."""
        logger.info('%d turns; the longest held the loop for %d us: %s; the longest tick took %d us', self.turns,
                    self.longest_turn_us, self.longest_turn, self.longest_tick_us,
                    extra={'event': 'turns', 'turns': self.turns, 'longest_turn_us': self.longest_turn_us,
                           'longest_turn': self.longest_turn, 'longest_tick_us': self.longest_tick_us,
                           'long_turns': self.long_turns})
        self.turns = self.long_turns = self.longest_turn_us = self.longest_tick_us = 0
        self.longest_turn = None
        self.notice_us = 0 if self.measures_cpu else self.limit_us


cdef str describe(object turn):
    """Return the name of a callable or a generator with its module, or the `repr` of any other object."""
    while isinstance(turn, partial):
        turn = turn.func
    if isinstance(turn, str):
        return turn
    name = getattr(turn, '__qualname__', None)
    if name is None:
        return repr(turn)
    if isinstance(turn, GeneratorType):
        return f'{os.path.basename(turn.gi_code.co_filename)}: {name}'
    return f'{turn.__module__}.{name}'
