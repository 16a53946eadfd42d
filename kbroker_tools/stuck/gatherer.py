"""The gathering of facts about a partition. They come from the coordinator, the log of the partition and
`__transaction_state`."""
from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.descriptions import GroupInfo, GroupMemberInfo, ProducerInfo, TransactionInfo, TransactionListing
from kbroker.record.batch import BatchHeader
from kbroker.record.control import ControlType, read_end_txn_marker
from kbroker_tools.base.view import GroupOffset, PartitionOffsets, TopicInfo, View
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

if TYPE_CHECKING:
    from kbroker.transaction.state import TransactionRow
    from kbroker_tools.rows.transaction_rows import StoredRow


LOOK_BACK_OFFSETS = 100_000
"""The number of offsets before the transaction that are searched for the producer's last marker."""
LOOK_AHEAD_OFFSETS = 100_000
"""The most offsets over which the records of one transaction are counted."""
ATTEMPTS, PAUSE_S = 50, 0.02
"""The number of attempts to read a partition without a change in between. All attempts together take longer than a
flush."""
PAST_ROWS = 1000
"""The most rows that are kept for one transactional.id. The last rows are kept."""
OTHER_PARTITIONS = 100
"""The most other partitions of a decided transaction that are searched for its marker."""


class Gatherer:
    """A gatherer of facts about partitions. The state of the cluster is read once and used for all partitions."""

    def __init__(self, view: View, command: str,
                 expiry_interval_ms: Callable[[int], int | None] = lambda node_id: None,
                 sleep: Callable[[float], None] = time.sleep):
        """`command` is the beginning of the command lines in the advice. `expiry_interval_ms` is called with a node id
        and returns the interval of that broker."""
        self._view = view
        self._command = command
        self._expiry_interval_ms = expiry_interval_ms
        self._sleep = sleep

    def facts(self, topic: str, partition: int) -> Facts:
        """Return the facts of one partition. Raise KafkaError if the partition does not exist or cannot be read.

        The partition may change while it is read. The reads are therefore repeated until one of these conditions is
        met:

        - The same transaction is the first open one before and after the request to the coordinator. The coordinator
          reports the end of a transaction only after its marker is written.
        - The last stable offset has reached the first high watermark that was read, so no transaction holds it.
        """
        first: PartitionOffsets | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
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
        """Return `facts` with additional facts about the transaction of the first producer in `holders`."""
        at, holder = (facts.topic, facts.partition), holders[0]
        interval_ms = self._expiry_interval_ms(transaction.coordinator_id) if transaction else None
        return replace(
            facts, holder=holder, behind=tuple(holders[1:]), transaction=transaction, log=log,
            behind_ids=tuple(self._id_of(each.producer_id) for each in holders[1:]),
            state_log=self._state_log(holder.producer_id, transaction),
            marked_elsewhere=self._marked_elsewhere(at, transaction),
            groups=tuple(self._groups_at(at, facts.offsets.high_watermark)),
            unread_groups=tuple(group_id for group_id, found in self._group_offsets.items() if found is None),
            writers=self._writers(holder.producer_id, at, transaction),
            expiry_interval_ms=interval_ms or EXPIRY_INTERVAL_MS)

    def forget(self) -> None:
        """Discard the cached state of the cluster."""
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
        """Return the state of the transaction that the coordinator has for a producer id. If the cached list of
        transactions lacks the producer id, request the list again first."""
        for _ in range(2):
            listing = self._transactions.get(producer_id)
            info = self._view.transaction(listing.transactional_id) if listing else None
            if info is not None and info.producer_id == producer_id:
                return info
            self.__dict__.pop('_transactions')
        return None

    def _id_of(self, producer_id: int) -> str | None:
        listing = self._transactions.get(producer_id)
        return None if listing is None else listing.transactional_id

    @cached_property
    def _has_whole_state(self) -> bool:
        from kbroker_tools.rows.transaction_rows import has_all_partitions
        return has_all_partitions(self._view)

    @cached_property
    def _state_logs(self) -> dict[tuple[int, TransactionInfo | None], StateLog]:
        return {}

    def _state_log(self, producer_id: int, transaction: TransactionInfo | None) -> StateLog:
        """Return the rows about a producer id. They are cached, because a transaction may hold several partitions."""
        key = producer_id, transaction
        if key not in self._state_logs:
            self._state_logs[key] = self._read_state_log(producer_id, transaction)
        return self._state_logs[key]

    def _read_state_log(self, producer_id: int, transaction: TransactionInfo | None) -> StateLog:
        """Read the rows of the transactional.id that has, or has had, the producer id."""
        from kbroker_tools.rows.transaction_rows import stored_rows
        wanted = transaction.transactional_id if transaction else None
        past: dict[str, deque[PastRow]] = {wanted: deque(maxlen=PAST_ROWS)} if wanted else {}
        is_readable, has_rows, leader_epoch = wanted is not None or self._has_whole_state, False, -1
        for partition in self._state_partitions(wanted):
            try:
                for stored in stored_rows(self._view, [partition]):
                    has_rows = True
                    if stored.transactional_id in past or (wanted is None and _names(stored.row, producer_id)):
                        past.setdefault(stored.transactional_id, deque(maxlen=PAST_ROWS)).append(_past(stored))
                        leader_epoch = max(leader_epoch, stored.leader_epoch)
            except KafkaError:
                is_readable = False
        # If the coordinator has no transactional.id with the producer id, use the last one that had it.
        rows = max(past.values(), key=lambda rows: rows[-1].timestamp_ms if rows else 0, default=())
        return StateLog(is_readable, has_rows, leader_epoch, tuple(rows))

    def _state_partitions(self, transactional_id: str | None) -> list[int]:
        """Return the partitions of `__transaction_state` that may have rows of the transactional.id. For a log
        directory, the total number of partitions may be unknown."""
        partitions = _partitions_of(self.topics.get(TRANSACTION_STATE))
        if transactional_id is None or not self._view.is_live or not partitions:
            return partitions
        from kbroker.topics.partitioner import partition_for
        return [partition_for(transactional_id, len(partitions))]

    def _marked_elsewhere(self, at: TopicPartition,
                          transaction: TransactionInfo | None) -> tuple[TopicPartition, ...]:
        if transaction is None or transaction.state not in DECIDED_STATES:
            return ()
        others = sorted(set(transaction.partitions) - {at})[:OTHER_PARTITIONS]
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
        """Return the producers with an open transaction, sorted by the first offset of the transaction."""
        open_ones = [producer for producer in self._view.producers(topic, partition)
                     if producer.transaction_first_offset is not None]
        return sorted(open_ones, key=lambda producer: producer.transaction_first_offset or 0)

    def _log_evidence(self, topic: str, partition: int, holder: ProducerInfo,
                      offsets: PartitionOffsets) -> LogEvidence | None:
        """Return the evidence in the log. Return None if the user may not read the partition."""
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
                    # Compaction has emptied this marker. It does so only after it has removed the records of the
                    # marker's transaction.
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
        """Return {group id: offsets}. The offsets are None if the group was deleted or if the user may not read
        them."""
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
                    # The group may have read further after the high watermark was requested.
                    is_past_end = offset.offset > high_watermark and (
                        offset.offset > self._view.partition_offsets(*at).high_watermark)
                    yield HeldGroup(group_id, offset.offset, max(0, high_watermark - offset.offset), members,
                                    is_past_end)

    def _members(self, group_id: str) -> tuple[GroupMemberInfo, ...]:
        """Return the members of a group. Return () if the user may not describe the group."""
        try:
            group = self._view.group(group_id)
        except KafkaError:
            return ()
        return group.members if group else ()

    def group_partitions(self, group_id: str) -> list[TopicPartition]:
        """Return the partitions that the group reads, and the partition of `__consumer_offsets` with its offsets.
        Return [] if the group does not exist.

        The offsets of a share group are not in `__consumer_offsets`, and no transaction commits them.
        """
        group: GroupInfo | None = self._view.group(group_id)
        is_share = group is not None and group.group_type == 'share'
        found = {(offset.topic, offset.partition) for offset in
                 (self._view.share_offsets(group_id) if is_share else self._view.group_offsets(group_id))}
        if group is None and not found:
            return []
        found.update(pair for member in (group.members if group else ()) for pair in member.assignment)
        if CONSUMER_OFFSETS in self.topics and not is_share:
            from kbroker.topics.partitioner import partition_for
            found.add((CONSUMER_OFFSETS, partition_for(group_id, len(self.topics[CONSUMER_OFFSETS].partitions))))
        return sorted((topic, partition) for topic, partition in found
                      if partition in _partitions_of(self.topics.get(topic)))

    @cached_property
    def _known_writers(self) -> dict[tuple[int, int], list[Writer]]:
        """Return {(producer id, partition of `__consumer_offsets`): writers}."""
        return {}

    def _writers(self, producer_id: int, at: TopicPartition,
                 transaction: TransactionInfo | None) -> tuple[Writer, ...]:
        """Return the groups whose offsets the open transaction commits. The members of these groups are the clients
        that use the producer."""
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
                   row.producer_epoch, row.partitions, row.bumps_epoch,
                   (row.client_producer_id, row.client_producer_epoch) if row.is_kept else None)


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
