"""Reads the batches of partitions between the committed offsets of groups and the last stable offset.

Two questions need the batches: how many records a read_committed consumer gets, and how old the first of them is. Both
are answered within a bound of bytes for each collection. A count continues where the last collection ended. An age is
kept while the group stays at its offset.
"""
from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from kbroker.base.errors import ErrorCode
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import IsolationLevel
from kbroker.client.fetcher import LAST_FETCH_VERSION, fetch_request
from kbroker.record.abort_filter import AbortFilter
from kbroker.record.batch import BatchHeader, CorruptBatchError, iter_batches
from kbroker_tools.exporter.asking import Ask, Brokers, split
from kbroker_tools.exporter.counted_range import MOST_GAPS, PartitionCount
from kbroker_tools.exporter.facts import PartitionEnds, RecordBounds
from kbroker_tools.exporter.partitions import MOVED, by_leader

PARTITIONS_AT_ONCE = 100
COUNTED_BYTES = 1 << 20
"""The most bytes of one partition in one Fetch that counts."""
FIRST_AGE_BYTES, MOST_AGE_BYTES, AGE_GROWTH = 1 << 12, 1 << 22, 16
"""The bytes of one partition in a Fetch for an age: the first try, the last one, and the factor between two tries.
A Fetch with fewer bytes than the batch has is answered without the batch."""
AGES_SHARE = 4
"""Ages may use one part in so many of the bytes of a collection."""
MOST_GAPS_IN_ALL = 2_000_000
"""The most gaps that are kept for all partitions, of 24 bytes each."""
MOST_IDLE = 3
"""The fetches of a partition without a batch after which a collection no longer asks for it."""

Position = tuple[TopicPartition, int]
"""A committed offset in a partition."""


class BatchReader:
    """The Fetch requests of a collection, with their bound of bytes. A bound of 0 reads nothing."""

    def __init__(self, brokers: Brokers, most_bytes: int):
        self._brokers = brokers
        self._most_bytes = most_bytes
        self.read_bytes = 0
        self.not_readable: set[TopicPartition] = set()
        """The partitions that the brokers refuse to send, until the next collection."""

    def begin(self) -> None:
        self.read_bytes = 0
        self.not_readable.clear()

    def left_bytes(self, share: int = 1) -> int:
        """Return the bytes that may be read now. `share` limits the caller to one part in so many of the bound."""
        return 0 if self._brokers.is_out_of_time else max(self._most_bytes // share - self.read_bytes, 0)

    def fetch(self, positions: Mapping[TopicPartition, int], leaders: Mapping[TopicPartition, int],
              partition_bytes: int, share: int = 1) -> Iterator[tuple[TopicPartition, Any]]:
        """Fetch once from each position, and yield (partition, row of the answer) while bytes are left.

        The first partition of each request gets at least one batch, however large it is.
        """
        parts = {leader: list(split(wanted, PARTITIONS_AT_ONCE))
                 for leader, wanted in by_leader(positions, leaders).items()}
        while parts and (left_bytes := self.left_bytes(share)):
            most_bytes = max(left_bytes // len(parts), 1)
            asks = [Ask(leader, fetch_request({at: positions[at] for at in some.pop(0)}, IsolationLevel.READ_COMMITTED,
                                              most_bytes, partition_bytes, 0, 0)) for leader, some in parts.items()]
            for _, answer in self._brokers.ask(asks, LAST_FETCH_VERSION):
                yield from self._rows(answer, positions)
            parts = {leader: some for leader, some in parts.items() if some}

    def _rows(self, answer: Any, positions: Collection[TopicPartition]) -> Iterator[tuple[TopicPartition, Any]]:
        for topic in answer.responses:
            for row in topic.partitions:
                at = (topic.topic, row.partition_index)
                if row.error_code:
                    self.not_readable.add(at)
                    if row.error_code not in (*MOVED, ErrorCode.OFFSET_OUT_OF_RANGE):
                        self._brokers.note_code('Fetch', row.error_code, f'{at[0]}-{at[1]}')
                elif at in positions:
                    self.read_bytes += len(row.records or b'')
                    yield at, row

    def batches(self, at: TopicPartition, row: Any, position: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the batches of an answer that end at or above `position`. Stop at a batch that cannot be read."""
        try:
            for header, batch in iter_batches(row.records or b''):
                if header.last_offset >= position:
                    yield header, batch
        except CorruptBatchError as error:
            self.not_readable.add(at)
            self._brokers.note('Fetch', error.code.name, f'the batches of {at[0]}-{at[1]} cannot be counted: {error}')


class Ages:
    """The times of the first batches that groups have not read."""

    def __init__(self, reader: BatchReader):
        self._reader = reader
        self._times_ms: dict[Position, int] = {}
        self._batch_bytes: dict[TopicPartition, int] = {}
        """Maps a partition to the bytes that its batches needed before, if they are more than FIRST_AGE_BYTES."""

    def read(self, positions: Sequence[Position],
             leaders: Mapping[TopicPartition, int]) -> Mapping[Position, int]:
        """Return the times of the batches at these positions, in ms since the epoch, as far as the bytes suffice.

        The first positions are preferred.
        """
        known = self._times_ms
        self._times_ms = {each: known[each] for each in positions if each in known}
        left = [each for each in positions if each not in self._times_ms]
        while left and self._reader.left_bytes(AGES_SHARE):
            some: dict[TopicPartition, int] = {}
            size = min(self._batch_bytes.get(at, FIRST_AGE_BYTES) for at, _ in left)
            for at, offset in left:
                if self._batch_bytes.get(at, FIRST_AGE_BYTES) == size:
                    some.setdefault(at, offset)
            found = self._read_once(some, leaders, size)
            left = [(at, offset) for at, offset in left if some.get(at) != offset or at in found]
            left = [(at, offset) for at, offset in left if at not in self._reader.not_readable]
        return self._times_ms

    def _read_once(self, positions: Mapping[TopicPartition, int], leaders: Mapping[TopicPartition, int],
                   size: int) -> set[TopicPartition]:
        """Read the batches at some positions. Return the partitions to read again, with more bytes."""
        again = set()
        for at, row in self._reader.fetch(positions, leaders, size, AGES_SHARE):
            for header, _ in self._reader.batches(at, row, positions[at]):
                self._times_ms[at, positions[at]] = (header.max_timestamp_ms if header.is_log_append_time
                                                     else header.base_timestamp_ms)
                break
            else:
                if size < MOST_AGE_BYTES:
                    self._batch_bytes[at] = size * AGE_GROWTH
                    again.add(at)
        return again


class RecordCounts:
    """The counts of the records that read_committed consumers get, in the partitions with transactions."""

    def __init__(self, reader: BatchReader):
        self._reader = reader
        self._counts: dict[TopicPartition, PartitionCount] = {}
        self.with_markers: set[TopicPartition] = set()
        """The partitions in which a marker was seen."""
        self._turn = 0

    def read(self, positions: Mapping[TopicPartition, Sequence[int]], ends: Mapping[TopicPartition, PartitionEnds],
             leaders: Mapping[TopicPartition, int]) -> None:
        """Continue to count between the positions and the last stable offset of each partition, while bytes are left.

        The positions of a partition are in ascending order.
        """
        self._counts = {at: self._counts.get(at) or PartitionCount() for at in positions}
        most_gaps = min(MOST_GAPS, max(MOST_GAPS_IN_ALL // max(len(positions), 1), 1))
        idle = dict.fromkeys(positions, 0)
        while self._reader.left_bytes():
            wanted = {at: offset for at in self._in_turn(positions, idle)
                      if idle[at] < MOST_IDLE and at not in self._reader.not_readable
                      and (offset := self._counts[at].next_offset(positions[at], ends[at].last_stable_offset,
                                                                  most_gaps)) is not None}
            if not wanted:
                return
            for at in wanted:
                idle[at] += 1
            for at, row in self._reader.fetch(wanted, leaders, COUNTED_BYTES):
                if self._count(at, row, wanted[at]):
                    idle[at] = 0

    def bounds(self, at: TopicPartition, position: int, last_stable_offset: int) -> RecordBounds:
        """Return the bounds of the records from `position` to below the last stable offset."""
        if at in self._counts:
            return self._counts[at].bounds(position, last_stable_offset)
        return RecordBounds(0, max(last_stable_offset - position, 0))

    def _in_turn(self, positions: Collection[TopicPartition],
                 idle: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the partitions in the order of a request. Those that got no batch before come first, and the others
        take turns: only the first partition of a request is sure to get a batch.
        """
        order = list(positions)
        self._turn += 1
        start = self._turn % len(order) if order else 0
        return sorted(order[start:] + order[:start], key=lambda at: -idle[at])

    def _count(self, at: TopicPartition, row: Any, position: int) -> bool:
        """Count the batches of an answer. Return whether there were any."""
        count, has_batches = self._counts[at], False
        aborts = AbortFilter([(each.producer_id, each.first_offset) for each in row.aborted_transactions or ()])
        try:
            for header, batch in self._reader.batches(at, row, position):
                count.add(header, batch, aborts.admits(header, batch))
                has_batches = True
                if header.is_control:
                    self.with_markers.add(at)
        except CorruptBatchError:
            self._reader.not_readable.add(at)
        return has_batches
