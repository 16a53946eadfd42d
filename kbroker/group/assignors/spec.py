"""The input and output of the assignors of partitions."""
from __future__ import annotations

from collections.abc import Generator, Mapping

from kbroker.base.lean_dataclasses import dataclass, field
from kbroker.base.long_work import Pace

Assignment = dict[bytes, frozenset[int]]
"""Topic id -> partitions. A topic without partitions has no entry."""

Steps = Generator[None, None, dict[str, Assignment]]
"""An assignor in progress. It returns {member id: assignment}, in which every member has an entry."""


@dataclass(frozen=True, slots=True)
class SpecMember:
    """A member of a group, as an assignor needs it."""

    member_id: str
    instance_id: str | None = None
    topics: frozenset[bytes] = frozenset()
    """The ids of the existing topics that the member subscribes to."""
    target: Mapping[bytes, frozenset[int]] = field(default_factory=dict)
    """The previous target of the member."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The members of a group, and the topics that they subscribe to."""

    members: list[SpecMember]
    partitions: Mapping[bytes, int]
    """The number of partitions of each topic that has a subscriber. The assignors handle the topics in this order."""
    is_homogeneous: bool
    """All members subscribe to the same topics."""


def members_in_order(spec: Spec) -> list[SpecMember]:
    return sorted(spec.members, key=lambda member: member.member_id)


def subscribed_topics(spec: Spec, pace: Pace) -> Generator[None, None, dict[bytes, int]]:
    """Return the topics of a group whose members all subscribe to the same topics, with their numbers of partitions."""
    topics = spec.members[0].topics if spec.members else frozenset()
    found = {}
    for topic, count in spec.partitions.items():
        if topic in topics:
            found[topic] = count
        if pace.spend():
            yield
    return found


def frozen(members: list[SpecMember], shares: list[dict[bytes, set[int]]], pace: Pace) -> Steps:
    """Return the assignment of each member, taken out of `shares`, which is empty afterwards."""
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
