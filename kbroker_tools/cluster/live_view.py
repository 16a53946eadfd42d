"""The view of a live cluster of Kafka or kbroker. Its state is read over the network."""
from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import EARLIEST, LATEST, Admin, IsolationLevel
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.descriptions import (
    GroupInfo,
    LogDirectory,
    ProducerInfo,
    ShareOffset,
    StreamsGroupInfo,
    TransactionInfo,
    TransactionListing,
)
from kbroker.client.errors import ClientError, PartitionOffline
from kbroker.protocol.messages import DescribeLogDirsRequest, DescribeProducersRequest
from kbroker.record.batch import BatchHeader
from kbroker_tools.base.render import shell_word
from kbroker_tools.base.view import (
    GroupOffset,
    PartitionInfo,
    PartitionOffsets,
    TopicInfo,
    Unreadable,
    check_brokers,
)

DEAD = 'Dead'
MOST_REASONS = 20
"""The most partitions for which the broker is asked why they are unreadable."""

Described = TypeVar('Described')


class LiveView:
    """The `view.View` of a live cluster. Its methods raise KafkaError, and ClientError (an OSError) if the network
    fails."""

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
        """Return the time of this machine. Kafka's protocol has no request for the time of a broker."""
        return self._clock.wall_ms()

    # ---- topics and partitions

    def topics(self) -> dict[str, TopicInfo]:
        found = self.cluster.retrying(self.cluster.topics, 'listing topics')
        return {name: TopicInfo(name, topic.topic_id, topic.is_internal, tuple(
            PartitionInfo(name, row.partition, row.leader_id, row.replicas, row.in_sync_replicas)
            for row in topic.partitions.values())) for name, topic in found.items()}

    def unreadable(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Unreadable]:
        """Return the partitions that have no leader."""
        found = self.cluster.retrying(lambda: self.cluster.leaderless(partitions), 'finding leaders')
        return reasons_of(self.cluster, found)

    def log_directories(self, partitions: Collection[TopicPartition] | None = None,
                        broker_ids: Collection[int] | None = None) -> list[LogDirectory]:
        if broker_ids is not None:
            self.cluster.retrying(lambda: self.cluster.refresh(()), 'listing brokers')
            check_brokers(self.cluster.nodes, broker_ids)
        return self.admin.describe_log_dirs(partitions, broker_ids)

    def partition_offsets(self, topic: str, partition: int) -> PartitionOffsets:
        return self.partition_offsets_of([(topic, partition)])[topic, partition]

    def partition_offsets_of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionOffsets]:
        """Return the partitions' offsets, from three requests to each leader. Lower bounds are requested first, so that
        no offset exceeds its upper bound."""
        starts = self.admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        stable = self.admin.list_offsets(dict.fromkeys(partitions, LATEST), IsolationLevel.READ_COMMITTED)
        ends = self.admin.list_offsets(dict.fromkeys(partitions, LATEST))
        return {at: PartitionOffsets(starts[at].offset, ends[at].offset, stable[at].offset) for at in partitions}

    def producers(self, topic: str, partition: int) -> list[ProducerInfo]:
        return self.producers_of([(topic, partition)])[topic, partition]

    def producers_of(self, partitions: Collection[TopicPartition],
                     broker_id: int | None = None) -> dict[TopicPartition, list[ProducerInfo]]:
        """Return the producers of many partitions. The request goes to the leaders, or only to the replicas on one
        broker if a broker is named."""
        return self.admin.describe_producers(partitions, broker_id)

    def batches(self, topic: str, partition: int, start_offset: int = 0,
                end_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview]]:
        from kbroker.client.fetching import fetch_batches
        return fetch_batches(self.cluster, topic, partition, start_offset, end_offset)

    def batch_headers(self, topic: str, partition: int, start_offset: int = 0,
                      end_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview | None]]:
        """Yield the headers with the whole batches: Kafka's protocol has no request for headers alone."""
        return self.batches(topic, partition, start_offset, end_offset)

    # ---- transactions

    def transactions(self) -> list[TransactionListing]:
        return self.admin.list_transactions()

    def transaction(self, transactional_id: str) -> TransactionInfo | None:
        return self.transactions_of([transactional_id]).get(transactional_id)

    def transactions_of(self, transactional_ids: Collection[str]) -> dict[str, TransactionInfo]:
        known = {}
        for transactional_id, found in self.admin.describe_transactions(transactional_ids).items():
            if not isinstance(found, KafkaError):
                known[transactional_id] = found
            elif found.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise found
        return known

    # ---- groups

    def groups(self) -> list[str]:
        return sorted({row.group_id for row in self.admin.list_groups()})

    def group(self, group_id: str) -> GroupInfo | None:
        """Return a classic, consumer or share group. For a group of another type, return only the fields of the
        ListGroups response."""
        return (self._classic_group(group_id) or self._consumer_group(group_id) or self._share_group(group_id)
                or self._listed_group(group_id))

    def listed_groups(self) -> list[GroupInfo]:
        return [GroupInfo(row.group_id, row.state, row.protocol_type, '', row.coordinator_id, ())
                for row in self.admin.list_groups()]

    def group_offsets(self, group_id: str) -> list[GroupOffset]:
        return [GroupOffset(topic, partition, found.offset, found.leader_epoch, found.metadata)
                for (topic, partition), found in sorted(self.admin.list_group_offsets(group_id).items())]

    def _classic_group(self, group_id: str) -> GroupInfo | None:
        found = _unless_missing(self.admin.describe_classic_groups([group_id])[group_id])
        return None if found is None or found.state == DEAD else found

    def share_offsets(self, group_id: str) -> list[ShareOffset]:
        return [found for _, found in sorted(self.admin.list_share_group_offsets(group_id).items())]

    def streams_group(self, group_id: str) -> StreamsGroupInfo | None:
        return _if_served(self.admin.describe_streams_groups, group_id)

    def _share_group(self, group_id: str) -> GroupInfo | None:
        return _if_served(self.admin.describe_share_groups, group_id)

    def _consumer_group(self, group_id: str) -> GroupInfo | None:
        return _if_served(self.admin.describe_consumer_groups, group_id)

    def _listed_group(self, group_id: str) -> GroupInfo | None:
        return next((group for group in self.listed_groups() if group.group_id == group_id), None)


def reasons_of(cluster: Cluster, errors: Mapping[TopicPartition, KafkaError]) -> dict[TopicPartition, Unreadable]:
    """Return {partition: the reason why it has no leader}.

    Metadata responses have no reason. A running broker states the reason, with the name of the damaged file, in its
    response to DescribeProducers. Its response to DescribeLogDirs names the directory to check.
    """
    found, directories = {}, dict[int, str | None]()
    for number, (at, error) in enumerate(errors.items()):
        node_id = _running_replica(cluster, at) if isinstance(error, PartitionOffline) else None
        if node_id is None or number >= MOST_REASONS:
            found[at] = Unreadable(str(error))
            continue
        if node_id not in directories:
            directories[node_id] = _log_directory_of(cluster, node_id)
        path = directories[node_id]
        found[at] = Unreadable(
            _reason_at(cluster, node_id, at) or str(error),
            f'kbroker-check {"DIR" if path is None else shell_word(os.path.join(path, f"{at[0]}-{at[1]}"))}',
            f'on the machine of broker {node_id}')
    return found


def _running_replica(cluster: Cluster, at: TopicPartition) -> int | None:
    known = cluster.topics([at[0]])[at[0]].partitions.get(at[1])
    return next((node_id for node_id in known.offline_replicas if node_id in cluster.nodes), None) if known else None


def _reason_at(cluster: Cluster, node_id: int, at: TopicPartition) -> str | None:
    """Return the reason that a broker states. Return None if the broker states no reason or denies the request."""
    topic, partition = at
    try:
        answer = cluster.node(node_id).call(DescribeProducersRequest(
            topics=[DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[partition])]))
    except (KafkaError, ClientError):
        return None
    return next((row.error_message for found in answer.topics for row in found.partitions
                 if row.error_code == ErrorCode.KAFKA_STORAGE_ERROR and row.error_message), None)


def _log_directory_of(cluster: Cluster, node_id: int) -> str | None:
    """Return the log directory of a broker. Return None if the broker has several, or if the user may not describe
    them."""
    try:
        answer = cluster.node(node_id).call(DescribeLogDirsRequest(topics=[]))
    except (KafkaError, ClientError):
        return None
    return answer.results[0].log_dir if len(answer.results) == 1 else None


def _if_served(describe: Callable[[list[str]], dict[str, Described | KafkaError]], group_id: str) -> Described | None:
    """Return a described group. Return None if the group does not exist, or if the broker does not serve groups of this
    type."""
    try:
        return _unless_missing(describe([group_id])[group_id])
    except KafkaError as error:
        if error.code == ErrorCode.UNSUPPORTED_VERSION:
            return None
        raise


def _unless_missing(found: Described | KafkaError) -> Described | None:
    if not isinstance(found, KafkaError):
        return found
    if found.code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    raise found
