"""Work that takes too long for one turn. It runs in slices, between the turns of the connections.

All connections share the loop, so no work may hold it for long. If a peer can choose the length of a work (partitions,
members, bytes), the work is a generator. It yields after each small part, about every 100 microseconds. In each tick,
all unfinished works share SLICE_US. While a work is suspended, other code may change any state. So a work must look up
the state again after each yield.

To wait for an event, a work yields a `Pause`. It continues when the pause is over.

A work whose memory depends on a peer must have a place in a `Line`, so that only few of these works hold memory at one
time.
"""
from collections import deque

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int64_t

from kbroker.base.clock cimport now_us

cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_ERROR
        PYGEN_RETURN
        PYGEN_NEXT
    # PyIter_Send returns the result without a StopIteration. Raising one takes longer than a short work.
    PySendResult PyIter_Send(object steps, object sent, PyObject **result) except PYGEN_ERROR

cdef enum:
    SLICE_US = 2_000
    # The number of places in each line of requests. `apis/serving/request` assigns requests to the lines.
    SMALL_REQUESTS = 4
    MEDIUM_REQUESTS = 2
    LARGE_REQUESTS = 1
    SLOW_REQUESTS = 1
    # The most works of one line that have begun without a place and wait for one. At this number, further works wait
    # before they begin.
    MOST_BEGUN = 500

PART = ELEMENTS_OF_A_PART


def run_to_end(steps):
    """Run a generator to its end immediately, and return its value. Use it for a work that is short and never waits.

    Raise RuntimeError if the generator waits for a Pause that is not over.
    """
    while True:
        try:
            step = next(steps)
        except StopIteration as stop:
            return stop.value
        if type(step) is Pause and not (<Pause>step).is_over:
            raise RuntimeError(f'{steps!r} waits, and it is run at once')


cdef int64_t charged = 0        # elements that `charge` has counted and no Pace yet


cdef int charge(int64_t elements) noexcept:
    """Count processed elements. The next call of `spend`, of any Pace, adds them to its count.

    Code that is called by a work but has no access to its Pace calls this.
    """
    global charged
    charged += elements
    return 0


def charge_nothing(_amount):
    """Do nothing. Callers pass this function as the argument `charge` if an amount has no limit."""


cdef class Pace:
    """A counter of the elements that one generator has processed since its last yield.

    The counter reads no clock. With a clock, the load of the machine would decide where a part ends, and a test could
    not repeat a run from its seed. A variant with a clock and parts of 100 us was tried on a loaded machine. Some
    heartbeats and some deletions of groups process fewer than 64 elements. With the counter they are answered
    immediately; with the clock they were not.
    """

    cdef int64_t left

    def __init__(self):
        self.left = ELEMENTS_OF_A_PART

    def spend(self, int64_t elements=1):
        """Count `elements` and the elements that `charge` has counted. Return True if the generator must yield now."""
        global charged
        self.left -= elements + charged
        charged = 0
        if self.left > 0:
            return False
        self.left = ELEMENTS_OF_A_PART
        return True


cdef class Pause:
    """A point at which works wait for an event, for example a sync or the end of another work.

    Waiting takes no time of the loop until `end` is called.
    """

    def __init__(self):
        self.works = []

    def wait(self):
        """Yield until `end` is called, or not at all if it was called before."""
        while not self.is_over:
            yield self

    cpdef end(self):
        """Let all works that wait here continue in the next slice."""
        cdef Work work
        self.is_over = True
        works, self.works = self.works, []
        for work in works:
            self.long_work.paused -= 1
            self.long_work.resume(work)

    cdef int hold(self, LongWork long_work, Work work) except -1:
        self.long_work = long_work
        self.works.append(work)
        long_work.paused += 1
        return 0


cdef class AwaitedCall:
    """A callback that ends a pause and keeps its arguments.

    A closure instead of this class would form a cycle with its generator.
    """

    cdef Pause pause
    cdef tuple arguments

    def __cinit__(self):
        self.pause = Pause()

    def __call__(self, *arguments):
        self.arguments = arguments
        self.pause.end()


def result_of(start):
    """Call `start(done)`, wait until `done` is called, and return its argument.

    If `done` got several arguments, return them as a tuple. `done` may be called before `start` returns.
    """
    cdef AwaitedCall done = AwaitedCall()
    start(done)
    yield from done.pause.wait()
    return done.arguments[0] if len(done.arguments) == 1 else done.arguments


cdef class Work:
    """A generator that has not finished, and the callback for its result."""


cdef class LongWork:
    """The works in progress. They advance in turn."""

    def __init__(self, Timers timers not None, int64_t slice_us=SLICE_US):
        """Let all works together use `slice_us` of each tick. With 0, one work advances by one part in each slice."""
        self.timers = timers
        self.slice_us = slice_us
        self.works = deque()
        self.small_requests = Line(self, SMALL_REQUESTS)
        self.medium_requests = Line(self, MEDIUM_REQUESTS)
        self.large_requests = Line(self, LARGE_REQUESTS)
        self.slow_requests = Line(self, SLOW_REQUESTS)

    def __len__(self):
        """Return the number of works that can advance now. `paused` is the number of works that wait for a Pause."""
        return len(self.works)

    cpdef start(self, steps, done=None):
        """Run the generator `steps` to its end. Run its first part immediately, and the other parts in slices.

        `done(error, result)` gets the exception that the generator raises, or its return value. `start` may call it
        before `start` returns. If `done` is None, an exception is a broken invariant and ends the loop.
        """
        cdef Work work = Work.__new__(Work)
        work.steps = steps
        work.done = done
        if self.advance(work):
            self.works.append(work)
            self.schedule()

    def finish(self):
        """Run all works to their end immediately, however long this takes, because the broker stops."""
        cdef Work work
        while self.works:
            work = self.works.popleft()
            while self.advance(work):
                pass

    def run_slice(self):
        """Advance the works in turn until all are done or wait, or until the slice is used up."""
        cdef int64_t end_us = now_us() + self.slice_us
        cdef Work work
        self.is_scheduled = False
        while self.works:
            work = self.works.popleft()
            steps = work.steps
            if self.advance(work):
                self.works.append(work)
            self.timers.turn_watch.lap(steps)
            if now_us() >= end_us:
                self.full_slices += 1
                break
        if self.works:
            self.schedule()

    cdef bint advance(self, Work work) except -1:
        """Run the next part of a work. Return False if it was the last part, or if the work now waits for a Pause."""
        cdef PyObject *sent = NULL
        error = result = None
        try:
            has_more = PyIter_Send(work.steps, None, &sent) == PYGEN_NEXT
            result = <object>sent
            Py_DECREF(result)
            if has_more:
                if type(result) is Pause and not (<Pause>result).is_over:
                    if work.gives_way and work.line is not None:
                        work.line.leave()
                        work.line = None
                    (<Pause>result).hold(self, work)
                    return False
                return True
        except StopIteration as stop:       # raised by a closed generator of Cython, and by an iterator without `send`
            result = stop.value
        except Exception as raised:
            if work.done is None:
                raise
            error = raised
        if work.line is not None:
            work.line.leave()
        if work.done is not None:
            work.done(error, result)
        return False

    cdef int resume(self, Work work) except -1:
        """Let a work advance in the next slice."""
        self.works.append(work)
        return self.schedule()

    cdef int schedule(self) except -1:
        if not self.is_scheduled:
            self.is_scheduled = True
            self.timers.after(0, self.run_slice)
        return 0


cdef class Line:
    """Works of which at most `places` are in progress at one time. The other works wait, the first started first.

    A work that has not begun is dropped if it is not wanted any more, for example because its client has disconnected.
    """

    def __init__(self, LongWork long_work not None, Py_ssize_t places):
        self.long_work = long_work
        self.places = places
        self.waiting = deque()

    def __len__(self):
        """Return the number of works that wait for a place."""
        return len(self.waiting)

    def start(self, steps, is_wanted):
        """Run a work as soon as it has a place. If a place is free, run its first part immediately."""
        cdef Work work = Work.__new__(Work)
        work.steps, work.is_wanted = steps, is_wanted
        if self.taken_places < self.places:
            self.enter(work)
        else:
            self.wait(work)

    def begin(self, steps, is_wanted):
        """Run the first part of a work immediately, even if no place is free. The other parts need a place.

        Most works have only one part. If MOST_BEGUN works have begun and wait for a place, the first part waits, too.
        While a work waits for another work, it gives up its place, because the other work may need a place of this
        line.
        """
        cdef Work work = Work.__new__(Work)
        work.steps, work.is_wanted, work.gives_way = steps, is_wanted, True
        if self.taken_places < self.places:
            self.enter(work)
        elif self.begun_waiting >= MOST_BEGUN:
            self.wait(work)
        else:
            work.is_wanted = None
            if self.long_work.advance(work):
                self.wait(work)

    cdef int enter(self, Work work) except -1:
        """Give the work a place, and run its first part."""
        self.taken_places += 1
        work.line, work.is_wanted = self, None
        if self.long_work.advance(work):
            self.long_work.resume(work)
        return 0

    cdef int leave(self) except -1:
        """Free the place of a work that has finished or gives it up. Give the place to the next work in line."""
        cdef Work work
        self.taken_places -= 1
        while self.waiting and self.taken_places < self.places:
            work = self.waiting.popleft()
            if work.is_wanted is None:
                self.begun_waiting -= 1
            elif not work.is_wanted():
                continue
            self.taken_places += 1
            work.line, work.is_wanted = self, None
            self.long_work.resume(work)
        return 0

    cdef int wait(self, Work work) except -1:
        cdef Work other
        self.waiting.append(work)
        self.begun_waiting += work.is_wanted is None
        if len(self.waiting) > 2 * self.last_sweep + 64:
            self.waiting = deque([other for other in self.waiting if other.is_wanted is None or other.is_wanted()])
            self.last_sweep = len(self.waiting)
        return 0
