"""The assignor `simple` of share groups: members share partitions as evenly as possible, and keep their previous
partitions where possible.

With P partitions and M members, ceil(M / P) members share each partition, and the numbers of partitions of two members
differ by at most one. If members subscribe to different topics, each topic is assigned to its subscribers separately.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Generator

from kbroker.base.long_work import Pace
from kbroker.group.assignors.spec import Spec, SpecMember, Steps, frozen, members_in_order, subscribed_topics

NAME = 'simple'

Partition = tuple[bytes, int]
Work = Generator[None, None, None]


def assign(spec: Spec) -> Steps:
    pace = Pace()
    members = members_in_order(spec)
    shares: list[dict[bytes, set[int]]] = [{} for _ in members]
    if spec.is_homogeneous:
        topics = yield from subscribed_topics(spec, pace)
        yield from _share(members, list(range(len(members))), topics, shares, pace)
    else:
        subscribers: dict[bytes, list[int]] = {}
        for number, member in enumerate(members):
            for topic in member.topics:
                if topic in spec.partitions:
                    subscribers.setdefault(topic, []).append(number)
                if pace.spend():
                    yield
        for topic, count in spec.partitions.items():
            yield from _share(members, subscribers.get(topic, []), {topic: count}, shares, pace)
    return (yield from frozen(members, shares, pace))


def _share(members: list[SpecMember], subscribers: list[int], topics: dict[bytes, int],
           shares: list[dict[bytes, set[int]]], pace: Pace) -> Work:
    """Assign the partitions of `topics` to `subscribers`, which are indexes in `members`. Add each subscriber's
    partitions to its entry in `shares`."""
    sharing = _Sharing(topics, subscribers, pace)
    yield from sharing.keep(members)
    yield from sharing.remove_from_members()
    yield from sharing.remove_from_partitions()
    yield from sharing.give()
    yield from sharing.add_to(shares)


class _Sharing:
    """An assignment of topics to members that subscribe to all of these topics. A member is represented by its index,
    from 0, in the list of the group's members."""

    def __init__(self, topics: dict[bytes, int], members: list[int], pace: Pace):
        self._topics = topics
        self._pace = pace
        partitions = sum(topics.values())
        self._most = -(-len(members) // partitions) if partitions else 0
        """The largest number of members that may share one partition."""
        shares = self._most * partitions
        self._wish = {number: -(-shares * (place + 1) // len(members)) + (-shares * place // len(members))
                      for place, number in enumerate(members)}
        self._has: dict[int, set[Partition]] = {number: set() for number in members}
        self._sharers: dict[Partition, set[int]] = {}

    def keep(self, members: list[SpecMember]) -> Work:
        """Let each member keep the partitions of its previous target."""
        for number, has in self._has.items():
            target = members[number].target
            for topic in self._topics if len(self._topics) == 1 else target:
                for partition in target.get(topic, ()):
                    if partition < self._topics.get(topic, 0):
                        has.add((topic, partition))
                        self._sharers.setdefault((topic, partition), set()).add(number)
                    if self._pace.spend():
                        yield
                if self._pace.spend():
                    yield
            if self._pace.spend():
                yield

    def remove_from_members(self) -> Work:
        """Remove partitions from members that have too many of them. First remove the partitions that the most members
        share."""
        for number, has in self._has.items():
            surplus = len(has) - self._wish[number]
            if surplus > 0:
                for partition in sorted(has, key=lambda held: (len(self._sharers[held]), held))[-surplus:]:
                    self._take(number, partition)
            if self._pace.spend(len(has) // 4 + 1):
                yield

    def remove_from_partitions(self) -> Work:
        """If too many members share a partition, remove it from some of these members."""
        for partition, sharers in self._sharers.items():
            for number in sorted(sharers)[self._most:]:
                self._take(number, partition)
            if self._pace.spend(len(sharers) // 4 + 1):
                yield

    def give(self) -> Work:
        """Give the partitions that too few members share to members that have too few partitions, one member after the
        other."""
        waiting = deque(number for number, has in self._has.items() if len(has) < self._wish[number])
        for topic, count in self._topics.items():
            for partition in range(count):
                sharers = self._sharers.setdefault((topic, partition), set())
                for _ in range(len(waiting)):
                    if len(sharers) == self._most:
                        break
                    number = waiting.popleft()
                    if number not in sharers:
                        sharers.add(number)
                        self._has[number].add((topic, partition))
                    if len(self._has[number]) < self._wish[number]:
                        waiting.append(number)
                    if self._pace.spend():
                        yield
                if self._pace.spend():
                    yield

    def add_to(self, shares: list[dict[bytes, set[int]]]) -> Work:
        """Move each member's partitions to its entry in `shares`."""
        for number, has in self._has.items():
            while has:
                topic, partition = has.pop()
                shares[number].setdefault(topic, set()).add(partition)
                if self._pace.spend():
                    yield

    def _take(self, number: int, partition: Partition) -> None:
        self._has[number].remove(partition)
        self._sharers[partition].remove(number)
