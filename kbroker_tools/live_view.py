"""The view of a live cluster of Kafka or kbroker, read over the network."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from kbroker.client.admin import EARLIEST, LATEST, Admin, IsolationLevel
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.clock import Clock
from kbroker.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.protocol import messages
from kbroker.protocol.codec import decode_prefix
from kbroker.protocol.plan import Message
from kbroker.record.batch import BatchHeader
from kbroker_tools.view import (
    GroupInfo,
    GroupMember,
    GroupOffset,
    PartitionInfo,
    PartitionOffsets,
    ProducerInfo,
    ShareOffset,
    StreamsGroupInfo,
    StreamsMemberInfo,
    SubtopologyInfo,
    TopicInfo,
    TransactionInfo,
    TransactionListing,
)

DEAD = 'Dead'


class LiveView:
    """The `view.View` of a cluster. Raises KafkaError, and ClientError (an OSError) for network failures."""

    is_live = True

    def __init__(self, config: ClientConfig, clock: Clock | None = None):
        self.place = ','.join(f'[{host}]:{port}' if ':' in host else f'{host}:{port}'
                              for host, port in config.bootstrap)
        self.cluster = Cluster(config)
        self.admin = Admin(self.cluster)
        self._clock = clock or Clock()

    @property
    def bootstrap_server(self) -> str:
        return self.place

    def close(self) -> None:
        self.cluster.close()

    def now_ms(self) -> int:
        """Return this machine's time: the protocol has no request for a broker's clock."""
        return self._clock.wall_ms()

    # ---- topics and partitions

    def topics(self) -> dict[str, TopicInfo]:
        found = self.cluster.retrying(self.cluster.topics, 'listing topics')
        return {name: TopicInfo(name, topic.topic_id, topic.is_internal, tuple(
            PartitionInfo(name, row.partition, row.leader_id, row.replicas, row.in_sync_replicas)
            for row in topic.partitions.values())) for name, topic in found.items()}

    def partition_offsets(self, topic: str, partition: int) -> PartitionOffsets:
        """Return the offsets from three requests, lower bounds first, so that no offset exceeds its upper bound."""
        at = (topic, partition)
        start = self.admin.list_offsets({at: EARLIEST})[at].offset
        last_stable = self.admin.list_offsets({at: LATEST}, IsolationLevel.READ_COMMITTED)[at].offset
        high_watermark = self.admin.list_offsets({at: LATEST})[at].offset
        return PartitionOffsets(start, high_watermark, last_stable)

    def producers(self, topic: str, partition: int) -> list[ProducerInfo]:
        return self.producers_of([(topic, partition)])[topic, partition]

    def producers_of(self, partitions: Collection[tuple[str, int]],
                     broker_id: int | None = None) -> dict[tuple[str, int], list[ProducerInfo]]:
        """Return the producers of many partitions, from their leaders or from the replicas on one broker."""
        found = self.admin.describe_producers(partitions, broker_id)
        return {at: [ProducerInfo(row.producer_id, row.producer_epoch, row.last_sequence, row.last_timestamp,
                                  row.coordinator_epoch,
                                  None if row.current_txn_start_offset < 0 else row.current_txn_start_offset)
                     for row in rows] for at, rows in found.items()}

    def batches(self, topic: str, partition: int, start_offset: int = 0,
                end_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview]]:
        from kbroker.client.fetching import fetch_batches
        return fetch_batches(self.cluster, topic, partition, start_offset, end_offset)

    # ---- transactions

    def transactions(self) -> list[TransactionListing]:
        return [TransactionListing(row.transactional_id, node_id, row.producer_id, row.transaction_state)
                for node_id, row in self.admin.list_transactions()]

    def transaction(self, transactional_id: str) -> TransactionInfo | None:
        return self.transactions_of([transactional_id]).get(transactional_id)

    def transactions_of(self, transactional_ids: Collection[str]) -> dict[str, TransactionInfo]:
        known = {}
        for transactional_id, found in self.admin.describe_transactions(transactional_ids).items():
            if not isinstance(found, KafkaError):
                known[transactional_id] = _transaction_info(*found)
            elif found.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise found
        return known

    def partitions_of(self, transactional_id: str) -> list[tuple[str, int]]:
        """Return the partitions of the id's transaction, in its coordinator's order."""
        found = self.admin.describe_transactions([transactional_id])[transactional_id]
        if isinstance(found, KafkaError):
            raise found
        return [(topic.topic, partition) for topic in found[1].topics for partition in topic.partitions]

    # ---- groups

    def groups(self) -> list[str]:
        return sorted({row.group_id for _, row in self.admin.list_groups()})

    def group(self, group_id: str) -> GroupInfo | None:
        """Return a classic, consumer or share group. Groups of other types have only their list entry."""
        return (self._classic_group(group_id) or self._consumer_group(group_id) or self._share_group(group_id)
                or self._listed_group(group_id))

    def listed_groups(self) -> list[GroupInfo]:
        return [GroupInfo(row.group_id, row.group_state, row.protocol_type, '', node_id, ())
                for node_id, row in self.admin.list_groups()]

    def group_offsets(self, group_id: str) -> list[GroupOffset]:
        return [GroupOffset(topic, partition, found.offset, found.leader_epoch, found.metadata)
                for (topic, partition), found in sorted(self.admin.list_group_offsets(group_id).items())]

    def _classic_group(self, group_id: str) -> GroupInfo | None:
        found = _unless_missing(self.admin.describe_classic_groups([group_id])[group_id])
        if found is None or found[1].group_state == DEAD:
            return None
        node_id, row = found
        is_consumer = row.protocol_type == 'consumer'
        return GroupInfo(group_id, row.group_state, row.protocol_type, row.protocol_data, node_id, tuple(
            GroupMember(member.member_id, member.group_instance_id, member.client_id, member.client_host,
                        _assignment(member.member_assignment) if is_consumer else ())
            for member in row.members))

    def share_offsets(self, group_id: str) -> list[ShareOffset]:
        return [ShareOffset(topic, row.partition_index, None if row.start_offset < 0 else row.leader_epoch,
                            None if row.start_offset < 0 else row.start_offset, None if row.lag < 0 else row.lag)
                for (topic, _), row in sorted(self.admin.list_share_group_offsets(group_id).items())]

    def streams_group(self, group_id: str) -> StreamsGroupInfo | None:
        found = _if_served(self.admin.describe_streams_groups, group_id)
        if found is None:
            return None
        node_id, row = found
        parts = () if row.topology is None else row.topology.subtopologies or ()
        return StreamsGroupInfo(
            group_id, row.group_state, node_id, row.group_epoch, row.assignment_epoch,
            tuple(SubtopologyInfo(
                part.subtopology_id, tuple(part.source_topics), _names(part.repartition_source_topics),
                _names(part.state_changelog_topics)) for part in parts),
            tuple(StreamsMemberInfo(
                member.member_id, member.process_id, member.client_id, member.client_host, member.member_epoch,
                member.topology_epoch, member.is_classic, _tasks(member.assignment), _tasks(member.target_assignment))
                for member in row.members))

    def _share_group(self, group_id: str) -> GroupInfo | None:
        found = _if_served(self.admin.describe_share_groups, group_id)
        if found is None:
            return None
        node_id, row = found
        return GroupInfo(group_id, row.group_state, 'share', row.assignor_name, node_id, tuple(
            GroupMember(member.member_id, None, member.client_id, member.client_host, _partitions(member.assignment),
                        member.member_epoch)
            for member in row.members), row.group_epoch, row.assignment_epoch)

    def _consumer_group(self, group_id: str) -> GroupInfo | None:
        found = _if_served(self.admin.describe_consumer_groups, group_id)
        if found is None:
            return None
        node_id, row = found
        return GroupInfo(group_id, row.group_state, 'consumer', row.assignor_name, node_id, tuple(
            GroupMember(member.member_id, member.instance_id, member.client_id, member.client_host,
                        _partitions(member.assignment), member.member_epoch, _partitions(member.target_assignment))
            for member in row.members), row.group_epoch, row.assignment_epoch)

    def _listed_group(self, group_id: str) -> GroupInfo | None:
        return next((group for group in self.listed_groups() if group.group_id == group_id), None)


def _if_served(describe: Callable[[list[str]], dict[str, Any]], group_id: str) -> tuple[int, Message] | None:
    """Return a described group. None if it does not exist, or if the broker does not serve groups of this type."""
    try:
        return _unless_missing(describe([group_id])[group_id])
    except KafkaError as error:
        if error.code == ErrorCode.UNSUPPORTED_VERSION:
            return None
        raise


def _unless_missing(found: tuple[int, Message] | KafkaError) -> tuple[int, Message] | None:
    if not isinstance(found, KafkaError):
        return found
    if found.code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    raise found


def _names(topics: Iterable[Any]) -> tuple[str, ...]:
    return tuple(topic.name for topic in topics)


def _tasks(assignment: Any) -> dict[str, dict[str, list[int]]]:
    return {role: {tasks.subtopology_id: sorted(tasks.partitions) for tasks in getattr(assignment, f'{role}_tasks')}
            for role in ('active', 'standby', 'warmup')}


def _partitions(assignment: Any) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((topic.topic_name, partition) for topic in assignment.topic_partitions
                        for partition in topic.partitions))


def _assignment(data: bytes) -> tuple[tuple[str, int], ...]:
    """Return the partitions of a member's assignment: none before its first one, or if the format is another."""
    if len(data) < 2:
        return ()
    latest = messages.ConsumerProtocolAssignment.versions[1]
    try:
        # A newer version only appends fields (KIP-429).
        found, _ = decode_prefix(messages.ConsumerProtocolAssignment, data, min(int.from_bytes(data[:2]), latest), 2)
    except ProtocolError:
        return ()
    return tuple(sorted((topic.topic, partition) for topic in found.assigned_partitions
                        for partition in topic.partitions))


def _transaction_info(node_id: int, row: Any) -> TransactionInfo:
    start_ms = row.transaction_start_time_ms
    return TransactionInfo(
        row.transactional_id, node_id, row.producer_id, row.producer_epoch, row.transaction_state,
        row.transaction_timeout_ms, None if start_ms < 0 else start_ms,
        frozenset((topic.topic, partition) for topic in row.topics for partition in topic.partitions))
