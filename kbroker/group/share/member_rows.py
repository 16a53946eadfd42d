"""The values that the state of a share group consists of. The functions make the group's rows from these values, and
read the rows."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kbroker.base.lean_dataclasses import dataclass, replace
from kbroker.group.kinds import Row
from kbroker.group.modern.group import ModernMember
from kbroker.group.modern.reconcile import NO_EPOCH, Assigned, State
from kbroker.protocol import messages

Target = Mapping[bytes, frozenset[int]]
"""The partitions that a member should have: maps each topic id to partition numbers."""

NOTHING: Target = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMember(ModernMember[bytes]):
    """A member of a share group."""


class TopicState(NamedTuple):
    """The partitions of one topic whose share state is initialized, with the topic's name."""

    name: str
    partitions: frozenset[int]


States = Mapping[bytes, TopicState]
"""Maps each topic id to the topic's initialized partitions."""


def epoch_row(group_id: str, epoch: int, metadata_hash: int) -> Row:
    return (messages.ShareGroupMetadataKey(group_id=group_id),
            messages.ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash))


def member_row(group_id: str, member: ShareMember) -> Row:
    return (messages.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
            messages.ShareGroupMemberMetadataValue(
                rack_id=member.rack_id, client_id=member.client_id, client_host=member.client_host,
                subscribed_topic_names=sorted(member.names)))


def read_member(member: ShareMember, value: Any) -> ShareMember:
    """Return a copy of the member with the fields that its row has."""
    return replace(member, rack_id=value.rack_id, client_id=value.client_id, client_host=value.client_host,
                   names=frozenset(value.subscribed_topic_names))


def assignment_epoch_row(group_id: str, epoch: int, at_ms: int) -> Row:
    return (messages.ShareGroupTargetAssignmentMetadataKey(group_id=group_id),
            messages.ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=at_ms))


def target_row(group_id: str, member_id: str, target: Target) -> Row:
    topic_class = messages.ShareGroupTargetAssignmentMemberValue.TopicPartition
    return (messages.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
            messages.ShareGroupTargetAssignmentMemberValue(topic_partitions=[
                topic_class(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in target.items() if partitions]))


def read_target(value: Any) -> Target:
    return {topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions}


def current_row(group_id: str, member_id: str, held: Assigned[bytes]) -> Row:
    topic_class = messages.ShareGroupCurrentMemberAssignmentValue.TopicPartitions
    return (messages.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
            messages.ShareGroupCurrentMemberAssignmentValue(
                member_epoch=held.epoch, previous_member_epoch=held.previous_epoch, state=held.state,
                assigned_partitions=[topic_class(topic_id=topic_id, partitions=list(numbers))
                                     for topic_id, numbers in held.assigned.items()]))


def read_current(value: Any) -> Assigned[bytes]:
    return Assigned(State.STABLE, value.member_epoch, value.previous_member_epoch, {
        topic.topic_id: dict.fromkeys(topic.partitions, NO_EPOCH) for topic in value.assigned_partitions})


def states_row(group_id: str, initialized: States, deleting: Mapping[bytes, str]) -> Row:
    """Return the row that lists the partitions with initialized share states. `deleting` maps the id of each topic
    whose states are being deleted to its name."""
    value_class = messages.ShareGroupStatePartitionMetadataValue
    return messages.ShareGroupStatePartitionMetadataKey(group_id=group_id), value_class(
        initializing_topics=[],
        initialized_topics=[
            value_class.TopicPartitionsInfo(topic_id=topic_id, topic_name=state.name,
                                            partitions=sorted(state.partitions))
            for topic_id, state in initialized.items()],
        deleting_topics=[value_class.TopicInfo(topic_id=topic_id, topic_name=name)
                         for topic_id, name in deleting.items()])


def read_states(value: Any) -> dict[bytes, TopicState]:
    """Return the initialized partitions that a row lists. Ignore partitions that the row lists as being initialized by
    another broker, so that this broker initializes them again."""
    return {topic.topic_id: TopicState(topic.topic_name, frozenset(topic.partitions))
            for topic in value.initialized_topics}


# Tombstones


def epoch_tombstone(group_id: str) -> Row:
    return messages.ShareGroupMetadataKey(group_id=group_id), None


def states_tombstone(group_id: str) -> Row:
    return messages.ShareGroupStatePartitionMetadataKey(group_id=group_id), None


def assignment_epoch_tombstone(group_id: str) -> Row:
    return messages.ShareGroupTargetAssignmentMetadataKey(group_id=group_id), None


def member_tombstone(group_id: str, member_id: str) -> Row:
    return messages.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None


def target_tombstone(group_id: str, member_id: str) -> Row:
    return messages.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None


def current_tombstone(group_id: str, member_id: str) -> Row:
    return messages.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None


def member_tombstones(group_id: str, member_id: str) -> list[Row]:
    """Return the tombstones of all rows of a member, in the same order as Kafka."""
    return [current_tombstone(group_id, member_id), target_tombstone(group_id, member_id),
            member_tombstone(group_id, member_id)]
