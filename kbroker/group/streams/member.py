"""The values that the state of a streams group consists of."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.base.errors import CorruptLogError
from kbroker.base.lean_dataclasses import dataclass
from kbroker.base.object_memory import memory_of
from kbroker.group.assignors.sticky import Key
from kbroker.group.modern.group import NAME_BYTES, TOPIC_BYTES, ModernMember
from kbroker.group.streams.topology import InternalTopic, Subtopology

Target = Mapping[Key, frozenset[int]]
"""The tasks that a member should have: maps (role, subtopology id) to task numbers."""

NOTHING: Target = {}

TaskOffsets = Mapping[str, Mapping[int, int]]
"""Offsets of tasks: maps a subtopology id to task numbers and their offsets."""

OFFSET_BYTES = 130
"""The memory in bytes of one offset in TaskOffsets, measured on CPython 3.11 with 64 bits."""
NO_TOPOLOGY_EPOCH = -1


class DescriptionEpochs(NamedTuple):
    """The epochs of the topologies whose descriptions a plugin of Apache Kafka has stored, or has refused for good.

    A broker without such a plugin only keeps the two values of the row (KIP-1331).
    """

    stored: int = NO_TOPOLOGY_EPOCH
    failed: int = NO_TOPOLOGY_EPOCH


class Endpoint(NamedTuple):
    """The host and port at which an instance of the application answers queries for its state."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMember(ModernMember[Key]):
    """A member of a streams group. It subscribes to the topics of the group's topology."""

    rebalance_timeout_ms: int = -1
    topology_epoch: int = NO_TOPOLOGY_EPOCH
    process_id: str = ''
    endpoint: Endpoint | None = None
    tags: tuple[tuple[str, str], ...] = ()

    @property
    def held_bytes(self) -> int:
        held_bytes = ModernMember.held_bytes.fget(self) + memory_of(self.process_id)    # type: ignore[attr-defined]
        held_bytes += sum([memory_of(key) + memory_of(value) for key, value in self.tags])
        if self.endpoint is not None:
            held_bytes += memory_of(self.endpoint.host)
        return int(held_bytes)

    @property
    def revocation_timeout_ms(self) -> int | None:
        return self.rebalance_timeout_ms


class ReportedOffsets(NamedTuple):
    """The offsets that a member has reported last: those up to which it has the state of tasks, and the end offsets of
    the changelogs."""

    offsets: TaskOffsets
    end_offsets: TaskOffsets

    @property
    def held_bytes(self) -> int:
        """The memory of the offsets in bytes."""
        return sum([TOPIC_BYTES + memory_of(subtopology) + OFFSET_BYTES * len(numbers)
                    for offsets in self for subtopology, numbers in offsets.items()])


NO_OFFSETS = ReportedOffsets({}, {})


class Topology(NamedTuple):
    """The topology of a streams group. The subtopologies are sorted by their ids."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]

    @property
    def held_bytes(self) -> int:
        """The memory of the topology in bytes, including its entries in the indexes of the group."""
        held_bytes = 0
        for part in self.subtopologies:
            names = [*part.sources(), *part.repartition_sink_topics, *(topic.name for topic in part.changelogs)]
            texts = [text for topic in (*part.changelogs, *part.repartition_source_topics)
                     for config in topic.configs for text in config]
            held_bytes += TOPIC_BYTES + memory_of(part.subtopology_id) + sum(map(memory_of, texts))
            held_bytes += sum([NAME_BYTES + memory_of(name) for name in names])
        return held_bytes


def read_topology(value: Any) -> Topology:
    """Convert the topology in a request or in a row, which have the same fields. Raise CorruptLogError if a copartition
    group has a wrong index of a topic.
    """
    return Topology(value.epoch, tuple(sorted(
        (_read_subtopology(part) for part in value.subtopologies), key=lambda part: part.subtopology_id)))


def _read_subtopology(part: Any) -> Subtopology:
    """Convert a subtopology in a request or in a row. Its copartition groups have indexes of topics; replace each index
    by the topic's name."""
    repartition = _read_topics(part.repartition_source_topics)
    names = [topic.name for topic in repartition]
    return Subtopology(
        part.subtopology_id, tuple(part.source_topics), repartition, tuple(part.repartition_sink_topics),
        _read_topics(part.state_changelog_topics),
        tuple(frozenset([*_names_at(group.source_topics, part.source_topics, part.subtopology_id),
                         *_names_at(group.repartition_source_topics, names, part.subtopology_id)])
              for group in part.copartition_groups))


def _names_at(indexes: Iterable[int], names: Sequence[str], subtopology_id: str) -> list[str]:
    """Return the names at these indexes, which count from 0. Raise CorruptLogError if an index is out of range.

    Only an index in a row can be out of range, because the indexes in a request have already been checked.
    """
    found = []
    for index in indexes:
        if not 0 <= index < len(names):
            raise CorruptLogError(f'found topic {index} in a copartition group of subtopology {subtopology_id!r}, '
                                  f'which has {len(names)} such topics')
        found.append(names[index])
    return found


def _read_topics(topics: Sequence[Any]) -> tuple[InternalTopic, ...]:
    return tuple(InternalTopic(topic.name, topic.partitions, topic.replication_factor,
                               tuple((config.key, config.value) for config in topic.topic_configs))
                 for topic in topics)
