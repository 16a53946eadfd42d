"""Pending members: clients that have received a member id, but have not joined with it yet (KIP-394)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from kbroker.base.clock import Timers
from kbroker.base.object_memory import memory_of
from kbroker.group.classic.group import ClassicGroup

MOST_PENDING_MEMBERS = 20_000
"""The largest number of pending members of all groups together."""
PENDING_MEMBER_BYTES = 900
"""The memory of a pending member without its id, in bytes, measured on CPython 3.11 with 64 bits."""


class PendingMembers:
    """The pending members of all groups, the oldest first. A pending member is kept for the session timeout of its
    request.

    If there are more than the largest number, the oldest ones expire early. When their clients join, they get
    UNKNOWN_MEMBER_ID and request another id. A flood of requests for ids therefore cannot permanently keep other
    clients from joining.
    """

    def __init__(self, timers: Timers, most: int = MOST_PENDING_MEMBERS):
        self._timers = timers
        self._most = most
        self._expire_by_id: OrderedDict[str, Callable[[], None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._expire_by_id)

    def add(self, group: ClassicGroup, member_id: str, timeout_ms: int, expired: Callable[[], None]) -> None:
        """Add a pending member. If it does not join within `timeout_ms`, remove it and call `expired`."""
        while len(self._expire_by_id) >= self._most:
            self.expire_oldest()
        expire = partial(self._expire, group, member_id, expired)
        group.pending_members[member_id] = self._timers.after(timeout_ms, expire)
        group.hold(PENDING_MEMBER_BYTES + memory_of(member_id))
        self._expire_by_id[member_id] = expire

    def forget(self, group: ClassicGroup, member_id: str) -> bool:
        """Remove a pending member, because it has joined or left. Return False if it is not pending."""
        timer = group.pending_members.pop(member_id, None)
        if timer is None:
            return False
        timer.cancel()
        group.hold(-PENDING_MEMBER_BYTES - memory_of(member_id))
        del self._expire_by_id[member_id]
        return True

    def forget_all_of(self, group: ClassicGroup) -> None:
        for member_id in list(group.pending_members):
            self.forget(group, member_id)

    def expire_oldest(self) -> None:
        next(iter(self._expire_by_id.values()))()

    def _expire(self, group: ClassicGroup, member_id: str, expired: Callable[[], None]) -> None:
        if self.forget(group, member_id):
            expired()
