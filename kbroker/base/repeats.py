"""Counts equal events, so that a peer that repeats one does not fill the log.

The caller logs the first event at once. Equal events within the next 10 seconds are counted, and reported together at
the end of that window. The events that are counted at one time have bounds of their number and of their memory. Above a
bound, the caller uses a less precise key, such as one for all peers. At twice a bound, the oldest one is reported and
no longer counted.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from kbroker.base.clock import Timers

WINDOW_MS = 10_000

Event = TypeVar('Event')
Report = Callable[[Event, int], object]
"""A function that logs how often an event was repeated."""


class Repeats(Generic[Event]):
    """The events that are being counted. `report` gets each of them with the number of its repetitions."""

    def __init__(self, timers: Timers, report: Report[Event], most: int, most_bytes: int):
        self._timers = timers
        self._report = report
        self._most, self._most_bytes = most, most_bytes
        self._counts: OrderedDict[Hashable, _Count[Event]] = OrderedDict()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, key: Hashable) -> bool:
        """Count a repetition of the event with this key. Return False if the event is not being counted."""
        found = self._counts.get(key)
        if found is None:
            return False
        found.repeated += 1
        return True

    def has_room(self, size_bytes: int) -> bool:
        """Return whether one more event is within the bounds."""
        return len(self._counts) < self._most and self.held_bytes + size_bytes <= self._most_bytes

    def begin(self, key: Hashable, event: Event, size_bytes: int) -> None:
        """Begin to count the repetitions of an event that takes `size_bytes` of memory."""
        while self._counts and (len(self._counts) >= 2 * self._most
                                or self.held_bytes + size_bytes > 2 * self._most_bytes):
            self._close(next(iter(self._counts)))
        self._counts[key] = _Count(event, size_bytes, self._timers.after(WINDOW_MS, lambda: self._end_window(key)))
        self.held_bytes += size_bytes

    def _end_window(self, key: Hashable) -> None:
        """Report the repetitions of a window, and begin the next window. Stop counting if there were none."""
        found = self._counts[key]
        if not found.repeated:
            del self._counts[key]
            self.held_bytes -= found.size_bytes
            return
        self._report(found.event, found.repeated)
        found.repeated = 0
        found.timer = self._timers.after(WINDOW_MS, lambda: self._end_window(key))

    def _close(self, key: Hashable) -> None:
        found = self._counts.pop(key)
        self.held_bytes -= found.size_bytes
        found.timer.cancel()
        if found.repeated:
            self._report(found.event, found.repeated)

    def close(self) -> None:
        """Report all counted repetitions."""
        while self._counts:
            self._close(next(iter(self._counts)))


class _Count(Generic[Event]):
    """The repetitions of an event since the last report."""

    __slots__ = ('event', 'repeated', 'size_bytes', 'timer')

    def __init__(self, event: Event, size_bytes: int, timer: Any):
        self.event = event
        self.size_bytes = size_bytes
        self.timer = timer
        self.repeated = 0
