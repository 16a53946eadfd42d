"""One partition of `__consumer_offsets` and the groups that live in it: the state is a replay of the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kbroker.clock import Clock
from kbroker.errors import ErrorCode, KafkaError
from kbroker.group.classic import ClassicGroup
from kbroker.group.offset_table import OffsetTable
from kbroker.group.records import GroupRow, OffsetKey, OffsetRow, Row, read_row, restore_group, row_bytes
from kbroker.record.batch import encode_batch
from kbroker.record.control import ControlType, read_end_txn_marker
from kbroker.record.records import decode_records
from kbroker.topics.append_errors import APPEND_ERRORS

log = logging.getLogger(__name__)

Done = Callable[[KafkaError | None], None]

COORDINATOR_ERRORS = APPEND_ERRORS | {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What a failed append or transaction check means to a client of the coordinator: Kafka's mapping."""


def coordinator_error(error: KafkaError) -> KafkaError:
    """The error in the terms of COORDINATOR_ERRORS; one that is not in it stays as it is."""
    return KafkaError(COORDINATOR_ERRORS.get(error.code, error.code), str(error))


@dataclass(frozen=True, slots=True)
class TransactionalProducer:
    """Who appends within a transaction, and the guard that its verification gave (KIP-890)."""

    producer_id: int
    producer_epoch: int
    guard: Any = None


class Shard:
    """`on_group_row(group, value)` is told of the row of a group in memory once it is durable; never while loading."""

    def __init__(self, partition: Any, clock: Clock, max_batch_bytes: int):
        self.partition = partition
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = OffsetTable()
        self.on_group_row: Callable[[ClassicGroup, Any], None] = lambda group, value: None
        self._clock = clock
        self._max_batch_bytes = max_batch_bytes
        self._loading = False

    def load(self) -> None:
        """Replay the log, then follow it. CorruptLogError when a row of ours cannot be read."""
        self._loading = True
        for header, batch in self.partition.batches():
            self.replay(header, batch)
        for group_id in self.offsets.group_ids():
            self._simple_group(group_id)
        self._loading = False
        self.partition.set_replayer(self.replay)

    def append(self, rows: Sequence[Row], done: Done) -> None:
        """Append group rows and tombstones, at least one, in several batches if they are many; `done` once all are
        durable or one failed.

        An error comes as the coordinator's clients know it (COORDINATOR_ERRORS).
        """
        try:
            for chunk in self._chunks(rows):
                last_offset = self._append_batch(chunk)
        except KafkaError as error:
            done(coordinator_error(error))
            return
        self._when_durable(last_offset, done)

    def append_offsets(
        self, rows: Sequence[Row], keys: Sequence[OffsetKey], done: Done, producer: TransactionalProducer | None = None
    ) -> None:
        """Append committed offsets as one batch: all of them become durable, or none; `done` as in `append`."""
        transactional = producer is not None
        self.offsets.note_appended(keys, transactional=transactional)
        try:
            last_offset = self._append_batch(rows, producer)
        except KafkaError as error:
            for key in keys:
                self.offsets.note_landed(key, transactional=transactional)
            done(coordinator_error(error))
            return
        self._when_durable(last_offset, done)

    def _append_batch(self, rows: Sequence[Row], producer: TransactionalProducer | None = None) -> int:
        now_ms = self._clock.wall_ms()
        records = [(now_ms, key, value) for key, value in rows]
        if producer is None:
            return int(self.partition.append(encode_batch(records)).last_offset)
        batch = encode_batch(
            records, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, transactional=True
        )
        appended = self.partition.append(batch, guard=producer.guard, verification_required=producer.guard is not None)
        return int(appended.last_offset)

    def _when_durable(self, last_offset: int, done: Done) -> None:
        self.partition.when_durable(last_offset + 1, lambda error: done(error and coordinator_error(error)))

    def _chunks(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        chunk: list[Row] = []
        size_bytes = 0
        for row in rows:
            if chunk and size_bytes + row_bytes(row) > self._max_batch_bytes:
                yield chunk
                chunk, size_bytes = [], 0
            chunk.append(row)
            size_bytes += row_bytes(row)
        if chunk:
            yield chunk

    # Replay: the only way in for what is durable

    def replay(self, header: Any, batch: memoryview) -> None:
        """Adopt one batch of the log."""
        if header.is_control:
            if header.records_count:  # compaction may leave an empty one
                control_type = read_end_txn_marker(batch).control_type
                self.offsets.end_transaction(header.producer_id, commit=control_type is ControlType.COMMIT)
            return
        for record in decode_records(batch):
            row = read_row(record.key, record.value, record.offset)
            if isinstance(row, OffsetRow):
                self._replay_offset(header, row)
            elif isinstance(row, GroupRow):
                self._replay_group(row)

    def _replay_offset(self, header: Any, row: OffsetRow) -> None:
        if row.committed is None:
            self.offsets.forget(row.key)
            return
        self.offsets.note_landed(row.key, transactional=header.is_transactional)
        if header.is_transactional:
            self.offsets.add_pending(header.producer_id, row.key, row.committed)
        else:
            self.offsets.commit(row.key, row.committed)
        self._simple_group(row.key.group_id)

    def _replay_group(self, row: GroupRow) -> None:
        if row.value is None:
            self.groups.pop(row.group_id, None)
        elif self._loading:
            self.groups[row.group_id] = restore_group(row.group_id, row.value)
        elif row.group_id in self.groups:
            self.on_group_row(self.groups[row.group_id], row.value)

    def _simple_group(self, group_id: str) -> None:
        """Offsets make a group, if nothing else did: one without members."""
        if group_id not in self.groups:
            self.groups[group_id] = ClassicGroup(group_id)
