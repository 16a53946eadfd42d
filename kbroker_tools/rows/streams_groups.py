"""The streams groups (KIP-1071) in a log directory, replayed from their rows."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.base.topic_partition import TopicPartition
from kbroker.client.descriptions import GroupInfo, GroupMemberInfo, StreamsGroupInfo, StreamsMemberInfo, SubtopologyInfo
from kbroker.group.assignors.sticky import Key, Role
from kbroker.group.streams.group import StreamsGroup
from kbroker.group.streams.member import NOTHING

PROTOCOL_TYPE, ASSIGNOR = 'streams', 'sticky'


class StreamsGroups:
    """The streams groups in one partition of `__consumer_offsets`."""

    def __init__(self) -> None:
        self._groups: dict[str, StreamsGroup] = {}

    def has_row(self, key: Any) -> bool:
        """Return whether the key belongs to a row of a streams group."""
        return type(key).__name__ in StreamsGroup.row_handlers

    def replay(self, key: Any, value: Any) -> None:
        group_id = key.group_id
        group = self._groups.get(group_id)
        if group is None and value is not None:
            group = self._groups[group_id] = StreamsGroup(group_id)
        if group is not None and group.apply(key, value) is None:
            del self._groups[group_id]

    def group_ids(self) -> set[str]:
        return set(self._groups)

    def group(self, group_id: str, coordinator_id: int) -> GroupInfo | None:
        """Return the fields of a streams group that all kinds of groups have. A member's assignment is the source
        partitions of its active tasks."""
        group = self._groups.get(group_id)
        return None if group is None else GroupInfo(
            group_id, group.state_name, PROTOCOL_TYPE, ASSIGNOR, coordinator_id, tuple(
                GroupMemberInfo(member.member_id, member.instance_id, member.client_id, member.client_host,
                                _partitions(group, member.held.assigned), member.epoch)
                for member in group.members.values()), group.epoch, group.assignment_epoch)

    def streams_group(self, group_id: str, coordinator_id: int) -> StreamsGroupInfo | None:
        group = self._groups.get(group_id)
        if group is None:
            return None
        return StreamsGroupInfo(
            group_id, group.state_name, coordinator_id, group.epoch, group.assignment_epoch,
            tuple(SubtopologyInfo(part.subtopology_id, tuple(part.source_topics),
                                  tuple(topic.name for topic in part.repartition_source_topics),
                                  tuple(topic.name for topic in part.changelogs))
                  for part in (() if group.topology is None else group.topology.subtopologies)),
            tuple(StreamsMemberInfo(member.member_id, member.process_id, member.client_id, member.client_host,
                                    member.epoch, member.topology_epoch, False, _tasks(member.held.assigned),
                                    _tasks(group.targets.get(member.member_id, NOTHING)))
                  for member in group.members.values()), ASSIGNOR)


def _partitions(group: StreamsGroup, tasks: Mapping[Key, Any]) -> tuple[TopicPartition, ...]:
    """Return the source partitions of active tasks. There may be more tasks than a topic has partitions."""
    parts = () if group.topology is None else group.topology.subtopologies
    return tuple(sorted((topic, number) for part in parts for topic in part.sources()
                        for number in tasks.get((Role.ACTIVE, part.subtopology_id), ())))


def _tasks(tasks: Mapping[Key, Any]) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {role: {} for role in Role}
    for (role, subtopology), numbers in tasks.items():
        found[role][subtopology] = sorted(numbers)
    return found
