"""The assignor `uniform`: members get equal numbers of partitions where possible, and keep their previous partitions
where possible.

If all members subscribe to the same topics, each member keeps partitions up to its quota, and the remaining partitions
are given to members below their quotas. If they subscribe to different topics, the partitions without a member are
given to the subscribers with the fewest partitions. Then partitions move from the subscribers with the most to those
with the fewest.
"""
from __future__ import annotations

from collections.abc import Generator
from heapq import heappop, heappush
from itertools import islice

from kbroker.base.long_work import Pace
from kbroker.group.assignors.spec import Spec, Steps, frozen, members_in_order, subscribed_topics

NAME = 'uniform'
MOST_ROUNDS = 16
"""The most rounds of moving partitions between members. A round handles all topics."""

Work = Generator[None, None, None]


def assign(spec: Spec) -> Steps:
    if spec.is_homogeneous:
        return (yield from _assign_equally(spec))
    builder = _Mixed(spec)
    yield from builder.keep()
    yield from builder.give()
    yield from builder.balance()
    return (yield from builder.result())


def _assign_equally(spec: Spec) -> Steps:
    """Let each member keep its previous partitions up to its quota, the first ones first. Give the remaining partitions
    to members below their quotas."""
    pace = Pace()
    members = members_in_order(spec)
    topics = yield from subscribed_topics(spec, pace)
    free = yield from _unheld(spec, topics, pace)
    quota, extra = divmod(sum(topics.values()), len(members) or 1)
    shares: list[dict[bytes, set[int]]] = [{} for _ in members]
    unfilled: list[tuple[int, int]] = []
    for number, member in enumerate(members):
        has_extra = extra > 0
        room = quota + has_extra
        for topic, held in member.target.items():
            valid = sorted(partition for partition in held if partition < topics.get(topic, 0))
            if valid[:room]:
                shares[number][topic] = set(valid[:room])
            free += ((topic, partition) for partition in valid[room:])
            room -= min(room, len(valid))
            if pace.spend(len(held) // 4 + 1):
                yield
        if room and has_extra and len(members) - number > extra:
            room -= 1
            has_extra = False
        if room:
            unfilled.append((number, room))
        extra -= has_extra
    rest = iter(free)
    for number, room in unfilled:
        for topic, partition in islice(rest, room):
            shares[number].setdefault(topic, set()).add(partition)
            if pace.spend():
                yield
    return (yield from frozen(members, shares, pace))


def _unheld(spec: Spec, topics: dict[bytes, int], pace: Pace) -> Generator[None, None, list[tuple[bytes, int]]]:
    """Return the partitions of `topics` that no member has in its previous target: topic by topic, in ascending
    order."""
    held: dict[bytes, set[int]] = {}
    for member in spec.members:
        for topic, partitions in member.target.items():
            if topic in topics:
                held.setdefault(topic, set()).update(partitions)
            if pace.spend(len(partitions) // 8 + 1):
                yield
    found = []
    for topic, count in topics.items():
        taken = held.pop(topic, ())
        found += [(topic, partition) for partition in range(count) if partition not in taken]
        if pace.spend(count // 8 + 1):
            yield
    return found


class _Mixed:
    """The assignment of a group whose members subscribe to different topics. A member is represented by its index, from
    0, in the list of members sorted by id."""

    def __init__(self, spec: Spec):
        self._partitions = spec.partitions
        self._members = members_in_order(spec)
        self._size = [0] * len(self._members)
        """The number of partitions of each member, by member index."""
        self._topics: list[bytes] = []
        """The ids of the topics that have subscribers, in the order in which the topics are assigned."""
        self._subscribers: dict[bytes, list[int]] = {}
        self._owners: dict[bytes, dict[int, int]] = {}
        """Maps topic id -> partition -> index of the member that has the partition."""
        self._pace = Pace()

    def keep(self) -> Work:
        """Let each member keep its previous partitions of the topics that it still subscribes to."""
        for number, member in enumerate(self._members):
            for topic in member.topics:
                if topic in self._partitions:
                    self._subscribers.setdefault(topic, []).append(number)
                if self._pace.spend():
                    yield
            for topic, held in member.target.items():
                if topic in member.topics and topic in self._partitions:
                    owners = self._owners.setdefault(topic, {})
                    for partition in held:
                        if partition < self._partitions[topic] and owners.setdefault(partition, number) == number:
                            self._size[number] += 1
                if self._pace.spend(len(held) // 4 + 1):
                    yield
        yield from self._order_topics()

    def _order_topics(self) -> Work:
        """Sort the topics by their number of partitions per subscriber, the highest first. Sort equal topics by their
        number of subscribers, the lowest first."""
        heap: list[tuple[float, int, bytes]] = []
        for topic, subscribers in self._subscribers.items():
            heappush(heap, (-self._partitions[topic] / len(subscribers), len(subscribers), topic))
            if self._pace.spend():
                yield
        while heap:
            self._topics.append(heappop(heap)[2])
            if self._pace.spend():
                yield

    def give(self) -> Work:
        """Assign each partition without a member to the subscriber of its topic that has the fewest partitions."""
        for topic in self._topics:
            owners = self._owners.setdefault(topic, {})
            free = [partition for partition in range(self._partitions[topic]) if partition not in owners]
            if self._pace.spend(self._partitions[topic] // 8 + 1):
                yield
            if not free:
                continue
            least_loaded = self._from_least(self._in_order(topic))
            for partition in free:
                owners[partition] = number = next(least_loaded)
                self._size[number] += 1
                if self._pace.spend():
                    yield

    def _in_order(self, topic: bytes) -> list[int]:
        """Return the subscribers of a topic, sorted by their number of partitions, the lowest first."""
        return sorted(self._subscribers[topic], key=lambda number: (self._size[number], number))

    def _from_least(self, order: list[int]) -> Generator[int, None, None]:
        """Yield the members with the fewest partitions in turn. When they have as many partitions as the next members
        in `order`, include these members in the turns."""
        level = self._size[order[0]]
        end = 0
        while True:
            while end < len(order) and self._size[order[end]] <= level:
                end += 1
            yield from order[:end]
            level += 1

    def _from_most(self, order: list[int], has: dict[int, list[int]]) -> Generator[int, None, None]:
        """Yield the members with the most partitions in turn, the last member in `order` first. When they have as few
        partitions as the members before them in `order`, include these members in the turns.

        Skip a member that has no partition of the topic left. As in Kafka, move the last member in the turns to the
        place of the skipped member. The order of the members decides which partitions move.
        """
        order = order.copy()
        start = end = len(order)
        level = 0
        while end:
            level = self._size[order[start - 1]] if start == end else level - 1
            while start and self._size[order[start - 1]] == level:
                start -= 1
            for place in range(end - 1, start - 1, -1):
                if has.get(order[place]):
                    yield order[place]
                else:
                    end -= 1
                    order[place], order[end] = order[end], order[place]

    def balance(self) -> Work:
        """Move partitions from the subscribers of each topic that have the most to those that have the fewest, until no
        move is possible, for at most MOST_ROUNDS rounds."""
        for _ in range(MOST_ROUNDS):
            moved = False
            for topic in self._topics:
                if len(self._subscribers[topic]) > 1:
                    moved |= yield from self._balance(topic)
            if not moved:
                return

    def _balance(self, topic: bytes) -> Generator[None, None, bool]:
        """Balance the partitions of one topic between its subscribers. Return whether a partition moved."""
        order = self._in_order(topic)
        if self._pace.spend(len(order) // 4 + 1):
            yield
        if self._size[order[-1]] - self._size[order[0]] <= 1:
            return False
        owners = self._owners[topic]
        has: dict[int, list[int]] = {}
        for partition in range(self._partitions[topic]):
            has.setdefault(owners[partition], []).append(partition)
            if self._pace.spend():
                yield
        moved = False
        takers = self._from_least(order)
        for giver in self._from_most(order, has):
            taker = next(takers)
            if self._size[giver] - self._size[taker] <= 1:
                break
            owners[has[giver].pop()] = taker
            self._size[giver] -= 1
            self._size[taker] += 1
            moved = True
            if self._pace.spend():
                yield
        return moved

    def result(self) -> Steps:
        shares: list[dict[bytes, set[int]]] = [{} for _ in self._members]
        for topic in self._topics:
            for partition, number in self._owners.pop(topic).items():
                shares[number].setdefault(topic, set()).add(partition)
                if self._pace.spend():
                    yield
        return (yield from frozen(self._members, shares, self._pace))
