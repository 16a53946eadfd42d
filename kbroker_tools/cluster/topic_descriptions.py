"""Descriptions of topics, from brokers or from the metadata log on disk."""
from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import Admin
from kbroker.client.admin_requests import ResourceType
from kbroker.client.errors import check
from kbroker.protocol.messages import DescribeTopicPartitionsRequest
from kbroker.settings.rows import usual_texts
from kbroker.settings.table import SETTINGS
from kbroker.settings.table import TOPIC_SETTINGS as TOPIC_ROWS
from kbroker_tools.base.java_order import in_java_order, string_hash
from kbroker_tools.base.view import View
from kbroker_tools.cluster.directory_view import DirectoryView

DEFAULT_CONFIG = 'DEFAULT_CONFIG'
"""The `source` of a setting that has its default value, in Kafka's protocol."""
TOPIC_SETTINGS = sum(setting.topic_name is not None for setting in SETTINGS.values())
MIN_IN_SYNC_REPLICAS = 'min.insync.replicas'


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    partition: int
    leader: int
    """The node id of the leader, or -1 if there is no leader."""
    leader_is_available: bool
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    eligible_leader_replicas: tuple[int, ...] | None
    """Replicas that may become leader although they are not in sync (KIP-966). None if they are unknown."""
    last_known_eligible_leader_replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]
    configs: tuple[tuple[str, str | None], ...]
    """The settings of the topic, and the broker's settings that apply to all topics. Settings with a default value are
    omitted."""
    min_in_sync_replicas: int


def partition_sizes(view: View, topics: Iterable[TopicDescription]) -> dict[TopicPartition, int]:
    """Return {partition: size in bytes} of the leaders' replicas, or of the replicas in a log directory. A partition
    whose replica is not found is missing. Raise KafkaError and OSError if a broker cannot be asked."""
    leaders = {(topic.name, row.partition): row.leader for topic in topics for row in topic.partitions
               if row.leader_is_available or not view.is_live}
    found = view.log_directories(leaders.keys(), set(leaders.values()) if view.is_live else None)
    return {(replica.topic, replica.partition): replica.size_bytes
            for directory in found for replica in directory.replicas if not replica.is_future
            and (not view.is_live or leaders.get((replica.topic, replica.partition)) == directory.broker_id)}


# ---- live

def live_descriptions(admin: Admin, names: Collection[str], partition_limit: int) -> Iterator[TopicDescription]:
    """Yield the descriptions of the named topics. A response has at most `partition_limit` partitions. Raise KafkaError
    if a topic does not exist."""
    configs = admin.describe_configs([(ResourceType.TOPIC, name) for name in names])
    try:
        partitions = _described_in_pages(admin, names, partition_limit)
    except KafkaError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        partitions = _described_by_metadata(admin, names)
    for name in names:
        topic_id, is_internal, rows = partitions[name]
        entries = configs[ResourceType.TOPIC, name]
        if isinstance(entries, KafkaError):
            raise entries
        least = next((entry.value for entry in entries if entry.name == MIN_IN_SYNC_REPLICAS), '1')
        yield TopicDescription(name, topic_id, is_internal, tuple(rows), tuple(
            (entry.name, entry.value) for entry in in_java_order(entries, lambda entry: string_hash(str(entry.name)))
            if entry.source != DEFAULT_CONFIG), int(least or 1))


def _described_in_pages(admin: Admin, names: Collection[str], limit: int) -> dict[str, tuple[bytes, bool, list[Any]]]:
    request = DescribeTopicPartitionsRequest
    found: dict[str, tuple[bytes, bool, list[PartitionDescription]]] = {}
    wanted, cursor = sorted(names), None
    while wanted:
        message = request(topics=[request.TopicRequest(name=name) for name in wanted],
                          response_partition_limit=limit, cursor=cursor)
        answer = admin.cluster.retrying(lambda message=message: admin.cluster.any().call(message),  # type: ignore[misc]
                                        'describing topics')
        for topic in answer.topics:
            check(topic.error_code, f'topic {topic.name}')
            found.setdefault(topic.name, (topic.topic_id, topic.is_internal, []))[2].extend(
                PartitionDescription(
                    row.partition_index, row.leader_id, row.leader_id in admin.cluster.nodes, tuple(row.replica_nodes),
                    tuple(row.isr_nodes), tuple(row.eligible_leader_replicas or ()), tuple(row.last_known_elr or ()))
                for row in topic.partitions)
        if answer.next_cursor is None:
            break
        wanted = [name for name in wanted if name >= answer.next_cursor.topic_name]
        cursor = request.Cursor(topic_name=answer.next_cursor.topic_name,
                                partition_index=answer.next_cursor.partition_index)
    return found


def _described_by_metadata(admin: Admin, names: Collection[str]) -> dict[str, tuple[bytes, bool, list[Any]]]:
    """Return {topic: description} from Metadata responses. Brokers before 3.7 have no better request."""
    return {name: (topic.topic_id, topic.is_internal, [
        PartitionDescription(row.partition, row.leader_id, row.leader_id in admin.cluster.nodes, row.replicas,
                             row.in_sync_replicas, None, None) for row in topic.partitions.values()])
        for name, topic in admin.cluster.topics(names).items()}


# ---- offline

def offline_descriptions(view: DirectoryView, names: Collection[str]) -> Iterator[TopicDescription]:
    """Yield the descriptions of the named topics in the metadata log. Without a metadata log, describe them from the
    names of the partition directories."""
    image = view.metadata
    topics = view.topics()
    for name in names:
        known = image.topics.get(name) if image is not None else None
        if image is None or known is None:
            yield TopicDescription(name, topics[name].topic_id, topics[name].is_internal, tuple(
                PartitionDescription(row.partition, row.leader, row.leader >= 0, row.replicas, row.in_sync_replicas,
                                     None, None) for row in topics[name].partitions), (), 1)
            continue
        for_all = image.configs.get((ResourceType.BROKER, ''), {})
        least = known.configs.get(MIN_IN_SYNC_REPLICAS, for_all.get(MIN_IN_SYNC_REPLICAS, '1'))
        yield TopicDescription(name, known.topic_id, topics[name].is_internal, tuple(
            PartitionDescription(row.index, row.leader, row.leader in image.brokers, row.replicas, row.isr,
                                 row.eligible_leader_replicas, row.last_known_elr)
            for row in known.partitions), tuple(in_java_order(
                usual_texts(known.configs, TOPIC_ROWS).items(), lambda item: string_hash(item[0]),
                size=TOPIC_SETTINGS)), int(least))
