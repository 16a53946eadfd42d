"""Converts the rows of Describe and List answers to the objects of `descriptions`."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kbroker.base.errors import ProtocolError
from kbroker.client.descriptions import (
    ConfigEntry,
    ConfigSynonym,
    GroupInfo,
    GroupListing,
    GroupMemberInfo,
    LogDirectory,
    ProducerInfo,
    ReplicaSize,
    ScramCredentialInfo,
    ShareOffset,
    StreamsGroupInfo,
    StreamsMemberInfo,
    SubtopologyInfo,
    TopologyDescription,
    TopologyNode,
    TransactionInfo,
    TransactionListing,
)
from kbroker.client.errors import known_code
from kbroker.protocol.consumer_protocol import assigned_partitions
from kbroker.security.scram_credential import MECHANISM_CODES

Partitions = tuple[tuple[str, int], ...]

TOPOLOGY_STATUSES = ('NOT_REQUESTED', 'NOT_STORED', 'FAILED', 'AVAILABLE')
NODE_KINDS = ('UNKNOWN', 'source', 'processor', 'sink')
CONFIG_SOURCES = ('UNKNOWN', 'DYNAMIC_TOPIC_CONFIG', 'DYNAMIC_BROKER_CONFIG', 'DYNAMIC_DEFAULT_BROKER_CONFIG',
                  'STATIC_BROKER_CONFIG', 'DEFAULT_CONFIG', 'DYNAMIC_BROKER_LOGGER_CONFIG',
                  'DYNAMIC_CLIENT_METRICS_CONFIG', 'DYNAMIC_GROUP_CONFIG')
CONFIG_TYPES = ('UNKNOWN', 'BOOLEAN', 'STRING', 'INT', 'SHORT', 'LONG', 'DOUBLE', 'LIST', 'CLASS', 'PASSWORD')
"""The names of the sources and types in DescribeConfigs: the code is the index."""


def config_of(row: Any) -> ConfigEntry:
    return ConfigEntry(
        row.name, row.value, _name_of(CONFIG_SOURCES, row.config_source), row.is_sensitive, row.read_only,
        tuple(ConfigSynonym(each.name, each.value, _name_of(CONFIG_SOURCES, each.source)) for each in row.synonyms),
        _name_of(CONFIG_TYPES, row.config_type), row.documentation or None)


def scram_credential_of(mechanism: int, iterations: int) -> ScramCredentialInfo:
    names = (name for name, code in MECHANISM_CODES.items() if code == mechanism)
    return ScramCredentialInfo(next(names, str(mechanism)), iterations)


def mechanism_code(name: str) -> int:
    if name not in MECHANISM_CODES:
        raise ValueError(f'found mechanism {name!r}, expected one of {", ".join(MECHANISM_CODES)}')
    return MECHANISM_CODES[name]


def log_directory_of(node_id: int, row: Any) -> LogDirectory:
    return LogDirectory(
        node_id, row.log_dir, known_code(row.error_code).name if row.error_code else None,
        tuple(ReplicaSize(topic.name, part.partition_index, part.partition_size, part.offset_lag, part.is_future_key)
              for topic in row.topics for part in topic.partitions),
        _unless_negative(row.total_bytes), _unless_negative(row.usable_bytes))


def producer_of(row: Any) -> ProducerInfo:
    return ProducerInfo(row.producer_id, row.producer_epoch, row.last_sequence, row.last_timestamp,
                        row.coordinator_epoch, _unless_negative(row.current_txn_start_offset))


def transaction_listing_of(node_id: int, row: Any) -> TransactionListing:
    return TransactionListing(row.transactional_id, node_id, row.producer_id, row.transaction_state)


def transaction_of(node_id: int, row: Any) -> TransactionInfo:
    return TransactionInfo(
        row.transactional_id, node_id, row.producer_id, row.producer_epoch, row.transaction_state,
        row.transaction_timeout_ms, _unless_negative(row.transaction_start_time_ms),
        tuple((topic.topic, partition) for topic in row.topics for partition in topic.partitions))


def group_listing_of(node_id: int, row: Any) -> GroupListing:
    return GroupListing(row.group_id, node_id, row.group_state, row.protocol_type, row.group_type)


def classic_group_of(node_id: int, row: Any) -> GroupInfo:
    is_consumer = row.protocol_type == 'consumer'
    return GroupInfo(row.group_id, row.group_state, row.protocol_type, row.protocol_data, node_id, tuple(
        GroupMemberInfo(member.member_id, member.group_instance_id, member.client_id, member.client_host,
                        _classic_assignment(member.member_assignment) if is_consumer else ())
        for member in row.members))


def consumer_group_of(node_id: int, row: Any) -> GroupInfo:
    return GroupInfo(row.group_id, row.group_state, 'consumer', row.assignor_name, node_id, tuple(
        GroupMemberInfo(member.member_id, member.instance_id, member.client_id, member.client_host,
                        _partitions(member.assignment), member.member_epoch, _partitions(member.target_assignment))
        for member in row.members), row.group_epoch, row.assignment_epoch)


def share_group_of(node_id: int, row: Any) -> GroupInfo:
    return GroupInfo(row.group_id, row.group_state, 'share', row.assignor_name, node_id, tuple(
        GroupMemberInfo(member.member_id, None, member.client_id, member.client_host, _partitions(member.assignment),
                        member.member_epoch)
        for member in row.members), row.group_epoch, row.assignment_epoch)


def streams_group_of(node_id: int, row: Any) -> StreamsGroupInfo:
    parts = () if row.topology is None else row.topology.subtopologies or ()
    return StreamsGroupInfo(
        row.group_id, row.group_state, node_id, row.group_epoch, row.assignment_epoch,
        tuple(SubtopologyInfo(
            part.subtopology_id, tuple(part.source_topics), _names(part.repartition_source_topics),
            _names(part.state_changelog_topics)) for part in parts),
        tuple(StreamsMemberInfo(
            member.member_id, member.process_id, member.client_id, member.client_host, member.member_epoch,
            member.topology_epoch, member.is_classic, _tasks(member.assignment), _tasks(member.target_assignment))
            for member in row.members),
        row.assignor_name, _name_of(TOPOLOGY_STATUSES, row.topology_description_status),
        None if row.topology_description is None else topology_description_of(row.topology_description))


def topology_description_of(row: Any) -> TopologyDescription:
    return TopologyDescription(
        {part.subtopology_id: tuple(map(_topology_node, part.nodes)) for part in row.subtopologies},
        tuple((_topology_node(store.source), _topology_node(store.processor)) for store in row.global_stores))


def _topology_node(row: Any) -> TopologyNode:
    sinks = () if row.sink_topic is None else (row.sink_topic,)
    return TopologyNode(row.name, _name_of(NODE_KINDS, row.node_type), (*row.source_topics, *sinks), tuple(row.stores),
                        tuple(row.successors))


def share_offset_of(topic: str, row: Any) -> ShareOffset:
    has_start = row.start_offset >= 0
    return ShareOffset(topic, row.partition_index, row.leader_epoch if has_start else None,
                       row.start_offset if has_start else None, _unless_negative(row.lag))


def _name_of(names: Sequence[str], code: int) -> str:
    return names[code] if 0 <= code < len(names) else 'UNKNOWN'


def _unless_negative(number: int) -> int | None:
    return None if number < 0 else number


def _names(topics: Iterable[Any]) -> tuple[str, ...]:
    return tuple(topic.name for topic in topics)


def _tasks(assignment: Any) -> dict[str, dict[str, list[int]]]:
    return {role: {tasks.subtopology_id: sorted(tasks.partitions) for tasks in getattr(assignment, f'{role}_tasks')}
            for role in ('active', 'standby', 'warmup')}


def _partitions(assignment: Any) -> Partitions:
    return tuple(sorted((topic.topic_name, partition) for topic in assignment.topic_partitions
                        for partition in topic.partitions))


def _classic_assignment(data: bytes) -> Partitions:
    """Return the partitions of a member's assignment: none before the first assignment, none for an unknown format."""
    try:
        return tuple(sorted(assigned_partitions(data)))
    except ProtocolError:
        return ()
