"""The state of the coordinators, replayed from the batches of their topics without a running coordinator.

A row that cannot be read is skipped with a warning, so that one damaged row does not hide the remaining rows.
"""
from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kbroker.base.errors import CorruptLogError, KafkaError, ProtocolError
from kbroker.base.long_work import run_to_end
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.descriptions import GroupInfo, GroupMemberInfo, StreamsGroupInfo
from kbroker.group.offsets.table import OffsetTable
from kbroker.group.records import GroupRow, OffsetRow, read_row
from kbroker.group.share.rows import ShareKey, ShareState
from kbroker.group.share.rows import read_row as read_share_row
from kbroker.protocol.consumer_protocol import assigned_partitions
from kbroker.protocol.messages import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    GroupMetadataKey,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMetadataKey,
    TransactionLogKey,
)
from kbroker.protocol.rows import RowError, encode_row_key
from kbroker.record.batch import BatchHeader
from kbroker.record.control import ControlType, read_end_txn_marker
from kbroker.record.records import Record, decode_records
from kbroker.transaction.state import TransactionRow
from kbroker.transaction.state_log import decode_row
from kbroker_tools.base.view import GroupOffset
from kbroker_tools.rows.streams_groups import StreamsGroups

Batches = Iterable[tuple[BatchHeader, memoryview]]

CONSUMER_PROTOCOL_TYPE = 'consumer'
SHARE_PROTOCOL_TYPE, SHARE_ASSIGNOR = 'share', 'simple'
STABLE_MEMBER = 0
"""The state of a member that has no partition to revoke and does not wait for a partition."""

logger = logging.getLogger(__name__)


def replay_transactions(batches: Batches, only: str | None = None) -> dict[str, TransactionRow]:
    """Return {transactional id: the last row}. Deleted ids are omitted. If `only` is given, all other ids are omitted
    too."""
    found: dict[str, TransactionRow] = {}
    for _, transactional_id, row in transaction_rows(batches, only):
        if row is None:
            found.pop(transactional_id, None)
        else:
            found[transactional_id] = row
    return found


def transaction_rows(batches: Batches, only: str | None = None) -> Iterator[tuple[Record, str, TransactionRow | None]]:
    """Yield (record, transactional id, row) in log order. If `only` is given, yield only the rows of this id. The row
    of a tombstone is None."""
    wanted = None if only is None else encode_row_key(TransactionLogKey(transactional_id=only))
    for record in _records(batches):
        if wanted is None or record.key == wanted:
            try:
                yield record, *decode_row(record.key, record.value)
            except RowError as error:
                _skip(record, error)


def replay_groups(batches: Batches, only: str | None = None) -> GroupState:
    """Return the state that the batches of one `__consumer_offsets` partition describe. If `only` is given, the state
    has only this group."""
    state = GroupState(only)
    for header, batch in batches:
        try:
            state.replay(header, batch)
        except (KafkaError, ProtocolError) as error:
            logger.warning('batch at offset %d: skipped, %s', header.base_offset, error)
    return state


def replay_share_states(batches: Batches, group_id: str | None, states: dict[ShareKey, ShareState]) -> None:
    """Update `states`, the states of share partitions, from the rows of one partition of `__share_group_state`. If
    `group_id` is not None, only rows of this group count."""
    for record in _records(batches):
        try:
            found = read_share_row(states, record)
        except RowError as error:
            _skip(record, error)
            continue
        if found is None or group_id not in (None, found[0].group_id):
            continue
        key, state = found
        if state is None:
            states.pop(key, None)
        else:
            states[key] = state


def _records(batches: Batches) -> Iterator[Record]:
    for header, batch in batches:
        if not header.is_control:
            try:
                yield from decode_records(batch)
            except (KafkaError, ProtocolError) as error:
                logger.warning('batch at offset %d: skipped, %s', header.base_offset, error)


def _skip(record: Record, error: Exception) -> None:
    logger.warning('record at offset %d: skipped, %s', record.offset, error)


@dataclass
class _Group:
    """A group whose assignment the broker computes. Its state comes from its rows."""

    epoch: int = 0
    assignment_epoch: int = 0
    members: dict[str, Any] = field(default_factory=dict)
    assignments: dict[str, Any] = field(default_factory=dict)

    def put(self, attribute: str, key: Any, value: Any) -> None:
        """Store the content of a row in the attribute of this object. A value of None is a tombstone and resets the
        attribute."""
        held = getattr(self, attribute)
        if isinstance(held, int):
            setattr(self, attribute, 0 if value is None else getattr(value, attribute))
        elif not isinstance(held, dict):
            setattr(self, attribute, value)
        elif value is None:
            held.pop(key.member_id, None)
        else:
            held[key.member_id] = value


@dataclass
class _ConsumerGroup(_Group):
    """A group of the consumer protocol (KIP-848)."""

    targets: dict[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """Return the state of the group, by Kafka's rule.

        The group is Assigning while the target assignment is older than the group's epoch. Then it is Reconciling until
        every member has reached its target.
        """
        if not self.members:
            return 'Empty'
        if self.epoch > self.assignment_epoch:
            return 'Assigning'
        if all((current := self.assignments.get(member_id)) is not None and current.state == STABLE_MEMBER
               and current.member_epoch == self.assignment_epoch for member_id in self.members):
            return 'Stable'
        return 'Reconciling'


@dataclass
class _ShareGroup(_Group):
    """A share group (KIP-932)."""

    partitions: ShareGroupStatePartitionMetadataValue | None = None

    @property
    def state(self) -> str:
        return 'Stable' if self.members else 'Empty'


_CONSUMER_ROWS: dict[type, str] = {
    ConsumerGroupMetadataKey: 'epoch', ConsumerGroupTargetAssignmentMetadataKey: 'assignment_epoch',
    ConsumerGroupMemberMetadataKey: 'members', ConsumerGroupCurrentMemberAssignmentKey: 'assignments',
    ConsumerGroupTargetAssignmentMemberKey: 'targets'}
_SHARE_ROWS: dict[type, str] = {
    ShareGroupMetadataKey: 'epoch', ShareGroupTargetAssignmentMetadataKey: 'assignment_epoch',
    ShareGroupMemberMetadataKey: 'members', ShareGroupCurrentMemberAssignmentKey: 'assignments',
    ShareGroupStatePartitionMetadataKey: 'partitions'}
"""Maps the key class of each row to the attribute for the content of the row. The row with the epoch of a group
represents the group itself."""


class GroupState:
    """The groups and offsets in one partition of `__consumer_offsets`, up to the last batch that was replayed."""

    def __init__(self, only: str | None = None):
        self._only = only
        self._offsets = OffsetTable()
        self._classic: dict[str, Any] = {}
        self._consumer: dict[str, _ConsumerGroup] = {}
        self._share: dict[str, _ShareGroup] = {}
        self._streams = StreamsGroups()

    def replay(self, header: BatchHeader, batch: memoryview) -> None:
        """Replay one batch. Offsets in a transaction are pending until the marker of the transaction is replayed.

        Raise KafkaError or ProtocolError if the batch cannot be read.
        """
        if header.is_control:
            if header.is_transactional and header.records_count:
                control_type = read_end_txn_marker(batch).control_type
                applying = self._offsets.end_transaction(header.producer_id, control_type is ControlType.COMMIT)
                if applying is not None:
                    run_to_end(applying)
            return
        for record in decode_records(batch):
            try:
                row = read_row(record.key or b'', record.value, record.offset)
                if isinstance(row, OffsetRow):
                    self._replay_offset(header, row)
                elif isinstance(row, GroupRow):
                    self._replay_group(row.key, row.value)
            except CorruptLogError as error:
                _skip(record, error)

    def _replay_offset(self, header: BatchHeader, row: OffsetRow) -> None:
        if self._only not in (None, row.key.group_id):
            return
        if row.committed is None:
            self._offsets.forget(row.key)
        elif header.is_transactional:
            self._offsets.add_pending(header.producer_id, row.key, row.committed)
        else:
            self._offsets.commit(row.key, row.committed)

    def _replay_group(self, key: Any, value: Any) -> None:
        """Replay one row of a group."""
        if isinstance(key, GroupMetadataKey):
            if value is None:
                self._classic.pop(key.group, None)
            elif self._only in (None, key.group):
                self._classic[key.group] = value
        elif self._only not in (None, key.group_id):
            return
        elif (attribute := _CONSUMER_ROWS.get(type(key))) is not None:
            _replay(self._consumer, _ConsumerGroup, attribute, key, value)
        elif (attribute := _SHARE_ROWS.get(type(key))) is not None:
            _replay(self._share, _ShareGroup, attribute, key, value)
        elif self._streams.has_row(key):
            self._streams.replay(key, value)

    # ---- queries ----

    def group_ids(self) -> set[str]:
        return (self._classic.keys() | self._consumer.keys() | self._share.keys() | self._streams.group_ids()
                | self._offsets.group_ids())

    def streams_group(self, group_id: str, coordinator_id: int) -> StreamsGroupInfo | None:
        return self._streams.streams_group(group_id, coordinator_id)

    def share_partitions(self, group_id: str) -> list[tuple[bytes, str, int]]:
        """Return (topic id, topic, partition) of each partition from which a share group has begun to read."""
        group = self._share.get(group_id)
        if group is None or group.partitions is None:
            return []
        return [(topic.topic_id, topic.topic_name, partition) for topic in group.partitions.initialized_topics
                for partition in topic.partitions]

    def offsets(self, group_id: str) -> list[GroupOffset]:
        """Return the committed offsets of a group, sorted by topic and partition."""
        return [GroupOffset(key.topic, key.partition, committed.offset, committed.leader_epoch, committed.metadata)
                for key in sorted(self._offsets.committed_keys(group_id))
                if (committed := self._offsets.committed(key)) is not None]

    def group(self, group_id: str, coordinator_id: int,
              topic_name: Callable[[bytes], str | None]) -> GroupInfo | None:
        """Return the group, or None if no row has its id. If `topic_name` does not know a topic, the topic's id
        replaces its name."""
        if group_id in self._classic:
            return _classic_group(group_id, self._classic[group_id], coordinator_id)
        if group_id in self._consumer:
            return _consumer_group(group_id, self._consumer[group_id], coordinator_id, topic_name)
        if group_id in self._share:
            return _share_group(group_id, self._share[group_id], coordinator_id, topic_name)
        if group_id in self._streams.group_ids():
            return self._streams.group(group_id, coordinator_id)
        if group_id in self._offsets.group_ids():
            return GroupInfo(group_id, 'Empty', '', '', coordinator_id, ())
        return None


def _replay(groups: dict[str, Any], group_class: Callable[[], _Group], attribute: str, key: Any, value: Any) -> None:
    """Replay a row of a group. A tombstone of the group's own row deletes the group."""
    if value is None and (attribute == 'epoch' or key.group_id not in groups):
        groups.pop(key.group_id, None)
    else:
        groups.setdefault(key.group_id, group_class()).put(attribute, key, value)


def _classic_group(group_id: str, value: Any, coordinator_id: int) -> GroupInfo:
    members = tuple(
        GroupMemberInfo(
            member.member_id, member.group_instance_id, member.client_id, member.client_host,
            _classic_assignment(member.assignment) if value.protocol_type == CONSUMER_PROTOCOL_TYPE else ())
        for member in value.members)
    return GroupInfo(group_id, 'Stable' if members else 'Empty', value.protocol_type, value.protocol or '',
                     coordinator_id, members)


def _classic_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions in a member's assignment. If the assignment is damaged, log a warning and return no
    partitions."""
    try:
        return tuple(sorted(assigned_partitions(data)))
    except ProtocolError as error:
        logger.warning('skipped an assignment: %s', error)
        return ()


def _named(topics: Iterable[Any], topic_name: Callable[[bytes], str | None]) -> tuple[TopicPartition, ...]:
    return tuple(sorted((topic_name(topic.topic_id) or topic.topic_id.hex(), partition)
                        for topic in topics for partition in topic.partitions))


def _share_group(group_id: str, group: _ShareGroup, coordinator_id: int,
                 topic_name: Callable[[bytes], str | None]) -> GroupInfo:
    members = []
    for member_id, member in group.members.items():
        current = group.assignments.get(member_id)
        members.append(GroupMemberInfo(
            member_id, None, member.client_id, member.client_host,
            _named(current.assigned_partitions if current is not None else (), topic_name),
            current.member_epoch if current is not None else 0))
    return GroupInfo(group_id, group.state, SHARE_PROTOCOL_TYPE, SHARE_ASSIGNOR, coordinator_id, tuple(members),
                     group.epoch, group.assignment_epoch)


def _consumer_group(group_id: str, group: _ConsumerGroup, coordinator_id: int,
                    topic_name: Callable[[bytes], str | None]) -> GroupInfo:
    members = []
    for member_id, member in group.members.items():
        current, target = group.assignments.get(member_id), group.targets.get(member_id)
        members.append(GroupMemberInfo(
            member_id, member.instance_id, member.client_id, member.client_host,
            _named(current.assigned_partitions if current is not None else (), topic_name),
            current.member_epoch if current is not None else 0,
            _named(target.topic_partitions if target is not None else (), topic_name)))
    # The broker uses the assignor that most members name. If no member names an assignor, the broker chooses one, and
    # the rows do not show its choice.
    votes = Counter(member.server_assignor for member in group.members.values() if member.server_assignor)
    assignor = max(votes, key=votes.__getitem__, default='')
    return GroupInfo(group_id, group.state, CONSUMER_PROTOCOL_TYPE, assignor, coordinator_id, tuple(members),
                     group.epoch, group.assignment_epoch)
