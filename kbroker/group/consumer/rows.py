"""The functions that make the rows of a consumer group from the group's values, and the functions that read these
rows."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.base.lean_dataclasses import replace
from kbroker.group.consumer.member import ClassicFields, ConsumerMember, Resolved, Target
from kbroker.group.kinds import Row
from kbroker.group.modern.reconcile import Assigned, Numbers, State
from kbroker.protocol import messages  # its classes are built at their first use


def epoch_row(group_id: str, epoch: int, metadata_hash: int) -> Row:
    return (messages.ConsumerGroupMetadataKey(group_id=group_id),
            messages.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash))


def member_row(group_id: str, member: ConsumerMember) -> Row:
    value_class = messages.ConsumerGroupMemberMetadataValue
    classic = None
    if member.classic is not None:
        classic = value_class.ClassicMemberMetadata(
            session_timeout_ms=member.classic.session_timeout_ms,
            supported_protocols=[value_class.ClassicProtocol(name=name, metadata=metadata)
                                 for name, metadata in member.classic.protocols])
    return messages.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value_class(
        instance_id=member.instance_id, rack_id=member.rack_id, client_id=member.client_id,
        client_host=member.client_host, subscribed_topic_names=sorted(member.names),
        subscribed_topic_regex=member.regex, rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor, classic_member_metadata=classic)


def read_member(member: ConsumerMember, value: Any) -> ConsumerMember:
    """Return a copy of the member with the fields that its row has."""
    classic = value.classic_member_metadata
    return replace(
        member, instance_id=value.instance_id, rack_id=value.rack_id, client_id=value.client_id,
        client_host=value.client_host, names=frozenset(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex or '', rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        classic=None if classic is None else ClassicFields(
            classic.session_timeout_ms, tuple((each.name, each.metadata) for each in classic.supported_protocols)))


def assignment_epoch_row(group_id: str, epoch: int, at_ms: int) -> Row:
    return (messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
            messages.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=at_ms))


def target_row(group_id: str, member_id: str, target: Target) -> Row:
    topic_class = messages.ConsumerGroupTargetAssignmentMemberValue.TopicPartition
    return (messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
            messages.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=[
                topic_class(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in target.items() if partitions]))


def read_target(value: Any) -> Target:
    return {topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions}


def current_row(group_id: str, member_id: str, held: Assigned[bytes]) -> Row:
    return (messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
            messages.ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=held.epoch, previous_member_epoch=held.previous_epoch, state=held.state,
                assigned_partitions=_topics(held.assigned), partitions_pending_revocation=_topics(held.pending)))


def _topics(partitions: Numbers[bytes]) -> list[Any]:
    topic_class = messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
    return [topic_class(topic_id=topic_id, partitions=list(epochs), assignment_epochs=list(epochs.values()))
            for topic_id, epochs in partitions.items()]


def read_current(value: Any) -> Assigned[bytes]:
    try:
        state = State(value.state)
    except ValueError:
        state = State.UNKNOWN
    epoch = value.member_epoch
    return Assigned(state, epoch, value.previous_member_epoch, _read_topics(value.assigned_partitions, epoch),
                    _read_topics(value.partitions_pending_revocation, epoch))


def _read_topics(topics: Iterable[Any], member_epoch: int) -> Numbers[bytes]:
    """Return {topic id: {partition: assignment epoch}} for the topics in a row. If the row has no assignment epochs,
    because a broker without KIP-1251 wrote it, use `member_epoch`."""
    found: dict[bytes, Mapping[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            found[topic.topic_id] = dict.fromkeys(topic.partitions, max(member_epoch, 0))
        else:
            found[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=False))    # both are equally long
    return found


def regex_row(group_id: str, regex: str, resolved: Resolved, topics: list[str]) -> Row:
    """Return the row of a resolved regular expression. `topics` has the sorted names of the topics in `resolved`."""
    return (messages.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex),
            messages.ConsumerGroupRegularExpressionValue(
                topics=topics, version=resolved.version, timestamp=resolved.at_ms))


def read_regex(value: Any) -> Resolved:
    return Resolved(frozenset(value.topics), value.version, value.timestamp)


# Tombstones


def epoch_tombstone(group_id: str) -> Row:
    return messages.ConsumerGroupMetadataKey(group_id=group_id), None


def partition_metadata_tombstone(group_id: str) -> Row:
    """Return the tombstone of the group's partition metadata, a row that only brokers before Kafka 4.1 wrote."""
    return messages.ConsumerGroupPartitionMetadataKey(group_id=group_id), None


def assignment_epoch_tombstone(group_id: str) -> Row:
    return messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None


def member_tombstone(group_id: str, member_id: str) -> Row:
    return messages.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None


def target_tombstone(group_id: str, member_id: str) -> Row:
    return messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None


def current_tombstone(group_id: str, member_id: str) -> Row:
    return messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None


def member_tombstones(group_id: str, member_id: str) -> list[Row]:
    """Return the tombstones of all rows of a member, in the same order as Kafka."""
    return [current_tombstone(group_id, member_id), target_tombstone(group_id, member_id),
            member_tombstone(group_id, member_id)]


def regex_tombstone(group_id: str, regex: str) -> Row:
    return messages.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None
