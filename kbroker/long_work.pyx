"""Work that takes longer than a turn may: done in slices, between the turns of the connections.

The loop belongs to everybody, so nothing may hold it for long. Work whose length a peer chooses (partitions, members,
bytes) is written as a generator that yields after each small part, of 100 microseconds or so. In each tick, the works
that are not at their end share SLICE_US. State may change wherever a work yields: look things up again behind it.
"""
from collections import deque

from libc.stdint cimport int64_t

from kbroker.clock cimport now_us

cdef enum:
    SLICE_US = 2_000


def run_to_end(steps):
    """Run a generator to its end at once, and return its value: for work that is known to be short."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


cdef class Work:
    """A generator that is not at its end, and who waits for its result."""


cdef class LongWork:
    """The works in progress, each of which advances in turn."""

    def __init__(self, Timers timers not None):
        self.timers = timers
        self.works = deque()

    def __len__(self):
        return len(self.works)

    cpdef start(self, steps, done=None):
        """Run the generator `steps` to its end: its first part at once, the rest in slices.

        `done(error, result)` gets what the generator returns, or the exception that it raises; it may be called before
        this returns. Without `done` an exception is a broken invariant and ends the loop.
        """
        cdef Work work = Work.__new__(Work)
        work.steps = steps
        work.done = done
        if self.advance(work):
            self.works.append(work)
            self.schedule()

    def finish(self):
        """Run all works to their end, however long it takes: the broker stops."""
        cdef Work work
        while self.works:
            work = self.works.popleft()
            while self.advance(work):
                pass

    def run_slice(self):
        """Advance the works in turn until they are done or the slice is used up."""
        cdef int64_t end_us = now_us() + SLICE_US
        cdef Work work
        self.is_scheduled = False
        while self.works:
            work = self.works.popleft()
            steps = work.steps
            if self.advance(work):
                self.works.append(work)
            self.timers.turn_watch.lap(steps)
            if now_us() >= end_us:
                break
        if self.works:
            self.schedule()

    cdef bint advance(self, Work work) except -1:
        """Do the next part of a work. Return False if it was the last."""
        error = result = None
        try:
            next(work.steps)
            return True
        except StopIteration as stop:
            result = stop.value
        except Exception as raised:
            if work.done is None:
                raise
            error = raised
        if work.done is not None:
            work.done(error, result)
        return False

    cdef int schedule(self) except -1:
        if not self.is_scheduled:
            self.is_scheduled = True
            self.timers.after(0, self.run_slice)
        return 0
