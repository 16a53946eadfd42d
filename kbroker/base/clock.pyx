"""The broker's clock and timers. A broker with a control port has a ControlledClock; tests in one process have a
ManualClock.
"""
from heapq import heappop, heappush

from libc.stdint cimport INT64_MAX, int64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

from kbroker.base.turn_watch cimport TurnWatch


cdef enum:
    # Cancelled timers are removed once they are more than half of the heap. Otherwise they would stay until their
    # deadline. A client that sends a thousand requests a second, each with a timeout of an hour, would fill the heap
    # with the timers of an hour, even if each request is answered immediately.
    MIN_CANCELLED = 64
    MOVED_AT_ONCE = 16
    # The time for callbacks of timers in one tick. Thousands of deadlines may pass at one time, for example those of
    # the sessions of a large group. The callbacks that do not run within this time run in the next tick.
    TICK_US = 2_000

cdef int64_t NEVER = INT64_MAX


cdef inline int64_t read_ms(int clock_id) noexcept nogil:
    cdef timespec now
    clock_gettime(clock_id, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1_000_000


cdef class Clock:
    """The machine's time."""

    cpdef int64_t wall_ms(self) except? -1:
        """Return the milliseconds since the Unix epoch. Record timestamps and log rows contain this time."""
        return read_ms(CLOCK_REALTIME)

    cpdef int64_t monotonic_ms(self) except? -1:
        """Return the milliseconds of a clock that never steps back. Deadlines use this clock."""
        return read_ms(CLOCK_MONOTONIC)


cdef class ControlledClock(Clock):
    """The machine's time, until the clock is stopped or moved. Both times of the clock move together."""
    # Added to the machine's times. While the clock is stopped, these are its times.
    cdef int64_t _wall_ms
    cdef int64_t _monotonic_ms

    cpdef int64_t wall_ms(self) except? -1:
        return self._wall_ms if self.is_stopped else self._wall_ms + read_ms(CLOCK_REALTIME)

    cpdef int64_t monotonic_ms(self) except? -1:
        return self._monotonic_ms if self.is_stopped else self._monotonic_ms + read_ms(CLOCK_MONOTONIC)

    def advance(self, int64_t ms):
        """Move the wall clock and the monotonic clock by `ms` milliseconds. Raise ValueError if `ms` is negative."""
        if ms < 0:
            raise ValueError(f'found {ms} ms, expected 0 or more: a clock never goes backwards')
        self._wall_ms += ms
        self._monotonic_ms += ms

    def stop(self):
        """Stop both times, until `run`."""
        if not self.is_stopped:
            self._wall_ms, self._monotonic_ms = self.wall_ms(), self.monotonic_ms()
            self.is_stopped = True

    def run(self):
        """Let both times go on from their present values, with the machine's time."""
        if self.is_stopped:
            self._wall_ms -= read_ms(CLOCK_REALTIME)
            self._monotonic_ms -= read_ms(CLOCK_MONOTONIC)
            self.is_stopped = False

    def continue_from(self, int64_t wall_ms, *, bint is_stopped):
        """Set the wall clock to that of an earlier process, before anything has read this clock."""
        self._wall_ms = wall_ms if is_stopped else wall_ms - read_ms(CLOCK_REALTIME)
        self.is_stopped = is_stopped

    def ahead_ms(self):
        """Return by how many milliseconds the wall clock is ahead of the machine's. The result may be negative."""
        return self.wall_ms() - read_ms(CLOCK_REALTIME)


cdef class ManualClock(ControlledClock):
    """A stopped clock, whose wall clock can also be set alone."""

    def __init__(self, int64_t wall_ms=1_700_000_000_000):
        self._wall_ms = wall_ms
        self.is_stopped = True

    def set_wall_ms(self, int64_t wall_ms):
        """Set the wall clock, as an operator or NTP may. The monotonic clock does not change."""
        self._wall_ms = wall_ms


def is_over(int64_t span_ms, int64_t since_ms, int64_t now_ms):
    """Return whether `span_ms` of wall time have passed since `since_ms`, or the wall clock was set back before
    `since_ms`.

    Use it for pauses between two attempts. Without the second condition, a clock that is set back by hours would
    prolong a pause by hours.
    """
    return now_ms < since_ms or now_ms - since_ms >= span_ms


cdef class Timer:
    """A deadline, created by `Timers.after`. A cancelled timer never calls its callback."""

    cpdef cancel(self):
        if self.callback is not None:
            self.callback = None
            self.timers.cancelled += 1
            self.timers.forget_cancelled()


cdef class Timers:
    """A heap of timers.

    The reactor asks for the time until the next deadline, and runs the callbacks whose deadline has passed.
    """

    def __init__(self, Clock clock not None, TurnWatch watch=None):
        self.clock = clock
        self.turn_watch = TurnWatch() if watch is None else watch
        self.heap = []
        self.leaving = []
        self.next_deadline_ms = NEVER

    def __len__(self):
        """Return the number of timers, including the cancelled timers that are not removed yet."""
        return len(self.heap) + len(self.leaving)

    cpdef Timer after(self, int64_t delay_ms, callback):
        """Call `callback` once, `delay_ms` from now."""
        cdef Timer timer = Timer.__new__(Timer)
        cdef int64_t now_ms = self.clock.monotonic_ms()
        timer.deadline_ms = now_ms + delay_ms if delay_ms < NEVER - now_ms else NEVER - 1
        timer.callback = callback
        timer.timers = self
        self.next_sequence += 1
        heappush(self.heap, (timer.deadline_ms, self.next_sequence, timer))
        self.next_deadline_ms = min(self.next_deadline_ms, timer.deadline_ms)
        return timer

    def every(self, int64_t interval_ms, callback):
        """Call `callback` every `interval_ms`. The first call is one interval from now.

        Return a function that stops the calls.
        """
        current = None

        def fire():
            nonlocal current
            current = self.after(interval_ms, fire)
            callback()
            self.turn_watch.lap(callback)

        def stop():
            current.cancel()

        current = self.after(interval_ms, fire)
        return stop

    def next_delay_ms(self):
        """Return the milliseconds until the next deadline: 0 if it has passed, None if there are no timers."""
        cdef int64_t delay_ms = self.delay_ms()
        return None if delay_ms == NEVER else delay_ms

    def run_due(self):
        """Run the callbacks whose deadline has passed, the earliest deadline first.

        Return the number of callbacks run.
        """
        self.turn_watch.restart()
        return self.run_due_callbacks(NEVER)

    cdef int64_t delay_ms(self) except? -1:
        """Return the milliseconds until the next deadline: 0 if it has passed, NEVER if there are no timers."""
        self.look_ahead()
        if self.next_deadline_ms == NEVER:
            return NEVER
        return max(0, self.next_deadline_ms - self.clock.monotonic_ms())

    cdef int64_t wait_ms(self) except? -1:
        """Return the milliseconds that a loop may wait for the next deadline: 0 if it has passed, NEVER without timers.

        A stopped clock reaches no deadline, so the result is NEVER, too. A call that moves the clock wakes the loop.
        """
        cdef int64_t delay_ms = self.delay_ms()
        return NEVER if delay_ms and self.clock.is_stopped else delay_ms

    cdef int run_due_callbacks(self, int64_t most_us=TICK_US) except -1:
        """Run the callbacks whose deadline has passed, the earliest deadline first, for at most `most_us` microseconds.

        Return the number of callbacks run.
        """
        cdef int64_t now_ms, began_us
        cdef int ran = 0
        cdef Timer timer
        cdef list heap
        if self.next_deadline_ms == NEVER:
            return 0
        now_ms = self.clock.monotonic_ms()
        if self.next_deadline_ms > now_ms:
            return 0
        began_us = now_us()
        while True:
            heap = self.earlier_heap()
            if not heap or (<Timer>(<tuple>heap[0])[2]).deadline_ms > now_ms:
                break
            timer = heappop(heap)[2]
            if timer.callback is None:
                self.cancelled -= 1
                continue
            callback, timer.callback = timer.callback, None
            callback()
            self.turn_watch.lap(callback)
            ran += 1
            if now_us() - began_us >= most_us:
                break
        self.look_ahead()
        return ran

    cdef int look_ahead(self) except -1:
        """Drop the cancelled timers at the front of the heap, and set `next_deadline_ms`."""
        cdef list heap = self.earlier_heap()
        while heap and (<Timer>(<tuple>heap[0])[2]).callback is None:
            heappop(heap)
            self.cancelled -= 1
            heap = self.earlier_heap()
        self.next_deadline_ms = (<Timer>(<tuple>heap[0])[2]).deadline_ms if heap else NEVER
        return 0

    cdef list earlier_heap(self):
        """Return the heap with the earliest deadline: `heap` or `leaving`."""
        if not self.leaving:
            return self.heap
        return self.leaving if not self.heap or self.leaving[0] < self.heap[0] else self.heap

    cdef int forget_cancelled(self) except -1:
        """Remove cancelled timers if most timers are cancelled.

        There may be 100,000, so each call removes only a few.
        """
        cdef int moved
        if not self.leaving:
            if self.cancelled <= MIN_CANCELLED or self.cancelled <= len(self.heap) // 2:
                return 0
            self.leaving, self.heap = self.heap, self.leaving
        for moved in range(min(MOVED_AT_ONCE, <int>len(self.leaving))):
            entry = self.leaving.pop()      # a heap without its last entry is still a heap
            if (<Timer>(<tuple>entry)[2]).callback is None:
                self.cancelled -= 1
            else:
                heappush(self.heap, entry)
        return 0
