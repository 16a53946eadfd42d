"""Kafka's assignor `range`, and the encoding of subscriptions and assignments in the classic protocol.

Members exchange subscriptions and assignments with their leader as bytes that the broker does not read: a version
(int16), and the message in that version.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.base.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.base.topic_partition import TopicPartition
from kbroker.protocol.consumer_protocol import PROTOCOL_TYPE, assigned_partitions, decode_message, encode_message
from kbroker.protocol.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription

RANGE = 'range'
COOPERATIVE_STICKY = 'cooperative-sticky'

_SUBSCRIPTION_VERSION = 1
_SUBSCRIPTION_VERSION_WITH_GENERATION = 2
_ASSIGNMENT_VERSION = 0
GENERATION_BYTES = 4


class Member(NamedTuple):
    """A member of a group.

    A member with an `instance_id` (group.instance.id, KIP-345) keeps its membership across restarts.
    """

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    """The generation that assigned the partitions in `owned`; -1 if it is unknown."""


def assign_ranges(members: Iterable[Member], partition_counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """Return {member id: partitions}. Each subscriber of a topic gets a range of adjacent partitions.

    The ranges of the first subscribers may be one partition longer. The members are sorted: first the static members by
    instance id, then the dynamic members by member id. A topic that is missing in `partition_counts` does not exist and
    is skipped.
    """
    ordered = sorted(members, key=lambda member: (member.instance_id is None, member.instance_id or member.member_id))
    assignment: dict[str, list[TopicPartition]] = {member.member_id: [] for member in ordered}
    for topic in sorted({topic for member in ordered for topic in member.topics}):
        subscribers = [member.member_id for member in ordered if topic in member.topics]
        share, rest = divmod(partition_counts.get(topic, 0), len(subscribers))
        start = 0
        for position, member_id in enumerate(subscribers):
            end = start + share + (position < rest)
            assignment[member_id] += [(topic, partition) for partition in range(start, end)]
            start = end
    return assignment


def encode_subscription(topics: Iterable[str], owned: Iterable[TopicPartition] = (), generation: int = -1) -> bytes:
    """Encode the subscription that a member sends in JoinGroup.

    `generation` is the generation that assigned the partitions in `owned`; a negative one is omitted.
    """
    structs = [ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
               for topic, partitions in by_topic(owned).items()]
    message = ConsumerProtocolSubscription(topics=sorted(topics), owned_partitions=structs,
                                           generation_id=generation)
    return encode_message(message, _SUBSCRIPTION_VERSION if generation < 0 else _SUBSCRIPTION_VERSION_WITH_GENERATION)


def decode_subscription(data: bytes) -> frozenset[str]:
    """Return the topics of a subscription.

    Raise KafkaError(INCONSISTENT_GROUP_PROTOCOL) if the bytes are no subscription.
    """
    return frozenset(_decode_subscription(data).topics)


def decode_member(member_id: str, instance_id: str | None, data: bytes) -> Member:
    """Return the member that an encoded subscription describes.

    Raise KafkaError(INCONSISTENT_GROUP_PROTOCOL) if the bytes are no subscription.
    """
    message = _decode_subscription(data)
    owned = frozenset((struct.topic, index) for struct in message.owned_partitions for index in struct.partitions)
    generation = message.generation_id
    if generation < 0 and message.user_data is not None and len(message.user_data) == GENERATION_BYTES:
        generation = int.from_bytes(message.user_data, signed=True)     # Kafka's sticky assignors, before version 2
    return Member(member_id, instance_id, frozenset(message.topics), owned, generation)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the assignment of one member, which the leader sends in SyncGroup."""
    structs = [ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=indexes)
               for topic, indexes in by_topic(partitions).items()]
    message = ConsumerProtocolAssignment(assigned_partitions=structs)
    return encode_message(message, _ASSIGNMENT_VERSION)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Return a member's partitions, or [] for an empty assignment.

    Raise KafkaError(INCONSISTENT_GROUP_PROTOCOL) if the bytes are no assignment.
    """
    try:
        return assigned_partitions(data)
    except ProtocolError as error:
        raise _another_protocol(error) from None


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        grouped.setdefault(topic, []).append(partition)
    return grouped


def _decode_subscription(data: bytes) -> Any:
    try:
        return decode_message(ConsumerProtocolSubscription, data)
    except ProtocolError as error:
        raise _another_protocol(error) from None


def _another_protocol(error: ProtocolError) -> KafkaError:
    return KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f'found a member that speaks another protocol than '
                                                             f'{PROTOCOL_TYPE}: {error}')
