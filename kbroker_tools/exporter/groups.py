"""Reads all groups of a cluster, their members and their committed offsets, in few requests.

The broker that lists a group is its coordinator, so no request looks for coordinators.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kbroker.base.errors import ErrorCode
from kbroker.base.lean_dataclasses import dataclass
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import OFFSET_NAMES_BEFORE_IDS
from kbroker.protocol import messages
from kbroker_tools.exporter.asking import Ask, Brokers, split
from kbroker_tools.exporter.facts import GroupFacts, ShareGroupLag

GROUPS_AT_ONCE = 200
"""The most groups in one request."""
OFFSETS_OF_SEVERAL = 8
"""The first version of OffsetFetch that takes several groups. Kafka serves it since 3.0."""
CHANGED = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
           ErrorCode.COORDINATOR_NOT_AVAILABLE)
"""The errors of a group that was deleted, or whose coordinator moved, since it was listed."""
CONSUMER_PROTOCOLS = ('consumer', '')
WITHOUT_MEMBERS = ('Empty', 'Dead')

DESCRIBING = {
    'classic': (messages.DescribeGroupsRequest, 'groups'),
    '': (messages.DescribeGroupsRequest, 'groups'),
    'consumer': (messages.ConsumerGroupDescribeRequest, 'group_ids'),
    'share': (messages.ShareGroupDescribeRequest, 'group_ids'),
    'streams': (messages.StreamsGroupDescribeRequest, 'group_ids'),
}
"""Maps each type of a group to the request that describes it, and to the request's field of group ids."""


@dataclass
class _Group:
    group_id: str
    kind: str
    state: str
    coordinator_id: int
    members: int | None
    offsets: dict[TopicPartition, int]


def read_groups(brokers: Brokers, selects: Callable[[str], bool],
                selects_topic: Callable[[str], bool]) -> tuple[list[GroupFacts], list[ShareGroupLag]]:
    """Return the groups whose id is selected, sorted by id, and the lags of share groups.

    Offsets in topics that are not selected are left out.
    """
    groups = {group.group_id: group for group in _listed(brokers) if selects(group.group_id)}
    _count_members(brokers, groups)
    _read_offsets(brokers, groups, selects_topic)
    lags = list(_share_lags(brokers, groups, selects_topic))
    return [GroupFacts(group.group_id, group.kind, group.state, group.coordinator_id, group.members, group.offsets)
            for _, group in sorted(groups.items())], lags


def _listed(brokers: Brokers) -> Iterator[_Group]:
    request = messages.ListGroupsRequest()
    for ask, answer in brokers.ask([Ask(node_id, request) for node_id in brokers.ids]):
        if answer.error_code:
            brokers.note_code('ListGroups', answer.error_code, f'broker {ask.broker_id}')
            continue
        for row in answer.groups:
            kind = row.group_type.lower()
            # Groups of Kafka Connect and other classic groups without offsets have a different protocol type.
            if kind in ('share', 'streams') or row.protocol_type in CONSUMER_PROTOCOLS:
                members = 0 if row.group_state in WITHOUT_MEMBERS else None
                yield _Group(row.group_id, kind, row.group_state, ask.broker_id, members, {})


def _count_members(brokers: Brokers, groups: dict[str, _Group]) -> None:
    for kind, (request_class, field) in DESCRIBING.items():
        unknown = [group for group in groups.values() if group.kind == kind and group.members is None]
        asks = [Ask(node_id, request_class(**{field: part})) for node_id, part in _parts(unknown)]
        for _, answer in brokers.ask(asks):
            for row in answer.groups:
                if row.group_id not in groups or row.error_code in CHANGED:
                    continue
                if row.error_code:
                    brokers.note_code(request_class.__name__.removesuffix('Request'), row.error_code,
                                      f'group {row.group_id!r}', getattr(row, 'error_message', None))
                    continue
                group = groups[row.group_id]
                group.members, group.state = len(row.members), row.group_state


def _read_offsets(brokers: Brokers, groups: dict[str, _Group], selects_topic: Callable[[str], bool]) -> None:
    request = messages.OffsetFetchRequest
    wanted = [group for group in groups.values() if group.kind != 'share']
    asks = [Ask(node_id, request(groups=[request.OffsetFetchRequestGroup(group_id=group_id, topics=None)
                                         for group_id in part])) for node_id, part in _parts(wanted)]
    for _, answer in brokers.ask(asks, OFFSET_NAMES_BEFORE_IDS, OFFSETS_OF_SEVERAL):
        for row in answer.groups:
            group = groups.get(row.group_id)
            if row.error_code and row.error_code not in CHANGED:
                brokers.note_code('OffsetFetch', row.error_code, f'group {row.group_id!r}')
            if row.error_code or group is None:
                continue
            for topic in row.topics:
                if selects_topic(topic.name):
                    for found in topic.partitions:
                        if found.committed_offset >= 0 and not found.error_code:
                            group.offsets[topic.name, found.partition_index] = found.committed_offset


def _share_lags(brokers: Brokers, groups: dict[str, _Group],
                selects_topic: Callable[[str], bool]) -> Iterator[ShareGroupLag]:
    request = messages.DescribeShareGroupOffsetsRequest
    wanted = [group for group in groups.values() if group.kind == 'share']
    asks = [Ask(node_id, request(groups=[request.DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)
                                         for group_id in part])) for node_id, part in _parts(wanted)]
    for _, answer in brokers.ask(asks):
        for row in answer.groups:
            if row.error_code:
                if row.error_code not in CHANGED:
                    brokers.note_code('DescribeShareGroupOffsets', row.error_code, f'group {row.group_id!r}',
                                      row.error_message)
                continue
            for topic in row.topics:
                if selects_topic(topic.topic_name):
                    for found in topic.partitions:
                        if found.lag >= 0 and not found.error_code:
                            yield ShareGroupLag(row.group_id, topic.topic_name, found.partition_index, found.lag)


def _parts(groups: Sequence[_Group]) -> Iterator[tuple[int, list[str]]]:
    """Yield (coordinator, group ids), with at most GROUPS_AT_ONCE ids each."""
    by_coordinator: dict[int, list[str]] = {}
    for group in groups:
        by_coordinator.setdefault(group.coordinator_id, []).append(group.group_id)
    for node_id, group_ids in by_coordinator.items():
        for part in split(group_ids, GROUPS_AT_ONCE):
            yield node_id, list(part)
