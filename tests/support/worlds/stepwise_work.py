"""Long work whose parts the test runs one by one and measures."""
from __future__ import annotations

import gc
import time

from support.runner.attempts import assert_within

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.long_work import LongWork

PART_S = 0.010


class StepwiseWork(LongWork):
    """Long work that does the first part immediately, as LongWork does. Each further part waits until the test calls
    `step` or `finish`.
    """

    def __init__(self, timers: Timers | None = None) -> None:
        super().__init__(Timers(ManualClock()) if timers is None else timers, 0)
        self._longest_s = 0.0

    def run_slice(self) -> None:
        """Do nothing: the loop calls this method in its turns, but only the test may run parts."""

    def step(self) -> None:
        """Run the next part of the work at the front of the queue."""
        gc.disable()        # the heap of the tests is not the broker's
        began = time.thread_time()
        super().run_slice()
        self._longest_s = max(self._longest_s, time.thread_time() - began)
        gc.enable()

    def assert_parts_were_short(self) -> None:
        """Raise TooSlow if any part that has run took more than PART_S of processor time."""
        assert_within(self._longest_s, PART_S)

    def finish(self) -> None:
        while len(self):
            self.step()
