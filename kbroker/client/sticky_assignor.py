"""Kafka's assignor `cooperative-sticky`: members keep their partitions where possible (KIP-429).

A partition moves to a new member in two rebalances. The first rebalance revokes the partition from its owner, and the
second rebalance assigns it to the new member. So two members never read one partition at once, and a member never stops
reading the partitions that it keeps.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.base.topic_partition import TopicPartition
from kbroker.client.assignor import Member

Assignment = dict[str, list[TopicPartition]]


def assign_cooperatively(members: Iterable[Member], partition_counts: Mapping[str, int]) -> Assignment:
    """Return {member id: partitions}. A partition that its present owner must give up is not yet assigned to a
    member.
    """
    members = list(members)
    owners = _owners(members, partition_counts)
    assignment = assign_sticky(members, partition_counts)
    return {member_id: [partition for partition in partitions if owners.get(partition, member_id) == member_id]
            for member_id, partitions in assignment.items()}


def assign_sticky(members: Iterable[Member], partition_counts: Mapping[str, int]) -> Assignment:
    """Return a balanced assignment {member id: partitions}. Members keep as many partitions as the balance allows.

    Balanced means: no member has two or more partitions more than a member that could own one of its partitions.
    """
    by_id = {member.member_id: member for member in sorted(members, key=lambda member: member.member_id)}
    assignment: dict[str, set[TopicPartition]] = {member_id: set() for member_id in by_id}
    for partition, owner in _owners(by_id.values(), partition_counts).items():
        assignment[owner].add(partition)
    subscribers = {topic: [member_id for member_id, member in by_id.items() if topic in member.topics]
                   for topic in sorted({topic for member in by_id.values() for topic in member.topics})}
    taken = {partition for partitions in assignment.values() for partition in partitions}
    # Assign topics with few subscribers first, because only few members can own their partitions.
    for topic in sorted(subscribers, key=lambda topic: (len(subscribers[topic]), topic)):
        for index in range(partition_counts.get(topic, 0)):
            if (topic, index) not in taken:
                least = min(subscribers[topic], key=lambda member_id: (len(assignment[member_id]), member_id))
                assignment[least].add((topic, index))
    while _move_one(assignment, by_id):
        pass
    return {member_id: sorted(partitions) for member_id, partitions in assignment.items()}


def _owners(members: Iterable[Member], partition_counts: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Return {partition: member id of its owner}.

    A member claims to own the partitions in `owned`. Claims from an old generation do not count. A partition that
    several members claim has no owner.
    """
    members = list(members)
    newest = max((member.generation for member in members), default=-1)
    claims: dict[TopicPartition, list[str]] = {}
    for member in members:
        if member.generation < newest:
            continue
        for topic, index in member.owned:
            if topic in member.topics and index < partition_counts.get(topic, 0):
                claims.setdefault((topic, index), []).append(member.member_id)
    return {partition: owners[0] for partition, owners in claims.items() if len(owners) == 1}


def _move_one(assignment: dict[str, set[TopicPartition]], members: Mapping[str, Member]) -> bool:
    """Move one partition to a member with at least two partitions fewer. Return False if no partition can be moved."""
    by_load = sorted(assignment, key=lambda member_id: (len(assignment[member_id]), member_id))
    for low in by_load:
        for high in reversed(by_load):
            if len(assignment[high]) < len(assignment[low]) + 2:
                break
            movable = [partition for partition in assignment[high] if partition[0] in members[low].topics]
            if movable:
                moved = max(movable)
                assignment[high].remove(moved)
                assignment[low].add(moved)
                return True
    return False
