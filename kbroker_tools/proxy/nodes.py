"""Virtual brokers: who leads each partition, in which epoch, and who coordinates each group and transactional id.

The broker behind the proxy leads everything, and knows nothing of it. A partition prefers a virtual broker by a hash of
its topic and its number. If that one is stopped, the next running one leads. Each change of a leader adds one to the
epoch that the broker behind has given.

Coordinators are the leaders of the partitions of Kafka's internal topics, as in a cluster with the default of 50
partitions for each of these topics.
"""
from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.topics.partitioner import partition_for

GROUP, TRANSACTION, SHARE = 0, 1, 2
"""The types of the keys of coordinators."""
INTERNAL_TOPICS = {GROUP: '__consumer_offsets', TRANSACTION: '__transaction_state', SHARE: '__share_group_state'}
INTERNAL_PARTITIONS = 50
MOST_KNOWN = 100_000
"""The most partitions and topic ids that are kept. Clients may name any number of them."""


class TopicNames:
    """The names of topics by their ids, as the answers of the broker have named them."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}

    def learn(self, topic_id: bytes, name: str | None) -> None:
        """Remember the name of the topic with an id. Ignore an id or a name that is absent."""
        if name and any(topic_id):
            if len(self._names) >= MOST_KNOWN:
                self._names.clear()
            self._names[topic_id] = name

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with an id, or None if no answer has named it yet."""
        return self._names.get(topic_id)


class NodeError(ValueError):
    """A change that is not possible. The text is for the user."""


class Place(NamedTuple):
    """The leader of a partition at one time."""

    leader: int | None
    """The virtual broker, or None if all are stopped."""
    moves: int
    """The number of changes of the leader until then."""


@dataclass(frozen=True)
class Change:
    """A change of the virtual cluster: the brokers that run after it, and a partition that prefers another broker."""

    running: frozenset[int]
    partition: tuple[str, int] | None = None
    to: int = 0


class VirtualBrokers:
    """The virtual brokers in front of one broker, and the history of their changes.

    A partition may be unknown until a client names it, so its leader and its number of moves are derived from the
    history.
    """

    def __init__(self, count: int, real_id: int, names: TopicNames):
        self.ids = tuple(range(1, count + 1))
        self.real_id = real_id
        """The id of the broker behind the proxy."""
        self.running = frozenset(self.ids)
        self.names = names
        self._changes: list[Change] = []
        self._known: dict[tuple[str, int], tuple[int, int, Place]] = {}
        """Maps a partition to (number of changes that were applied, preferred broker, place)."""
        self._real_epochs: dict[tuple[str, int], int] = {}

    # ---- changes

    def stop(self, node: int) -> None:
        """Stop a virtual broker. Its partitions and coordinators move to the running ones. Raise NodeError if it is
        stopped already."""
        self.check(node)
        if node not in self.running:
            raise NodeError(f'node {node} is stopped already')
        self._change(Change(self.running - {node}))

    def start(self, node: int) -> None:
        """Start a virtual broker again. The partitions that prefer it move back. Raise NodeError if it is running."""
        self.check_stopped(node)
        self._change(Change(self.running | {node}))

    def move(self, topic: str, partition: int, to: int) -> Place:
        """Let a partition prefer a virtual broker, which then leads it. Raise NodeError if that one is stopped."""
        self.check(to)
        if to not in self.running:
            raise NodeError(f'node {to} is stopped: start it before partitions move to it')
        self._change(Change(self.running, (topic, partition), to))
        return self.place(topic, partition)

    def check(self, node: int) -> None:
        """Raise NodeError if there is no such virtual broker."""
        if node not in self.ids:
            raise NodeError(f'found node {node}, expected one of {", ".join(map(str, self.ids))}')

    def check_stopped(self, node: int) -> None:
        """Raise NodeError if a virtual broker is not stopped."""
        self.check(node)
        if node in self.running:
            raise NodeError(f'node {node} is running already')

    def _change(self, change: Change) -> None:
        self.running = change.running
        self._changes.append(change)

    # ---- leaders

    def replicas(self, topic: str, partition: int) -> list[int]:
        """Return the virtual brokers in the order in which a partition prefers them before any move."""
        first = (zlib.crc32(topic.encode()) + partition) % len(self.ids)
        return [*self.ids[first:], *self.ids[:first]]

    def place(self, topic: str, partition: int) -> Place:
        """Return the leader of a partition and the number of its moves."""
        key = topic, partition
        replicas = self.replicas(topic, partition)
        applied, preferred, place = self._known.get(key, (0, replicas[0], Place(replicas[0], 0)))
        if applied == len(self._changes) and key in self._known:
            return place
        for change in self._changes[applied:]:
            if change.partition == key:
                preferred = change.to
            leader = next((node for node in (preferred, *replicas) if node in change.running), None)
            if leader != place.leader:
                place = Place(leader, place.moves + 1)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[key] = len(self._changes), preferred, place
        return place

    def coordinator(self, key_type: int, key: str) -> int | None:
        """Return the virtual broker that coordinates a group, a transactional id, or a partition of a share group."""
        topic = INTERNAL_TOPICS.get(key_type, INTERNAL_TOPICS[GROUP])
        return self.place(topic, partition_for(key, INTERNAL_PARTITIONS)).leader

    def controller(self) -> int:
        """Return the virtual broker that Metadata names as the controller, or -1 if all are stopped."""
        return min(self.running, default=-1)

    # ---- what the broker behind has said

    def learn_epoch(self, topic: str, partition: int, epoch: int) -> None:
        """Remember the epoch that the broker behind has given to a partition."""
        if len(self._real_epochs) >= MOST_KNOWN:
            self._real_epochs.clear()
        self._real_epochs[topic, partition] = epoch

    def epoch(self, topic: str, partition: int) -> int | None:
        """Return the epoch of a partition, or None if the broker behind has not given it yet."""
        real = self._real_epochs.get((topic, partition))
        return None if real is None else real + self.place(topic, partition).moves
