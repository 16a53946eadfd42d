"""The functions that make the rows of a streams group from the group's values, and the functions that read these
rows."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.base.lean_dataclasses import replace
from kbroker.group.assignors.sticky import Key, Role
from kbroker.group.kinds import Row
from kbroker.group.modern.reconcile import NO_EPOCH, Assigned, Numbers, State
from kbroker.group.streams.member import DescriptionEpochs, Endpoint, StreamsMember, Target
from kbroker.protocol import messages


def epoch_row(group_id: str, epoch: int, metadata_hash: int, validated_epoch: int, configs: Mapping[str, str],
              described: DescriptionEpochs) -> Row:
    value_class = messages.StreamsGroupMetadataValue
    return messages.StreamsGroupMetadataKey(group_id=group_id), value_class(
        epoch=epoch, metadata_hash=metadata_hash, validated_topology_epoch=validated_epoch,
        last_assignment_configs=[value_class.LastAssignmentConfig(key=key, value=value)
                                 for key, value in configs.items()],
        stored_description_topology_epoch=described.stored, failed_description_topology_epoch=described.failed)


def member_row(group_id: str, member: StreamsMember) -> Row:
    value_class = messages.StreamsGroupMemberMetadataValue
    endpoint = None
    if member.endpoint is not None:
        endpoint = value_class.Endpoint(host=member.endpoint.host, port=member.endpoint.port)
    return messages.StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value_class(
        instance_id=member.instance_id, rack_id=member.rack_id, client_id=member.client_id,
        client_host=member.client_host, rebalance_timeout_ms=member.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch, process_id=member.process_id, user_endpoint=endpoint,
        client_tags=[value_class.KeyValue(key=key, value=value) for key, value in member.tags])


def read_member(member: StreamsMember, value: Any) -> StreamsMember:
    """Return a copy of the member with the fields that its row has."""
    endpoint = value.user_endpoint
    return replace(
        member, instance_id=value.instance_id, rack_id=value.rack_id, client_id=value.client_id,
        client_host=value.client_host, rebalance_timeout_ms=value.rebalance_timeout_ms,
        topology_epoch=value.topology_epoch, process_id=value.process_id,
        endpoint=None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        tags=tuple((tag.key, tag.value) for tag in value.client_tags))


def topology_row(group_id: str, topology: Any) -> Row:
    """Return the row that stores the topology in a request."""
    value_class = messages.StreamsGroupTopologyValue
    return messages.StreamsGroupTopologyKey(group_id=group_id), value_class(epoch=topology.epoch, subtopologies=[
        value_class.Subtopology(
            subtopology_id=part.subtopology_id, source_topics=part.source_topics, source_topic_regex=[],
            state_changelog_topics=_topic_infos(part.state_changelog_topics),
            repartition_sink_topics=part.repartition_sink_topics,
            repartition_source_topics=_topic_infos(part.repartition_source_topics),
            copartition_groups=[
                value_class.CopartitionGroup(source_topics=group.source_topics, source_topic_regex=[],
                                             repartition_source_topics=group.repartition_source_topics)
                for group in part.copartition_groups])
        for part in topology.subtopologies])


def _topic_infos(topics: Iterable[Any]) -> list[Any]:
    value_class = messages.StreamsGroupTopologyValue
    return [value_class.TopicInfo(
        name=topic.name, partitions=topic.partitions, replication_factor=topic.replication_factor,
        topic_configs=[value_class.TopicConfig(key=config.key, value=config.value) for config in topic.topic_configs])
        for topic in topics]


def assignment_epoch_row(group_id: str, epoch: int, at_ms: int) -> Row:
    return (messages.StreamsGroupTargetAssignmentMetadataKey(group_id=group_id),
            messages.StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=at_ms))


def target_row(group_id: str, member_id: str, target: Target) -> Row:
    value_class = messages.StreamsGroupTargetAssignmentMemberValue
    fields = {f'{role}_tasks': [value_class.TaskIds(subtopology_id=key[1], partitions=sorted(tasks))
                                for key, tasks in target.items() if key[0] is role and tasks] for role in Role}
    return messages.StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value_class(**fields)


def read_target(value: Any) -> Target:
    return {(role, task.subtopology_id): frozenset(task.partitions)
            for role in Role for task in getattr(value, f'{role}_tasks')}


def current_row(group_id: str, member_id: str, held: Assigned[Key]) -> Row:
    fields = {}
    for role in Role:
        fields[f'{role}_tasks'] = _tasks(held.assigned, role)
        fields[f'{role}_tasks_pending_revocation'] = _tasks(held.pending, role)
    state = held.state if held.state is State.UNKNOWN else held.state + 1
    return (messages.StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
            messages.StreamsGroupCurrentMemberAssignmentValue(
                member_epoch=held.epoch, previous_member_epoch=held.previous_epoch, state=state, **fields))


def _tasks(numbers: Numbers[Key], role: Role) -> list[Any]:
    """Return the tasks with this role as fields of a row. Only active tasks have assignment epochs."""
    task_class = messages.StreamsGroupCurrentMemberAssignmentValue.TaskIds
    return [task_class(subtopology_id=key[1], partitions=list(epochs),
                       assignment_epochs=list(epochs.values()) if role is Role.ACTIVE else [])
            for key, epochs in numbers.items() if key[0] is role]


def read_current(value: Any) -> Assigned[Key]:
    try:
        state = State(value.state - 1)
    except ValueError:
        state = State.UNKNOWN
    epoch = value.member_epoch
    return Assigned(state, epoch, value.previous_member_epoch, _read_tasks(value, '_tasks', epoch),
                    _read_tasks(value, '_tasks_pending_revocation', epoch))


def _read_tasks(value: Any, suffix: str, member_epoch: int) -> Numbers[Key]:
    """Return {(role, subtopology id): {task number: assignment epoch}} for the tasks in a row. If active tasks have no
    assignment epochs, because a broker without KIP-1251 wrote the row, use `member_epoch`."""
    found: dict[Key, Mapping[int, int]] = {}
    for role in Role:
        for task in getattr(value, f'{role}{suffix}'):
            epochs = task.assignment_epochs
            key = role, task.subtopology_id
            if role is not Role.ACTIVE:
                found[key] = dict.fromkeys(task.partitions, NO_EPOCH)
            elif epochs is None or len(epochs) != len(task.partitions):
                found[key] = dict.fromkeys(task.partitions, max(member_epoch, 0))
            else:
                found[key] = dict(zip(task.partitions, epochs, strict=True))
    return found


# Tombstones


def epoch_tombstone(group_id: str) -> Row:
    return messages.StreamsGroupMetadataKey(group_id=group_id), None


def topology_tombstone(group_id: str) -> Row:
    return messages.StreamsGroupTopologyKey(group_id=group_id), None


def assignment_epoch_tombstone(group_id: str) -> Row:
    return messages.StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), None


def member_tombstone(group_id: str, member_id: str) -> Row:
    return messages.StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None


def target_tombstone(group_id: str, member_id: str) -> Row:
    return messages.StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None


def current_tombstone(group_id: str, member_id: str) -> Row:
    return messages.StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None


def member_tombstones(group_id: str, member_id: str) -> list[Row]:
    """Return the tombstones of all rows of a member, in the same order as Kafka."""
    return [current_tombstone(group_id, member_id), target_tombstone(group_id, member_id),
            member_tombstone(group_id, member_id)]
