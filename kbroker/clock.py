"""Time as the broker sees it, so that a test can hold it in its hand."""
import heapq
import time
from collections.abc import Callable
from itertools import count


class Clock:
    """The machine's time."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch: what record timestamps and log rows carry."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds that never step back: what deadlines are measured with."""
        return time.monotonic_ns() // 1_000_000


class ManualClock(Clock):
    """A clock that moves when it is told to."""

    def __init__(self, wall_ms: int = 1_700_000_000_000):
        self._wall_ms = wall_ms
        self._monotonic_ms = 0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Move both times by `ms` milliseconds."""
        self._wall_ms += ms
        self._monotonic_ms += ms

    def set_wall_ms(self, wall_ms: int) -> None:
        """Step the wall clock, as an operator or NTP may; the monotonic time stays."""
        self._wall_ms = wall_ms


class Timer:
    """One deadline; `cancel` makes it never fire."""

    __slots__ = ('callback', 'deadline_ms')

    def __init__(self, deadline_ms: int, callback: Callable[[], None]):
        self.deadline_ms = deadline_ms
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Timers:
    """Deadlines in a heap. The reactor asks `next_delay_ms` how long it may sleep, then calls `run_due`."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = count()

    def after(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, `delay_ms` from now."""
        timer = Timer(self._clock.monotonic_ms() + delay_ms, callback)
        heapq.heappush(self._heap, (timer.deadline_ms, next(self._sequence), timer))
        return timer

    def every(self, interval_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` each `interval_ms`, first in one interval from now. Returns a function that ends it."""
        current: Timer | None = None

        def fire() -> None:
            nonlocal current
            current = self.after(interval_ms, fire)
            callback()

        def stop() -> None:
            if current is not None:
                current.cancel()

        current = self.after(interval_ms, fire)
        return stop

    def next_delay_ms(self) -> int | None:
        """Milliseconds until the next deadline, 0 when one is due, None when there is none."""
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        if not self._heap:
            return None
        return max(0, self._heap[0][0] - self._clock.monotonic_ms())

    def run_due(self) -> int:
        """Call what is due, in order of deadline. Returns how many callbacks ran."""
        now_ms = self._clock.monotonic_ms()
        ran = 0
        while self._heap and self._heap[0][0] <= now_ms:
            timer = heapq.heappop(self._heap)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
                ran += 1
        return ran
