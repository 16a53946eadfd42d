"""Long work of which the test runs the parts, one by one, and measures them."""
from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from kbroker.clock import ManualClock, Timers
from kbroker.long_work import LongWork

PART_MS = 10

Done = Callable[[Exception | None, Any], object]


class StepwiseWork(LongWork):
    """Does the first part of a work at once, as LongWork does. The rest waits for `step` or `finish`."""

    def __init__(self, timers: Timers | None = None) -> None:
        super().__init__(Timers(ManualClock()) if timers is None else timers)
        self._works: deque[tuple[Generator[object, None, Any], Done | None]] = deque()
        self.long_parts = 0
        """The parts so far that took more than PART_MS of CPU time."""

    def __len__(self) -> int:
        return len(self._works)

    def start(self, steps: Generator[object, None, Any], done: Done | None = None) -> None:
        self._advance(steps, done)

    def step(self) -> None:
        """Do the next part of the work whose turn it is."""
        self._advance(*self._works.popleft())

    def finish(self) -> None:
        while self._works:
            self.step()

    def _advance(self, steps: Generator[object, None, Any], done: Done | None) -> None:
        error, result = None, None
        gc.disable()        # the heap of the tests is not the broker's
        began = time.thread_time()
        try:
            next(steps)
        except StopIteration as stop:
            result = stop.value
        except Exception as raised:
            if done is None:
                raise
            error = raised
        else:
            self._works.append((steps, done))
            done = None
        gc.enable()
        self.long_parts += time.thread_time() - began > PART_MS / 1000
        if done is not None:
            done(error, result)
