"""The durable state of a share partition, and the functions that make and read its rows in `__share_group_state`. A
share partition is a partition of a topic, as one share group reads it. The first row of a share partition is a
snapshot, which has the whole state. The next rows are updates. An update has only the changes since the previous row.
After a number of updates, the next row is a snapshot again.
"""
from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import SHARE_GROUP_STATE
from kbroker.base.lean_dataclasses import dataclass, replace
from kbroker.group.share.merge import encode_batches, merge_batches
from kbroker.metadata.directory import format_uuid, parse_uuid
from kbroker.protocol import messages
from kbroker.protocol.rows import RowError, decode_row_key, decode_row_value, encode_row_key

UNKNOWN_OFFSET = -1
UNKNOWN_COUNT = -1
ARCHIVING = 3
NO_EPOCH = -1
MOST_OFFSETS = 2**63 - 1
ROW_VERSION = 0
SNAPSHOT_HEAD = struct.Struct('>hiiiqqq')
UPDATE_HEAD = struct.Struct('>hiiq')
"""The layouts of the fields that precede the batches in the value of a snapshot row and of an update row. The first
field is the row version."""
STATE_BYTES = 900
"""An upper bound for the memory of a ShareState without batches, in bytes. It includes the state's key in three
dictionaries, and the keys of its rows."""
BATCH_BYTES = 168
"""An upper bound for the memory of one batch tuple with its four numbers, in bytes."""


class ShareKey(NamedTuple):
    """A share partition."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def coordinator_key(self) -> str:
        """The key of the share partition in FindCoordinator requests. The hash of this key determines the partition of
        `__share_group_state` that has the share partition's rows."""
        return f'{self.group_id}:{format_uuid(self.topic_id)}:{self.partition}'


def parse_coordinator_key(text: str) -> ShareKey:
    """Return the share partition that a FindCoordinator key names. Raise INVALID_REQUEST if the key is malformed."""
    parts = text.rsplit(':', 2)
    try:
        if len(parts) != 3 or not parts[0]:
            raise ValueError
        return ShareKey(parts[0], parse_uuid(parts[1]), int(parts[2]))
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST,
                         f'group:topicId:partition expected as key of a share partition, found {text!r}') from None


StateBatch = tuple[int, int, int, int]
"""(first offset, last offset, delivery state, delivery count). The delivery states are 0 (available), 2 (acknowledged),
3 (archiving: the record waits for its dead letter, KIP-1191) and 4 (archived)."""


class Changes(NamedTuple):
    """A write to a share state: the changes that the partition's leader makes, and the state epoch and leader epoch
    that the leader knows."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]


@dataclass(frozen=True, slots=True)
class ShareState:
    """The state of a share partition after one of its rows. `start_offset` is -1 until a leader has chosen a start
    offset.

    `created_ms` never decreases. While records wait for their dead letters, it does not change, except by a new
    initialization. So all dead letters that these records may have are at or after `created_ms`, and all dead letters
    of an earlier state of the share partition are before it.

    The last three fields describe the rows of the share partition in the log:

    * `updates`: the number of updates since the last snapshot.
    * `snapshot_offset`: the offset of the last snapshot in the log.
    * `written_ms`: the time of the last row.
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
    def is_archiving(self) -> bool:
        """True if some records wait for their dead letters."""
        return any(batch[2] == ARCHIVING for batch in self.batches)

    def is_archiving_all(self, first: int, last: int) -> bool:
        """Return whether all records from `first` to `last` wait for their dead letters."""
        number = bisect_left(self.batches, first, key=itemgetter(1))
        while first <= last:
            if number == len(self.batches):
                return False
            begin, end, state, _ = self.batches[number]
            if begin > first or state != ARCHIVING:
                return False
            first = end + 1
            number += 1
        return True

    @property
    def held_bytes(self) -> int:
        """The memory of the state in bytes, estimated from measured sizes."""
        return STATE_BYTES + BATCH_BYTES * len(self.batches)

    def lag(self, high_watermark: int) -> int | None:
        """Return the number of records below the high watermark whose delivery is not finished.

        Return None if the state has no start offset or no count of finished records. A client can set a start offset
        far below 0. The result is therefore at most the largest number that a response can hold.
        """
        if self.start_offset == UNKNOWN_OFFSET or self.delivery_complete_count == UNKNOWN_COUNT:
            return None
        return min(max(0, high_watermark - self.start_offset - self.delivery_complete_count), MOST_OFFSETS)


Row = tuple[bytes, bytes | None]
"""The encoded key and value of a record. If the value is None, the record is a tombstone, which deletes the state."""


def with_changes(state: ShareState, changes: Changes, now_ms: int) -> ShareState:
    """Return the state that results from a write. If the write's start offset or leader epoch is -1, the state keeps
    its own."""
    start_offset = state.start_offset if changes.start_offset == UNKNOWN_OFFSET else changes.start_offset
    return replace(
        state,
        leader_epoch=state.leader_epoch if changes.leader_epoch == NO_EPOCH else changes.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=changes.delivery_complete_count,
        batches=merge_batches(state.batches, changes.batches, start_offset),
        written_ms=now_ms)


def snapshot_row(key: ShareKey, state: ShareState) -> Row:
    head = SNAPSHOT_HEAD.pack(ROW_VERSION, state.snapshot_epoch, state.state_epoch, state.leader_epoch,
                              state.start_offset, state.created_ms, state.written_ms)
    return _snapshot_key(key), head + encode_batches(state.batches, state.delivery_complete_count)


def update_row(key: ShareKey, snapshot_epoch: int, changes: Changes) -> Row:
    """Return the update row that stores a write. Overlapping batches of the write are merged."""
    head = UPDATE_HEAD.pack(ROW_VERSION, snapshot_epoch, changes.leader_epoch, changes.start_offset)
    batches = merge_batches((), changes.batches, changes.start_offset)
    return (encode_row_key(messages.ShareUpdateKey(**key._asdict())),
            head + encode_batches(batches, changes.delivery_complete_count))


def tombstone(key: ShareKey) -> Row:
    return _snapshot_key(key), None


def _snapshot_key(key: ShareKey) -> bytes:
    return encode_row_key(messages.ShareSnapshotKey(**key._asdict()))


def read_row(states: dict[ShareKey, ShareState], record: Any) -> tuple[ShareKey, ShareState | None] | None:
    """Return the share partition of a record and the state that results from the record. The state is None after a
    tombstone.

    Return None if the row is of an unknown type, or if it is an update of a share partition without a snapshot. Raise
    RowError if the row cannot be read.
    """
    row_key = decode_row_key(SHARE_GROUP_STATE, record.key or b'')
    if row_key is None:
        return None
    key = ShareKey(row_key.group_id, row_key.topic_id, row_key.partition)
    if record.value is None:
        return key, None
    if isinstance(row_key, messages.ShareSnapshotKey):
        value = decode_row_value(messages.ShareSnapshotValue, record.value)
        return key, ShareState(
            value.snapshot_epoch, value.state_epoch, value.leader_epoch, value.start_offset,
            value.delivery_complete_count, value.create_timestamp,
            merge_batches((), _batches_of(value), value.start_offset), 0, record.offset, value.write_timestamp)
    state = states.get(key)
    if state is None:
        return None
    value = decode_row_value(messages.ShareUpdateValue, record.value)
    changes = Changes(state.state_epoch, value.leader_epoch, value.start_offset, value.delivery_complete_count,
                      _batches_of(value))
    return key, replace(with_changes(state, changes, record.timestamp_ms), updates=state.updates + 1)


def _batches_of(value: Any) -> list[StateBatch]:
    """Return the batches in a row's value. Raise RowError if a batch has a last offset below its first offset."""
    found = [(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
             for batch in value.state_batches]
    for first, last, _, _ in found:
        if first > last:
            raise RowError(f'found a batch from {first} to {last}')
    return found
