"""Whatever follows from a deadline is done before the clock goes on: checked for any tree of timers, jobs and work."""
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.base.clock import ControlledClock, Timers
from kbroker.base.long_work import LongWork, Pause
from kbroker.control.clock import ClockControl
from kbroker.network.reactor import Reactor
from kbroker.network.worker import Worker

LONGEST_MS = 30
AT_ONCE = ('timer', 'call', 'job', 'work', 'paused work', 'tick end')


@dataclass(frozen=True)
class Event:
    """Something that the loop does: by a timer that is due in `delay_ms`, or in another way without a delay. Then its
    children follow.
    """

    kind: str
    delay_ms: int
    children: tuple['Event', ...]


def events(children):
    return st.one_of(
        st.builds(Event, st.just('later'), st.integers(1, LONGEST_MS), children),
        st.builds(Event, st.sampled_from(AT_ONCE), st.just(0), children))


TREES = st.lists(st.recursive(events(st.just(())), lambda inner: events(st.lists(inner, max_size=3).map(tuple)),
                              max_leaves=12), max_size=4).map(tuple)


def expected(trees, now_ms, end_ms):
    """Yield the time of each event until `end_ms`."""
    for event in trees:
        at_ms = now_ms + event.delay_ms
        if at_ms <= end_ms:
            yield at_ms
            yield from expected(event.children, at_ms, end_ms)


class Loop:
    """A loop with a worker, which carries out events and notes their times."""

    def __init__(self):
        self.clock = ControlledClock()
        self.clock.stop()
        self.timers = Timers(self.clock)
        self.reactor = Reactor(self.clock, self.timers)
        self.long_work = LongWork(self.timers)
        self.worker = Worker(self.reactor)
        self.received_bytes = 0
        self.at_end = []
        self.control = ClockControl(self.clock, self.reactor, [self.worker], lambda: self.received_bytes, NoFile())
        self.reactor.at_tick_end.extend((self.end_tick, self.control.end_tick))
        self.times = []

    def close(self):
        self.worker.close()
        self.reactor.close()

    def end_tick(self):
        calls, self.at_end = self.at_end, []
        for call in calls:
            call()

    def begin(self, event):
        def happen(*_):
            self.times.append(self.clock.monotonic_ms())
            for child in event.children:
                self.begin(child)

        def work():
            for _ in range(10):
                yield
            happen()

        def paused_work():
            pause = Pause()
            self.worker.submit(lambda: None, lambda _: pause.end())
            yield from pause.wait()
            happen()

        match event.kind:
            case 'timer' | 'later':
                self.timers.after(event.delay_ms, happen)
            case 'call':
                self.reactor.call_soon_threadsafe(happen)
            case 'job':
                self.worker.submit(lambda: None, happen)
            case 'work':
                self.long_work.start(work())
            case 'paused work':
                self.long_work.start(paused_work())
            case 'tick end':
                self.at_end.append(lambda: self.timers.after(0, happen))

    def advance(self, ms):
        ended = []
        self.long_work.start(self.control.advance_ms(ms), lambda *outcome: ended.append(outcome))
        while not ended:
            self.reactor.run_once(-1)
        assert ended[0][0] is None


class NoFile:
    def write(self, clock, step_ms, *, is_stopped):
        pass


@pytest.fixture(scope='module')
def loop():
    loop = Loop()
    yield loop
    loop.close()


@settings(max_examples=60)
@given(trees=TREES, steps=st.lists(st.integers(0, 2 * LONGEST_MS), min_size=1, max_size=3))
def test_each_event_happens_at_its_time_and_before_all_later_ones(loop, trees, steps):
    loop.times.clear()
    began_ms = loop.clock.monotonic_ms()
    for event in trees:
        loop.begin(event)
    for step_ms in steps:
        loop.advance(step_ms)
    end_ms = began_ms + sum(steps)
    assert loop.clock.monotonic_ms() == end_ms
    assert loop.times == sorted(expected(trees, began_ms, end_ms))
    loop.advance(20 * LONGEST_MS)       # so that nothing is left for the next case


def test_an_advance_ends_although_clients_send_requests_without_end(loop):
    """The jobs of clients are never all done. An advance waits for those that have begun, for a number of rounds."""
    is_over = []

    def job(_=None):
        loop.received_bytes += 100
        if not is_over:
            loop.worker.submit(lambda: None, job)

    fired = []
    loop.timers.after(5, lambda: loop.worker.submit(lambda: None, lambda _: fired.append(loop.clock.monotonic_ms())))
    began_ms = loop.clock.monotonic_ms()
    job()
    loop.advance(10)
    is_over.append(True)
    assert fired == [began_ms + 5]
    loop.advance(0)
