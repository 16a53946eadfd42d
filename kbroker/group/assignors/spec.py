"""The input and output types of the assignors that assign partitions."""
from __future__ import annotations

from collections.abc import Generator, Mapping

from kbroker.base.lean_dataclasses import dataclass, field
from kbroker.base.long_work import Pace

Assignment = dict[bytes, frozenset[int]]
"""Maps each topic id to a set of partition numbers. A topic without partitions has no entry."""

Steps = Generator[None, None, dict[str, Assignment]]
"""An assignor in progress: a generator that returns {member id: assignment}. Every member has an entry."""


@dataclass(frozen=True, slots=True)
class SpecMember:
    """The fields of a group's member that an assignor reads."""

    member_id: str
    instance_id: str | None = None
    topics: frozenset[bytes] = frozenset()
    """The ids of the existing topics that the member subscribes to."""
    target: Mapping[bytes, frozenset[int]] = field(default_factory=dict)
    """The partitions that the previous assignment gave to the member, by topic id."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The members of a group, and the topics that they subscribe to."""

    members: list[SpecMember]
    partitions: Mapping[bytes, int]
    """Maps each subscribed topic to its number of partitions. The assignors handle the topics in the order of this
    mapping."""
    is_homogeneous: bool
    """True if all members subscribe to the same topics."""


def members_in_order(spec: Spec) -> list[SpecMember]:
    return sorted(spec.members, key=lambda member: member.member_id)


def subscribed_topics(spec: Spec, pace: Pace) -> Generator[None, None, dict[bytes, int]]:
    """Return {topic id: number of partitions} for a group in which all members subscribe to the same topics."""
    topics = spec.members[0].topics if spec.members else frozenset()
    found = {}
    for topic, count in spec.partitions.items():
        if topic in topics:
            found[topic] = count
        if pace.spend():
            yield
    return found


def frozen(members: list[SpecMember], shares: list[dict[bytes, set[int]]], pace: Pace) -> Steps:
    """Return {member id: assignment} with the partitions from `shares`. Remove them from `shares`."""
    found: dict[str, Assignment] = {}
    for number, member in enumerate(members):
        assignment = found[member.member_id] = Assignment()
        share = shares[number]
        while share:
            topic, partitions = share.popitem()
            assignment[topic] = frozenset(partitions)
            if pace.spend(len(partitions) // 8 + 1):
                yield
        if pace.spend():
            yield
    return found
