"""A log directory that a test writes batch by batch, to create states that only a faulty broker leaves."""
from __future__ import annotations

import pathlib
import time
from collections import defaultdict
from collections.abc import Iterable

from kbroker.base.topic_partition import TopicPartition
from kbroker.group.records import GROUP_VERSION, OFFSET_VERSION
from kbroker.protocol.messages import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from kbroker.protocol.rows import encode_row_key, encode_row_value
from kbroker.record.batch import encode_batch, set_base_offset, set_partition_leader_epoch
from kbroker.record.control import encode_end_txn_marker
from kbroker.transaction.state import TransactionRow, TransactionState
from kbroker.transaction.state_log import encode_row, encode_tombstone

STATE, OFFSETS = ('__transaction_state', 0), ('__consumer_offsets', 0)
MINUTE_MS = 60_000


class HandwrittenDirectory:
    """The partitions of a log directory. `at` is an age in minutes. Each internal topic has one partition."""

    def __init__(self, path: pathlib.Path, *, leader_epoch: int = 0):
        self.path = path
        self.now_ms = time.time_ns() // 1_000_000
        self.leader_epoch = leader_epoch
        self._batches: dict[TopicPartition, list[bytearray]] = defaultdict(list)
        self._ends: dict[TopicPartition, int] = defaultdict(int)
        for place in (STATE, OFFSETS):
            self._batches[place] = []

    def time(self, at: float) -> int:
        return self.now_ms - int(at * MINUTE_MS)

    def data(self, place: TopicPartition, producer: tuple[int, int], at: float, *, sequence: int = 0,
             values: int = 1) -> int:
        """Append transactional records. Return the offset of the first record."""
        records = [(self.time(at), b'key', b'value')] * values
        return self.append(place, encode_batch(records, producer_id=producer[0], producer_epoch=producer[1],
                                               base_sequence=sequence, transactional=True))

    def plain(self, place: TopicPartition, at: float, values: int = 1) -> int:
        return self.append(place, encode_batch([(self.time(at), b'key', b'value')] * values))

    def marker(self, place: TopicPartition, producer: tuple[int, int], at: float, *, commit: bool = False,
               coordinator_epoch: int = 0) -> int:
        return self.append(place, encode_end_txn_marker(
            commit=commit, producer_id=producer[0], producer_epoch=producer[1], coordinator_epoch=coordinator_epoch,
            timestamp_ms=self.time(at)))

    def row(self, transactional_id: str, state: str, producer: tuple[int, int], at: float, *,
            start: float | None = None, partitions: Iterable[TopicPartition] = (), timeout_ms: int = MINUTE_MS,
            previous: int = -1, bumps: bool = True, kept_by: tuple[int, int] = (-1, -1)) -> int:
        """Append a row to `__transaction_state`. `bumps` selects the epoch rules of TV2."""
        row = TransactionRow(
            next(each for each in TransactionState if each.title == state), producer[0], producer[1], timeout_ms,
            self.time(at), -1 if start is None else self.time(start), frozenset(partitions),
            previous_producer_id=previous, client_transaction_version=2 if bumps else 0,
            next_producer_id=kept_by[0], next_producer_epoch=kept_by[1])
        return self._rows(STATE, [encode_row(transactional_id, row, 1)], at)

    def tombstone(self, transactional_id: str, at: float) -> int:
        return self._rows(STATE, [encode_tombstone(transactional_id)], at)

    def group(self, group_id: str, place: TopicPartition, offset: int, *, client_id: str = 'reader-1') -> None:
        """Append the rows of a group with one member and one committed offset."""
        self._rows(OFFSETS, [self.offset_row(group_id, place, offset), (
            encode_row_key(GroupMetadataKey(group=group_id)),
            encode_row_value(GroupMetadataValue(
                protocol_type='consumer', generation=1, protocol='range', leader='m', members=[
                    GroupMetadataValue.MemberMetadata(member_id='m', client_id=client_id, client_host='/10.0.0.7')]),
                GROUP_VERSION))], 1)

    def offset_row(self, group_id: str, place: TopicPartition, offset: int) -> tuple[bytes, bytes]:
        return (encode_row_key(OffsetCommitKey(group=group_id, topic=place[0], partition=place[1])),
                encode_row_value(OffsetCommitValue(offset=offset, commit_timestamp=self.now_ms), OFFSET_VERSION))

    def offsets_in_transaction(self, group_id: str, place: TopicPartition, offset: int, producer: tuple[int, int],
                               at: float) -> int:
        """Append the offset row that a broker appends for TxnOffsetCommit."""
        return self.append(OFFSETS, encode_batch(
            [(self.time(at), *self.offset_row(group_id, place, offset))], producer_id=producer[0],
            producer_epoch=producer[1], base_sequence=0, transactional=True))

    def append(self, place: TopicPartition, batch: bytearray) -> int:
        offset = self._ends[place]
        set_base_offset(batch, offset)
        set_partition_leader_epoch(batch, self.leader_epoch)
        self._batches[place].append(batch)
        self._ends[place] += int.from_bytes(batch[23:27], 'big') + 1
        return offset

    def _rows(self, place: TopicPartition, rows: list[tuple[bytes, bytes | None]], at: float) -> int:
        return self.append(place, encode_batch([(self.time(at), key, value) for key, value in rows]))

    def write(self) -> pathlib.Path:
        for (topic, partition), batches in self._batches.items():
            directory = self.path / f'{topic}-{partition}'
            directory.mkdir(parents=True, exist_ok=True)
            (directory / f'{0:020d}.log').write_bytes(b''.join(batches))
        return self.path
