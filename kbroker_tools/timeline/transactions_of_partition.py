"""The transactions of one partition, replayed from batch headers and markers.

A transaction begins with the first transactional batch of a producer id and ends with the next marker of the same
producer id. A producer id never has two open transactions in one partition.

If the epoch of a producer id rises without a marker, the producer was initialised again. With transaction.version 2,
every ending bumps the epoch. The producer may then also have ended transactions in other partitions.
"""
from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.record.batch import NO_PRODUCER_ID, BatchHeader, CorruptBatchError
from kbroker.record.control import ControlType, read_end_txn_marker


class Outcome(enum.Enum):
    COMMITTED = 'committed'
    ABORTED = 'aborted'
    OPEN = 'open'


class Marker(NamedTuple):
    offset: int
    timestamp_ms: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    outcome: Outcome


@dataclass(slots=True)
class PartitionTransaction:
    """The part of one transaction in one partition. Times are the timestamps of its batches. They come from the clock
    of the client or of the broker."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    """The offset of the last record of the transaction. Its marker comes later."""
    begin_timestamp_ms: int
    last_timestamp_ms: int
    records: int = 0
    size_bytes: int = 0
    epoch_before: int | None = None
    """The previous epoch of the producer id, if the epoch rose without a marker. Otherwise None."""
    marker: Marker | None = None

    @property
    def outcome(self) -> Outcome:
        return Outcome.OPEN if self.marker is None else self.marker.outcome

    @property
    def end_offset(self) -> int:
        """Return the offset of the marker. If the transaction is open, return the offset of its last record."""
        return self.last_offset if self.marker is None else self.marker.offset

    @property
    def end_timestamp_ms(self) -> int:
        return self.last_timestamp_ms if self.marker is None else self.marker.timestamp_ms

    @property
    def duration_ms(self) -> int | None:
        """Return the milliseconds from the first batch to the marker. None while the transaction is open."""
        return None if self.marker is None else self.marker.timestamp_ms - self.begin_timestamp_ms


@dataclass(slots=True)
class Replay:
    """A replay of batches, which are added in the order of their offsets. It collects the transactions, sorted by their
    first offset."""

    transactions: list[PartitionTransaction] = field(default_factory=list)
    lone_markers: list[Marker] = field(default_factory=list)
    """The markers without an open transaction.

    The marker's transaction began before the first batch, wrote nothing to this partition, lost its records to
    compaction, or already had a marker.
    """
    since_ms: int | None = None
    plain_records: int = 0
    """The number of records outside of transactions. With `since_ms`, only batches that end at this time or later
    count."""
    batches: int = 0
    first_offset: int | None = None
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None
    _open: dict[int, PartitionTransaction] = field(default_factory=dict)
    _epochs: dict[int, int] = field(default_factory=dict)

    @property
    def has_open(self) -> bool:
        return bool(self._open)

    def add(self, header: BatchHeader, batch: bytes | bytearray | memoryview, may_begin: bool = True) -> None:
        """Replay one batch. If `may_begin` is false, the batch can continue or end a transaction but not begin one."""
        self.batches += 1
        if self.first_offset is None:
            self.first_offset, self.first_timestamp_ms = header.base_offset, _first_timestamp_ms(header)
        timestamp_ms = header.max_timestamp_ms
        if self.last_timestamp_ms is None or timestamp_ms > self.last_timestamp_ms:
            self.last_timestamp_ms = timestamp_ms
        if not header.is_transactional:
            is_shown = may_begin and (self.since_ms is None or timestamp_ms >= self.since_ms)
            if is_shown and not header.is_control:
                self.plain_records += header.records_count
        elif header.records_count == 0 or header.producer_id == NO_PRODUCER_ID:
            return  # a batch that compaction emptied opens and ends no transaction
        elif header.is_control:
            self._end(header, batch)
        else:
            self._write(header, may_begin)

    def _write(self, header: BatchHeader, may_begin: bool) -> None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        transaction = self._open.get(producer_id)
        if transaction is None:
            if not may_begin:
                return
            known = self._epochs.get(producer_id)
            begin_ms = _first_timestamp_ms(header)
            transaction = PartitionTransaction(producer_id, epoch, header.base_offset, header.last_offset, begin_ms,
                                               begin_ms, epoch_before=known if known != epoch else None)
            self._open[producer_id] = transaction
            self._epochs[producer_id] = epoch
            self.transactions.append(transaction)
        transaction.last_offset = header.last_offset
        transaction.last_timestamp_ms = max(transaction.last_timestamp_ms, header.max_timestamp_ms)
        transaction.records += header.records_count
        transaction.size_bytes += header.size_bytes

    def _end(self, header: BatchHeader, batch: bytes | bytearray | memoryview) -> None:
        marker = read_marker(header, batch)
        if marker is None:
            return
        self._epochs[marker.producer_id] = marker.producer_epoch
        transaction = self._open.pop(marker.producer_id, None)
        if transaction is None:
            self.lone_markers.append(marker)
        else:
            transaction.marker = marker


def read_marker(header: BatchHeader, batch: bytes | bytearray | memoryview) -> Marker | None:
    """Return the marker in a transactional control batch. Return None if the type of the marker is unknown."""
    try:
        control_type, coordinator_epoch = read_end_txn_marker(batch)
    except CorruptBatchError:
        return None
    outcome = Outcome.COMMITTED if control_type is ControlType.COMMIT else Outcome.ABORTED
    return Marker(header.base_offset, header.max_timestamp_ms, header.producer_id, header.producer_epoch,
                  coordinator_epoch, outcome)


def replay(batches: Iterable[tuple[BatchHeader, memoryview]], end_offset: int | None = None,
           since_ms: int | None = None) -> Replay:
    """Return the replay of the transactions that begin below `end_offset`. Batches above `end_offset` are read while
    one of these transactions is open."""
    result = Replay(since_ms=since_ms)
    for header, batch in batches:
        may_begin = end_offset is None or header.base_offset < end_offset
        if not may_begin and not result.has_open:
            break
        result.add(header, batch, may_begin)
    return result


def _first_timestamp_ms(header: BatchHeader) -> int:
    """Return the timestamp of the first record. If a delete horizon or LogAppendTime has replaced it in the header,
    return the timestamp of the last record."""
    if header.is_log_append_time or header.delete_horizon_ms is not None or header.base_timestamp_ms < 0:
        return header.max_timestamp_ms
    return header.base_timestamp_ms
