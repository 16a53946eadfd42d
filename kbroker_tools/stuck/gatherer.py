"""Gathers what `stuck.judge` reasons over: from the coordinator, the partition's log and `__transaction_state`."""
from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode, KafkaError
from kbroker.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker.record.batch import BatchHeader
from kbroker.record.control import ControlType, read_end_txn_marker
from kbroker_tools.stuck.facts import (
    DECIDED_STATES,
    EXPIRY_INTERVAL_MS,
    Facts,
    HeldGroup,
    LogEvidence,
    Marker,
    PastRow,
    StateLog,
    Writer,
)
from kbroker_tools.view import (
    GroupInfo,
    GroupMember,
    GroupOffset,
    PartitionOffsets,
    ProducerInfo,
    TopicInfo,
    TransactionInfo,
    TransactionListing,
    View,
)

if TYPE_CHECKING:
    from kbroker.transaction.state import TransactionRow
    from kbroker_tools.rows.transaction_rows import StoredRow

TopicPartition = tuple[str, int]

LOOK_BACK_OFFSETS = 100_000
"""How far before a transaction its producer's last marker is looked for."""
LOOK_AHEAD_OFFSETS = 100_000
"""How far into a transaction its records are counted."""
GLANCES, PAUSE_S = 50, 0.02
"""How often, and with what pauses, a partition that moves is looked at: in all for longer than a flush takes."""
PAST_ROWS = 1000
"""How many of an id's last rows are kept."""
OTHER_PARTITIONS = 100
"""How many other partitions of a decided transaction are asked whether they have its marker."""


class Gatherer:
    """What is asked of the whole cluster is asked once, for as many partitions as are looked at."""

    def __init__(self, view: View, command: str,
                 expiry_interval_ms: Callable[[int], int | None] = lambda node_id: None,
                 sleep: Callable[[float], None] = time.sleep):
        """`command` is how a command line for the same cluster begins; the interval is asked of the coordinator."""
        self._view = view
        self._command = command
        self._expiry_interval_ms = expiry_interval_ms
        self._sleep = sleep

    def facts(self, topic: str, partition: int) -> Facts:
        """KafkaError for a partition that is not there or cannot be read.

        A partition may move while it is looked at, and is looked at until what was seen fits together: the same
        transaction is first both before and after the coordinator was asked (whose word for its end comes after the
        marker), or the last stable offset has come to where the high watermark was, so that nothing is held.
        """
        first: PartitionOffsets | None = None
        for glance in range(GLANCES):
            if glance:
                self.forget()
                self._sleep(PAUSE_S)
            holders = self._holders(topic, partition)
            transaction = self._transaction_of(holders[0].producer_id) if holders else None
            offsets = self._view.partition_offsets(topic, partition)
            first = first or offsets
            if offsets.last_stable_offset >= first.high_watermark:
                return self._bare(topic, partition, replace(first, last_stable_offset=first.high_watermark))
            if holders and _same_transaction(holders, self._holders(topic, partition)):
                log = self._log_evidence(topic, partition, holders[0], offsets)
                if log is None or not log.is_ended:
                    return self._whole(self._bare(topic, partition, offsets), holders, transaction, log)
        return self._bare(topic, partition, offsets)

    def _bare(self, topic: str, partition: int, offsets: PartitionOffsets) -> Facts:
        return Facts(topic, partition, self._view.now_ms(), offsets, self._view.is_live, command=self._command)

    def _whole(self, facts: Facts, holders: list[ProducerInfo], transaction: TransactionInfo | None,
               log: LogEvidence | None) -> Facts:
        """With all that concerns the transaction that holds the partition, the first of `holders`."""
        at, holder = (facts.topic, facts.partition), holders[0]
        interval_ms = self._expiry_interval_ms(transaction.coordinator_id) if transaction else None
        return replace(
            facts, holder=holder, behind=tuple(holders[1:]), transaction=transaction, log=log,
            state_log=self._state_log(holder.producer_id, transaction),
            marked_elsewhere=self._marked_elsewhere(at, transaction),
            groups=tuple(self._groups_at(at, facts.offsets.high_watermark)),
            unread_groups=tuple(group_id for group_id, found in self._group_offsets.items() if found is None),
            writers=self._writers(holder.producer_id, at, transaction),
            expiry_interval_ms=interval_ms or EXPIRY_INTERVAL_MS)

    def forget(self) -> None:
        """Ask the cluster anew."""
        for name in ('topics', '_transactions', '_group_offsets', '_state_logs', '_known_writers'):
            self.__dict__.pop(name, None)

    # -- the coordinator

    @cached_property
    def topics(self) -> dict[str, TopicInfo]:
        return self._view.topics()

    @cached_property
    def _transactions(self) -> dict[int, TransactionListing]:
        return {listing.producer_id: listing for listing in self._view.transactions()}

    def _transaction_of(self, producer_id: int) -> TransactionInfo | None:
        """What the coordinator says now. A list that was kept is asked for anew before it is believed to have none."""
        for _ in range(2):
            listing = self._transactions.get(producer_id)
            info = self._view.transaction(listing.transactional_id) if listing else None
            if info is not None and info.producer_id == producer_id:
                return info
            self.__dict__.pop('_transactions')
        return None

    @cached_property
    def _is_state_here(self) -> bool:
        from kbroker_tools.rows.transaction_rows import is_wholly_here
        return is_wholly_here(self._view)

    @cached_property
    def _state_logs(self) -> dict[tuple[int, TransactionInfo | None], StateLog]:
        return {}

    def _state_log(self, producer_id: int, transaction: TransactionInfo | None) -> StateLog:
        """Read once for all partitions that a transaction holds."""
        key = producer_id, transaction
        if key not in self._state_logs:
            self._state_logs[key] = self._read_state_log(producer_id, transaction)
        return self._state_logs[key]

    def _read_state_log(self, producer_id: int, transaction: TransactionInfo | None) -> StateLog:
        """The rows of the id that has, or had, the producer id."""
        from kbroker_tools.rows.transaction_rows import stored_rows
        wanted = transaction.transactional_id if transaction else None
        past: dict[str, deque[PastRow]] = {wanted: deque(maxlen=PAST_ROWS)} if wanted else {}
        is_readable, has_rows, leader_epoch = wanted is not None or self._is_state_here, False, -1
        for partition in self._state_partitions(wanted):
            try:
                for stored in stored_rows(self._view, [partition]):
                    has_rows = True
                    if stored.transactional_id in past or (wanted is None and _names(stored.row, producer_id)):
                        past.setdefault(stored.transactional_id, deque(maxlen=PAST_ROWS)).append(_past(stored))
                        leader_epoch = max(leader_epoch, stored.leader_epoch)
            except KafkaError:
                is_readable = False
        # Without the coordinator's word, the id that had the producer id last is the one.
        rows = max(past.values(), key=lambda rows: rows[-1].timestamp_ms if rows else 0, default=())
        return StateLog(is_readable, has_rows, leader_epoch, tuple(rows))

    def _state_partitions(self, transactional_id: str | None) -> list[int]:
        """Where the rows of the id are, or may be. A directory need not say how many partitions there are in all."""
        partitions = _partitions_of(self.topics.get(TRANSACTION_STATE))
        if transactional_id is None or not self._view.is_live or not partitions:
            return partitions
        from kbroker.topics.partitioner import partition_for
        return [partition_for(transactional_id, len(partitions))]

    def _marked_elsewhere(self, at: TopicPartition,
                          transaction: TransactionInfo | None) -> tuple[TopicPartition, ...]:
        if transaction is None or transaction.state not in DECIDED_STATES:
            return ()
        others = sorted(transaction.partitions - {at})[:OTHER_PARTITIONS]
        return tuple(other for other in others if self._is_marked(*other, transaction))

    def _is_marked(self, topic: str, partition: int, transaction: TransactionInfo) -> bool:
        try:
            producers = self._view.producers(topic, partition)
        except KafkaError:
            return False
        return any(producer.producer_id == transaction.producer_id and producer.transaction_first_offset is None
                   and producer.producer_epoch >= transaction.producer_epoch and producer.coordinator_epoch >= 0
                   for producer in producers)

    # -- the partition

    def _holders(self, topic: str, partition: int) -> list[ProducerInfo]:
        """Producers with an open transaction, the one that began first at the front."""
        open_ones = [producer for producer in self._view.producers(topic, partition)
                     if producer.transaction_first_offset is not None]
        return sorted(open_ones, key=lambda producer: producer.transaction_first_offset or 0)

    def _log_evidence(self, topic: str, partition: int, holder: ProducerInfo,
                      offsets: PartitionOffsets) -> LogEvidence | None:
        """None if the log may not be read."""
        first_offset = holder.transaction_first_offset
        assert first_offset is not None
        start_offset = max(0, first_offset - LOOK_BACK_OFFSETS)
        end_offset = min(offsets.high_watermark, first_offset + LOOK_AHEAD_OFFSETS)
        marker, first, earlier_epochs, records, is_ended = None, None, set(), 0, False
        try:
            for header, batch in self._view.batches(topic, partition, start_offset, end_offset):
                if header.producer_id != holder.producer_id:
                    continue
                if header.is_control and header.records_count == 0:
                    # What compaction leaves of a marker: its effect is gone, too.
                    continue
                if header.is_control:
                    is_ended = header.base_offset >= first_offset
                    marker = _marker(header, batch)
                elif header.base_offset < first_offset:
                    earlier_epochs.add(header.producer_epoch)
                else:
                    first = first or header
                    records += header.records_count
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise
        if first is None:
            return None
        return LogEvidence(
            first.producer_epoch, first.base_sequence, first.max_timestamp_ms, records,
            end_offset == offsets.high_watermark,
            marker, first.producer_epoch in earlier_epochs, start_offset == offsets.log_start_offset == 0, is_ended)

    # -- the groups

    @cached_property
    def _group_offsets(self) -> dict[str, list[GroupOffset] | None]:
        """None for a group that may not be read, or went away."""
        found: dict[str, list[GroupOffset] | None] = {}
        for group_id in self._view.groups():
            try:
                found[group_id] = self._view.group_offsets(group_id)
            except KafkaError:
                found[group_id] = None
        return found

    def _groups_at(self, at: TopicPartition, high_watermark: int) -> Iterator[HeldGroup]:
        for group_id, offsets in self._group_offsets.items():
            for offset in offsets or ():
                if (offset.topic, offset.partition) == at and offset.offset >= 0:
                    members = tuple(member for member in self._members(group_id) if at in member.assignment)
                    yield HeldGroup(group_id, offset.offset, max(0, high_watermark - offset.offset), members)

    def _members(self, group_id: str) -> tuple[GroupMember, ...]:
        """None of a group that may not be described."""
        try:
            group = self._view.group(group_id)
        except KafkaError:
            return ()
        return group.members if group else ()

    def group_partitions(self, group_id: str) -> list[tuple[str, int]]:
        """What the group reads, and the partition where its offsets are; empty if there is no such group."""
        group: GroupInfo | None = self._view.group(group_id)
        offsets = self._view.group_offsets(group_id)
        if group is None and not offsets:
            return []
        found = {(offset.topic, offset.partition) for offset in offsets}
        found.update(pair for member in (group.members if group else ()) for pair in member.assignment)
        if CONSUMER_OFFSETS in self.topics:
            from kbroker.topics.partitioner import partition_for
            found.add((CONSUMER_OFFSETS, partition_for(group_id, len(self.topics[CONSUMER_OFFSETS].partitions))))
        return sorted((topic, partition) for topic, partition in found
                      if partition in _partitions_of(self.topics.get(topic)))

    @cached_property
    def _known_writers(self) -> dict[tuple[int, int], list[Writer]]:
        """By producer id and partition of `__consumer_offsets`."""
        return {}

    def _writers(self, producer_id: int, at: TopicPartition,
                 transaction: TransactionInfo | None) -> tuple[Writer, ...]:
        """Groups whose offsets the open transaction commits: who reads and writes in one is the producer."""
        partitions = {at, *(transaction.partitions if transaction else ())}
        found: list[Writer] = []
        for index in sorted(index for name, index in partitions if name == CONSUMER_OFFSETS):
            if (producer_id, index) not in self._known_writers:
                self._known_writers[producer_id, index] = [
                    Writer(group_id, self._members(group_id))
                    for group_id in sorted(self._groups_committed_by(producer_id, index))]
            found += self._known_writers[producer_id, index]
        return tuple(found)

    def _groups_committed_by(self, producer_id: int, partition: int) -> set[str]:
        from kbroker.protocol.messages import OffsetCommitKey
        from kbroker.protocol.rows import RowError, decode_row_key
        from kbroker.record.records import decode_records
        found: set[str] = set()
        try:
            first_offset = next((
                holder.transaction_first_offset for holder in self._holders(CONSUMER_OFFSETS, partition)
                if holder.producer_id == producer_id), None)
            if first_offset is None:
                return found
            for header, batch in self._view.batches(CONSUMER_OFFSETS, partition, first_offset):
                if header.producer_id == producer_id and not header.is_control:
                    keys = (decode_row_key(CONSUMER_OFFSETS, record.key or b'') for record in decode_records(batch))
                    found.update(key.group for key in keys if isinstance(key, OffsetCommitKey))
        except (KafkaError, RowError):
            return found
        return found


def _names(row: TransactionRow | None, producer_id: int) -> bool:
    return row is not None and producer_id in (row.producer_id, row.previous_producer_id)


def _past(stored: StoredRow) -> PastRow:
    row = stored.row
    if row is None:
        return PastRow(stored.transactional_id, None, stored.timestamp_ms)
    return PastRow(stored.transactional_id, row.state.title, row.last_update_timestamp_ms, row.producer_id,
                   row.producer_epoch, row.partitions, row.bumps_epoch)


def _partitions_of(topic: TopicInfo | None) -> list[int]:
    return [partition.partition for partition in topic.partitions] if topic is not None else []


def _same_transaction(before: list[ProducerInfo], after: list[ProducerInfo]) -> bool:
    def identity(holders: list[ProducerInfo]) -> tuple[int, int | None] | None:
        return (holders[0].producer_id, holders[0].transaction_first_offset) if holders else None
    return identity(before) == identity(after)


def _marker(header: BatchHeader, batch: memoryview) -> Marker:
    marker = read_end_txn_marker(batch)
    return Marker(header.base_offset, header.producer_epoch, marker.control_type is ControlType.COMMIT,
                  header.max_timestamp_ms)
