"""Asks the leaders of partitions: for their offsets, for their producers, and for the sizes of their files."""
from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from kbroker.base.errors import ErrorCode
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import EARLIEST, ISOLATION_SINCE, LATEST, IsolationLevel
from kbroker.client.admin_requests import indexes_by_topic
from kbroker.client.cluster import TopicMetadata
from kbroker.client.description_rows import producer_of
from kbroker.client.descriptions import ProducerInfo
from kbroker.protocol import messages
from kbroker_tools.exporter.asking import Ask, Brokers, split
from kbroker_tools.exporter.facts import LogDirectory, PartitionEnds, ReplicaSize

OFFSETS_AT_ONCE = 5_000
PRODUCERS_AT_ONCE = 500
"""The most partitions in one request for offsets, and for producers."""
MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""The errors of a partition that moved or was deleted since the metadata was read. The next collection knows more."""


def leaders_of(topics: Mapping[str, TopicMetadata]) -> dict[TopicPartition, int]:
    """Return {partition: broker id of its leader}. Partitions without a leader are left out."""
    return {(name, index): row.leader_id for name, topic in topics.items()
            for index, row in topic.partitions.items() if row.leader_id >= 0}


def by_leader(partitions: Iterable[TopicPartition],
              leaders: Mapping[TopicPartition, int]) -> dict[int, list[TopicPartition]]:
    found: dict[int, list[TopicPartition]] = {}
    for at in partitions:
        if at in leaders:
            found.setdefault(leaders[at], []).append(at)
    return found


def read_ends(brokers: Brokers, leaders: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionEnds]:
    """Return the ends of the partitions whose leaders answer.

    Each leader gets one request for each kind of offset. Lower bounds are read first, so that no offset exceeds its
    upper bound.
    """
    request = messages.ListOffsetsRequest
    kinds = ((EARLIEST, IsolationLevel.READ_UNCOMMITTED), (LATEST, IsolationLevel.READ_COMMITTED),
             (LATEST, IsolationLevel.READ_UNCOMMITTED))
    asks = []
    for leader, partitions in by_leader(leaders, leaders).items():
        for part in split(partitions, OFFSETS_AT_ONCE):
            for number, (timestamp, level) in enumerate(kinds):
                asks.append(Ask(leader, request(replica_id=-1, isolation_level=level, timeout_ms=5_000, topics=[
                    request.ListOffsetsTopic(name=topic, partitions=[
                        request.ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in indexes])
                    for topic, indexes in indexes_by_topic(part).items()]), number))
    found: tuple[dict[TopicPartition, int], ...] = ({}, {}, {})
    for ask, answer in brokers.ask(asks, min_version=ISOLATION_SINCE):
        for topic in answer.topics:
            for row in topic.partitions:
                if not row.error_code:
                    found[ask.about][topic.name, row.partition_index] = row.offset
                elif row.error_code not in MOVED:
                    brokers.note_code('ListOffsets', row.error_code, f'{topic.name}-{row.partition_index}')
    starts, stable, ends = found
    return {at: PartitionEnds(start, stable[at], ends[at]) for at, start in starts.items()
            if at in stable and at in ends}


def read_producers(brokers: Brokers, partitions: Collection[TopicPartition],
                   leaders: Mapping[TopicPartition, int]) -> dict[TopicPartition, list[ProducerInfo]]:
    """Return the active producers of each partition whose leader answers."""
    request = messages.DescribeProducersRequest
    asks = [Ask(leader, request(topics=[request.TopicRequest(name=topic, partition_indexes=indexes)
                                        for topic, indexes in indexes_by_topic(part).items()]))
            for leader, wanted in by_leader(partitions, leaders).items() for part in split(wanted, PRODUCERS_AT_ONCE)]
    found = {}
    for _, answer in brokers.ask(asks):
        for topic in answer.topics:
            for row in topic.partitions:
                if not row.error_code:
                    found[topic.name, row.partition_index] = [producer_of(each) for each in row.active_producers]
                elif row.error_code not in MOVED:
                    brokers.note_code('DescribeProducers', row.error_code, f'{topic.name}-{row.partition_index}',
                                      row.error_message)
    return found


def read_sizes(brokers: Brokers, leaders: Mapping[TopicPartition, int],
               is_filtered: bool) -> tuple[list[ReplicaSize], list[LogDirectory]]:
    """Return the sizes of all replicas, and the log directories.

    If `is_filtered`, only the given partitions are asked for, instead of all.
    """
    request = messages.DescribeLogDirsRequest
    topics = None if not is_filtered else [
        request.DescribableLogDirTopic(topic=topic, partitions=indexes)
        for topic, indexes in indexes_by_topic(leaders).items()]
    sizes, directories = list[ReplicaSize](), list[LogDirectory]()
    for ask, answer in brokers.ask([Ask(node_id, request(topics=topics)) for node_id in brokers.ids]):
        if answer.error_code:
            brokers.note_code('DescribeLogDirs', answer.error_code, f'broker {ask.broker_id}')
        for row in answer.results:
            directories.append(LogDirectory(ask.broker_id, row.log_dir, _unless_negative(row.total_bytes),
                                            _unless_negative(row.usable_bytes), not row.error_code))
            sizes += _sizes_in(ask.broker_id, row)
    return sizes, directories


def _sizes_in(broker_id: int, directory: Any) -> Iterator[ReplicaSize]:
    for topic in directory.topics:
        for row in topic.partitions:
            if not row.is_future_key:
                yield ReplicaSize(topic.name, row.partition_index, broker_id, directory.log_dir, row.partition_size)


def _unless_negative(number: int) -> int | None:
    return None if number < 0 else number
