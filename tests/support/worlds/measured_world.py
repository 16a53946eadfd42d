"""A group coordinator whose turns are measured in processor time."""
from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from support.worlds.group_coordinator import World

from kbroker.base.clock import Timers
from kbroker.base.long_work import LongWork
from kbroker.base.turn_watch import TurnWatch

LONGEST_TURN_S = 0.010
"""The bound on the processor time of a turn in seconds."""
LARGE_ROW_BYTES = 20 * 1024 * 1024


@contextmanager
def large_world(**settings: Any) -> Iterator[MeasuredWorld]:
    """Open a world whose log accepts large rows. Python's garbage collector is off, because it would make random turns
    long.
    """
    gc.collect()
    gc.disable()
    try:
        yield MeasuredWorld(message_max_bytes=LARGE_ROW_BYTES, **settings)
    finally:
        gc.enable()


class MeasuredWorld(World):
    """A world that remembers the processor time of its longest turn in seconds."""

    def __init__(self, **settings: Any):
        self.watch = TurnWatch(measures_cpu=True)
        self.longest_s = 0.0
        self.total_s = 0.0
        super().__init__(**settings)
        self.measure_timers()

    def measure_timers(self) -> None:
        self.groups.close()
        self.topics.on_topic_created.clear()
        self.topics.on_topic_deleted.clear()
        self.timers = Timers(self.clock, self.watch)
        self.long_work = LongWork(self.timers)
        self.groups = self.coordinator()
        self.groups.start()

    def turn(self, operation: Callable[[], Any]) -> Any:
        """Call an operation as one turn of the loop."""
        began = time.thread_time()
        result = operation()
        taken = time.thread_time() - began
        self.longest_s = max(self.longest_s, taken)
        self.total_s += taken
        return result

    @property
    def longest_turn_s(self) -> float:
        return max(self.longest_s, self.watch.longest_turn_us / 1e6)
