"""Deadlines of members of the groups of a shard: sessions, rebalances, joins and syncs."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kbroker.clock import Clock, Timer, Timers

Key = tuple[str, str, str]
"""The kind of the deadline, the group and the member."""


class _Deadline:
    """A deadline that is armed. Its timer may be earlier: it looks at the deadline when it is due."""

    __slots__ = 'at_ms', 'missed', 'timer'

    def __init__(self, at_ms: int, missed: Callable[[], None], timer: Timer):
        self.at_ms = at_ms
        self.missed = missed
        self.timer = timer


class Deadlines:
    """All deadlines that are armed. To arm one again replaces it, which is cheap for one that moves later."""

    def __init__(self, clock: Clock, timers: Timers):
        self._clock = clock
        self._timers = timers
        self._armed: dict[Key, _Deadline] = {}

    def __len__(self) -> int:
        return len(self._armed)

    def is_armed(self, kind: str, group_id: str, member_id: str) -> bool:
        return (kind, group_id, member_id) in self._armed

    def arm(self, kind: str, group_id: str, member_id: str, timeout_ms: int, missed: Callable[[], None]) -> None:
        """Call `missed` in `timeout_ms`, unless the deadline is armed again or cancelled before."""
        key = kind, group_id, member_id
        at_ms = self._clock.monotonic_ms() + timeout_ms
        deadline = self._armed.get(key)
        if deadline is not None and deadline.timer.deadline_ms <= at_ms:
            deadline.at_ms, deadline.missed = at_ms, missed
            return
        if deadline is not None:
            deadline.timer.cancel()
        self._armed[key] = _Deadline(at_ms, missed, self._timer(key, timeout_ms))

    def cancel(self, kind: str, group_id: str, member_id: str) -> None:
        """Disarm a deadline, if it is armed."""
        deadline = self._armed.pop((kind, group_id, member_id), None)
        if deadline is not None:
            deadline.timer.cancel()

    def cancel_all(self) -> None:
        for deadline in self._armed.values():
            deadline.timer.cancel()
        self._armed.clear()

    def _timer(self, key: Key, delay_ms: int) -> Timer:
        return self._timers.after(delay_ms, partial(self._due, key))

    def _due(self, key: Key) -> None:
        deadline = self._armed[key]
        left_ms = deadline.at_ms - self._clock.monotonic_ms()
        if left_ms > 0:
            deadline.timer = self._timer(key, left_ms)
            return
        del self._armed[key]
        deadline.missed()
