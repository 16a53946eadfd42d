"""The offsets of one `__consumer_offsets` partition: committed, pending in transactions, and on their way to the
disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from kbroker.group.records import CommittedOffset, OffsetKey


class OffsetTable:
    """What replay of the partition makes of its offset rows and markers.

    `in_flight` is no part of that state: it remembers appends that are not durable, so that what is decided meanwhile
    (deletion, expiry, stability) takes them into account.
    """

    def __init__(self) -> None:
        self._committed: dict[str, dict[OffsetKey, CommittedOffset]] = {}
        self._pending: dict[int, dict[OffsetKey, CommittedOffset]] = {}
        self._pending_counts: dict[str, Counter[OffsetKey]] = {}
        self._in_flight: dict[str, Counter[OffsetKey]] = {}
        self._in_flight_transactional: dict[str, Counter[OffsetKey]] = {}

    # Questions

    def committed(self, group_id: str) -> dict[OffsetKey, CommittedOffset]:
        return self._committed.get(group_id, {})

    def pending(self, producer_id: int) -> dict[OffsetKey, CommittedOffset]:
        return self._pending.get(producer_id, {})

    def producer_ids(self) -> list[int]:
        """Producers that have offsets pending."""
        return list(self._pending)

    def is_stable(self, key: OffsetKey) -> bool:
        """False while a transaction holds an offset of the key (KIP-447). One that is not durable yet counts: its
        producer may have passed the check of its generation already."""
        return not (
            key in self._pending_counts.get(key.group_id, ())
            or key in self._in_flight_transactional.get(key.group_id, ())
        )

    def is_in_flight(self, key: OffsetKey) -> bool:
        return key in self._in_flight.get(key.group_id, ())

    def has_open_work(self, group_id: str) -> bool:
        """Are offsets of the group in a transaction, or on their way to the disk?"""
        return group_id in self._pending_counts or group_id in self._in_flight

    def group_ids(self) -> set[str]:
        return self._committed.keys() | self._pending_counts.keys() | self._in_flight.keys()

    def keys_to_forget(self, group_id: str) -> list[OffsetKey]:
        """All that a tombstone must be written for when the group goes: also what is pending or not durable yet."""
        found: dict[OffsetKey, None] = dict.fromkeys(self.committed(group_id))
        found.update(dict.fromkeys(self._pending_counts.get(group_id, ())))
        found.update(dict.fromkeys(self._in_flight.get(group_id, ())))
        return list(found)

    def all_keys(self) -> Iterator[OffsetKey]:
        for group_id in self.group_ids():
            yield from self.keys_to_forget(group_id)

    # On the way to the disk

    def note_appended(self, keys: Iterable[OffsetKey], *, transactional: bool) -> None:
        for key in keys:
            self._in_flight.setdefault(key.group_id, Counter())[key] += 1
            if transactional:
                self._in_flight_transactional.setdefault(key.group_id, Counter())[key] += 1

    def note_landed(self, key: OffsetKey, *, transactional: bool) -> None:
        """The row was replayed, or its append failed. Nothing happens for rows that were not noted: those of a load."""
        _decrement(self._in_flight, key)
        if transactional:
            _decrement(self._in_flight_transactional, key)

    # Replay

    def commit(self, key: OffsetKey, committed: CommittedOffset) -> None:
        self._committed.setdefault(key.group_id, {})[key] = committed

    def add_pending(self, producer_id: int, key: OffsetKey, committed: CommittedOffset) -> None:
        offsets = self._pending.setdefault(producer_id, {})
        if key not in offsets:
            self._pending_counts.setdefault(key.group_id, Counter())[key] += 1
        offsets[key] = committed

    def forget(self, key: OffsetKey) -> None:
        """A tombstone: the committed offset goes, and what transactions hold for the key."""
        offsets = self._committed.get(key.group_id, {})
        offsets.pop(key, None)
        if not offsets:
            self._committed.pop(key.group_id, None)
        if key not in self._pending_counts.get(key.group_id, ()):
            return
        for producer_id, pending in list(self._pending.items()):
            if pending.pop(key, None) is not None:
                _decrement(self._pending_counts, key)
            if not pending:
                del self._pending[producer_id]

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """A marker. A pending offset counts only where no later row has committed the key: log order decides."""
        for key, pending in self._pending.pop(producer_id, {}).items():
            _decrement(self._pending_counts, key)
            current = self.committed(key.group_id).get(key)
            if commit and (current is None or pending.log_offset > current.log_offset):
                self.commit(key, pending)


def _decrement(counts: dict[str, Counter[OffsetKey]], key: OffsetKey) -> None:
    group = counts.get(key.group_id)
    if group is None or key not in group:
        return
    group[key] -= 1
    if not group[key]:
        del group[key]
    if not group:
        del counts[key.group_id]
