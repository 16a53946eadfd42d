"""Long work of which the test runs the parts, one by one, and measures them."""
from __future__ import annotations

import gc
import time

from kbroker.clock import ManualClock, Timers
from kbroker.long_work import LongWork

PART_MS = 10


class StepwiseWork(LongWork):
    """Does the first part of a work at once, as LongWork does. The rest waits for `step` or `finish`."""

    def __init__(self, timers: Timers | None = None) -> None:
        super().__init__(Timers(ManualClock()) if timers is None else timers, 0)
        self.long_parts = 0
        """The parts so far that took more than PART_MS of CPU time."""

    def run_slice(self) -> None:
        """Leave the works alone: the turns of the loop call this."""

    def step(self) -> None:
        """Do the next part of the work whose turn it is."""
        gc.disable()        # the heap of the tests is not the broker's
        began = time.thread_time()
        super().run_slice()
        self.long_parts += time.thread_time() - began > PART_MS / 1000
        gc.enable()

    def finish(self) -> None:
        while len(self):
            self.step()
