"""The durable state of a share partition, its rows in `__share_group_state`, and how rows build on each other.

A share partition is one partition of a topic as one share group reads it. Its first row is a snapshot, which has the
whole state. An update has what changed since. After a number of updates the next row is a snapshot again.
"""
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any, NamedTuple

from kbroker.errors import ErrorCode, KafkaError
from kbroker.internal_topics import SHARE_GROUP_STATE
from kbroker.metadata.directory import format_uuid, parse_uuid
from kbroker.protocol import messages
from kbroker.protocol.rows import RowError, decode_row_key, decode_row_value, encode_row_key, encode_row_value

UNKNOWN_OFFSET = -1
UNKNOWN_COUNT = -1
NO_EPOCH = -1
STATE_BYTES = 900
"""More than a ShareState without batches takes, with its key in three dictionaries and its rows' keys."""
BATCH_BYTES = 168
"""More than one StateBatch takes with its numbers."""


class ShareKey(NamedTuple):
    """A share partition."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def coordinator_key(self) -> str:
        """The text that decides which partition of `__share_group_state` has the rows, as in FindCoordinator."""
        return f'{self.group_id}:{format_uuid(self.topic_id)}:{self.partition}'


def parse_coordinator_key(text: str) -> ShareKey:
    """Return the share partition of a FindCoordinator key. Raises KafkaError INVALID_REQUEST."""
    parts = text.rsplit(':', 2)
    try:
        if len(parts) != 3 or not parts[0]:
            raise ValueError
        return ShareKey(parts[0], parse_uuid(parts[1]), int(parts[2]))
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST,
                         f'group:topicId:partition expected as key of a share partition, found {text!r}') from None


class StateBatch(NamedTuple):
    """A range of records with the same state: 0 available, 2 acknowledged, 4 archived."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class Changes(NamedTuple):
    """A write to a share partition: what its leader changed, and the epochs that it knows."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]


@dataclass(frozen=True, slots=True)
class ShareState:
    """The state after a row. `start_offset` is -1 until a leader has chosen one.

    The last three fields are no part of a row: the updates since the last snapshot, the offset of that snapshot in the
    log, and when the last row was written.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    created_ms: int
    batches: tuple[StateBatch, ...] = ()
    updates: int = 0
    snapshot_offset: int = -1
    written_ms: int = 0

    @property
    def held_bytes(self) -> int:
        """The memory that it takes: an estimate from measured sizes."""
        return STATE_BYTES + BATCH_BYTES * len(self.batches)


Row = tuple[bytes, bytes | None]
"""Key and value of a record; without a value the share partition is forgotten."""


def with_changes(state: ShareState, changes: Changes, now_ms: int) -> ShareState:
    """Return the state after a write. A start offset or leader epoch of -1 changes nothing."""
    start_offset = state.start_offset if changes.start_offset == UNKNOWN_OFFSET else changes.start_offset
    return replace(
        state,
        leader_epoch=state.leader_epoch if changes.leader_epoch == NO_EPOCH else changes.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=changes.delivery_complete_count,
        batches=merge_batches(state.batches, changes.batches, start_offset),
        written_ms=now_ms)


def merge_batches(old: tuple[StateBatch, ...], new: Sequence[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Return the batches of `old`, which are sorted and disjoint, with those of `new` put over them.

    Everything below `start_offset` is cut. Where batches overlap, the higher delivery count wins, then the higher
    state. Neighbours with the same state and count are joined.
    """
    kept = bisect_left(old, start_offset, key=lambda batch: batch.last_offset)
    new = _cut(new, start_offset)
    if not new:
        return tuple(_cut(old[kept:], start_offset))
    first = min(batch.first_offset for batch in new)
    last = max(batch.last_offset for batch in new)
    # Only the batches that the new ones touch change. Their neighbours may join.
    low = max(kept, bisect_left(old, first, key=lambda batch: batch.last_offset + 1))
    high = bisect_left(old, last + 2, lo=low, key=lambda batch: batch.first_offset)
    before = tuple(_cut(old[kept:low], start_offset))
    return before + tuple(_overlay(_cut([*old[low:high], *new], start_offset))) + old[high:]


def _cut(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    return [batch if batch.first_offset >= start_offset else batch._replace(first_offset=start_offset)
            for batch in batches if batch.last_offset >= start_offset]


def _overlay(batches: list[StateBatch]) -> list[StateBatch]:
    """Return disjoint batches: at each offset the one with the highest count, then the highest state."""
    batches.sort()
    found: list[StateBatch] = []
    covering: list[tuple[int, int, int]] = []       # a heap: negative count, negative state, last offset
    offset = number = 0
    while covering or number < len(batches):
        if not covering:
            offset = batches[number].first_offset
        while number < len(batches) and batches[number].first_offset <= offset:
            batch = batches[number]
            heappush(covering, (-batch.delivery_count, -batch.delivery_state, batch.last_offset))
            number += 1
        count, state, last = covering[0]
        if last < offset:
            heappop(covering)
            continue
        if number < len(batches):
            last = min(last, batches[number].first_offset - 1)
        previous = found[-1] if found else None
        if previous is not None and previous[1:] == (offset - 1, -state, -count):
            found[-1] = previous._replace(last_offset=last)
        else:
            found.append(StateBatch(offset, last, -state, -count))
        offset = last + 1
    return found


def snapshot_row(key: ShareKey, state: ShareState) -> Row:
    value = messages.ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch, state_epoch=state.state_epoch, leader_epoch=state.leader_epoch,
        start_offset=state.start_offset, delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.created_ms, write_timestamp=state.written_ms,
        state_batches=[messages.ShareSnapshotValue.StateBatch(**batch._asdict()) for batch in state.batches])
    return _snapshot_key(key), encode_row_value(value, 0)


def update_row(key: ShareKey, snapshot_epoch: int, changes: Changes) -> Row:
    """Return the row of a write. Overlapping batches of the write are merged."""
    batches = merge_batches((), changes.batches, changes.start_offset)
    value = messages.ShareUpdateValue(
        snapshot_epoch=snapshot_epoch, leader_epoch=changes.leader_epoch, start_offset=changes.start_offset,
        delivery_complete_count=changes.delivery_complete_count,
        state_batches=[messages.ShareUpdateValue.StateBatch(**batch._asdict()) for batch in batches])
    return encode_row_key(messages.ShareUpdateKey(**key._asdict())), encode_row_value(value, 0)


def tombstone(key: ShareKey) -> Row:
    return _snapshot_key(key), None


def _snapshot_key(key: ShareKey) -> bytes:
    return encode_row_key(messages.ShareSnapshotKey(**key._asdict()))


def read_row(states: dict[ShareKey, ShareState], record: Any) -> tuple[ShareKey, ShareState | None] | None:
    """Return the share partition of a record and its state after it: None after a tombstone.

    Returns None for a type of row that is not known, and for an update of a share partition without a snapshot. Raises
    RowError.
    """
    row_key = decode_row_key(SHARE_GROUP_STATE, record.key or b'')
    if row_key is None:
        return None
    key = ShareKey(row_key.group_id, row_key.topic_id, row_key.partition)
    if record.value is None:
        return key, None
    if isinstance(row_key, messages.ShareSnapshotKey):
        value = decode_row_value(messages.ShareSnapshotValue, record.value)
        batches = [StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
                   for batch in value.state_batches]
        return key, ShareState(
            value.snapshot_epoch, value.state_epoch, value.leader_epoch, value.start_offset,
            value.delivery_complete_count, value.create_timestamp,
            merge_batches((), _checked(batches), value.start_offset), 0, record.offset, value.write_timestamp)
    state = states.get(key)
    if state is None:
        return None
    value = decode_row_value(messages.ShareUpdateValue, record.value)
    batches = _checked([StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
                        for batch in value.state_batches])
    changes = Changes(state.state_epoch, value.leader_epoch, value.start_offset, value.delivery_complete_count, batches)
    return key, replace(with_changes(state, changes, record.timestamp_ms), updates=state.updates + 1)


def _checked(batches: list[StateBatch]) -> list[StateBatch]:
    """Return the batches. Raises RowError for one that ends before it begins."""
    for batch in batches:
        if batch.first_offset > batch.last_offset:
            raise RowError(f'found a batch from {batch.first_offset} to {batch.last_offset}')
    return batches
