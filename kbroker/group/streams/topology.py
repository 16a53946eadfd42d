"""The configuration of a streams group's topology for the topics that exist.

`configure` computes the number of partitions of each internal topic, and the number of tasks of each subtopology. It
finds these conditions, which prevent the group from working:

* a source topic is missing
* topics that need the same number of partitions have different numbers
* an internal topic does not exist yet
"""
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from heapq import heappop, heappush

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass, field, replace
from kbroker.base.long_work import Pace
from kbroker.group.kinds import Steps

Counts = Mapping[str, int]
"""Maps a topic's name to its number of partitions."""


class Status(IntEnum):
    """A condition that prevents a streams group or a member from working. The value is the condition's number in the
    protocol."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """An internal topic that the application needs. `partitions` is 0 if the topology does not specify the number of
    partitions."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A connected part of a topology. Each task of a subtopology reads one partition of each source topic."""

    subtopology_id: str
    source_topics: Sequence[str] = ()
    repartition_source_topics: Sequence[InternalTopic] = ()
    repartition_sink_topics: Sequence[str] = ()
    changelogs: Sequence[InternalTopic] = ()
    copartition_groups: Sequence[Collection[str]] = ()
    """Groups of names of source topics. All topics of one group must have the same number of partitions."""

    def sources(self) -> list[str]:
        return [*self.source_topics, *(topic.name for topic in self.repartition_source_topics)]


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """The result of `configure`: numbers of tasks, missing topics, and a status. The topology is ready if `status` is
    None."""

    tasks: Mapping[str, int] = field(default_factory=dict)
    """Maps each subtopology id to its number of tasks. Empty if the numbers could not be computed."""
    status: Status | None = None
    detail: str = ''
    missing: Sequence[InternalTopic] = ()
    """The internal topics that must be created, with their numbers of partitions."""


class _Hindrance(Exception):
    """An error that `configure` catches: it ends the configuration of a topology with a status."""

    def __init__(self, status: Status, detail: str):
        super().__init__(detail)
        self.status = status


def configure(subtopologies: Sequence[Subtopology], existing: Counts) -> Steps[ConfiguredTopology]:
    """Configure a topology in parts. `existing` must contain all existing topics that the topology uses; it may contain
    more topics.

    Raise STREAMS_INVALID_TOPOLOGY if the number of partitions of a repartition topic depends on itself, or if a
    subtopology has no source topic.
    """
    missing = sorted({name for part in subtopologies for name in part.source_topics if name not in existing})
    if missing:
        return ConfiguredTopology(status=Status.MISSING_SOURCE_TOPICS,
                                  detail=f'Source topics {", ".join(missing)} are missing.')
    try:
        counts = yield from _decide_repartition_topics(subtopologies, existing)
        pace = Pace()
        for part in subtopologies:
            own = _own_counts(part)
            for group in part.copartition_groups:
                _copartition(group, own, existing, counts)
                if pace.spend(len(group) + 1):
                    yield
            if pace.spend(len(own) + 1):
                yield
        tasks = {part.subtopology_id: _task_count(part, counts, existing) for part in subtopologies}
        wanted = yield from _internal_topics(subtopologies, counts, tasks)
        yield
        _check_existing(wanted, existing)
    except _Hindrance as hindrance:
        return ConfiguredTopology(status=hindrance.status, detail=str(hindrance))
    to_create = [topic for topic in wanted if topic.name not in existing]
    if to_create:
        names = ', '.join(topic.name for topic in to_create)
        return ConfiguredTopology(tasks, Status.MISSING_INTERNAL_TOPICS, f'Internal topics are missing: {names}',
                                  to_create)
    return ConfiguredTopology(tasks)


def required_topics(subtopologies: Iterable[Subtopology]) -> set[str]:
    """Return the names of all topics of a topology: source topics, repartition topics and changelogs."""
    return {name for part in subtopologies
            for name in (*part.sources(), *part.repartition_sink_topics, *(topic.name for topic in part.changelogs))}


def _own_counts(part: Subtopology) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in part.repartition_source_topics}


def _task_count(part: Subtopology, counts: Counts, existing: Counts) -> int:
    sources = part.sources()
    if not sources:
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, f'subtopology {part.subtopology_id} has no source')
    return _most(sources, counts, existing)


def _most(names: Iterable[str], counts: Counts, existing: Counts) -> int:
    return max((counts[name] if name in counts else existing[name] for name in names), default=0)


def _decide_repartition_topics(subtopologies: Sequence[Subtopology], existing: Counts) -> Steps[dict[str, int]]:
    """Return {topic name: number of partitions} for the repartition topics.

    If the topology specifies a number for a topic, the topic has this number. Otherwise, the number comes from the
    first subtopology that writes the topic and has a source topic with a known number: it is the number of the largest
    source topic of this subtopology. "First" is defined by a loop over the subtopologies in their order, which is
    repeated until it finds no more numbers. `due` handles the subtopologies in the order of this loop, but visits each
    of them only once.

    Raise STREAMS_INVALID_TOPOLOGY if the numbers of some topics remain unknown.
    """
    own = [(topic.name, topic.partitions) for part in subtopologies for topic in part.repartition_source_topics]
    counts = {name: count for name, count in own if count}
    undecided = {name for name, _ in own} - counts.keys()
    pace, readers, due = Pace(), dict[str, list[int]](), list[tuple[int, int]]()
    for place, part in enumerate(subtopologies):
        sources = part.sources()
        if any(name not in undecided for name in sources):
            due.append((0, place))
        else:
            for name in sources:
                readers.setdefault(name, []).append(place)
        if pace.spend(len(sources) + 1):
            yield
    seen = {place for _, place in due}
    while due:
        turn, place = heappop(due)
        part = subtopologies[place]
        sources = part.sources()
        number = _most([name for name in sources if name not in undecided], counts, existing)
        for topic in undecided.intersection(part.repartition_sink_topics):
            undecided.remove(topic)
            counts[topic] = number
            for reader in readers.get(topic, ()):
                if reader not in seen:
                    seen.add(reader)
                    heappush(due, (turn + (reader <= place), reader))
        if pace.spend(len(sources) + len(part.repartition_sink_topics) + 1):
            yield
    if undecided:
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY,
                         f'the numbers of partitions of {", ".join(sorted(undecided))} depend on themselves')
    return counts


def _copartition(group: Collection[str], own: Counts, existing: Counts, counts: dict[str, int]) -> None:
    """In `counts`, set the repartition topics of a copartition group to the number of partitions that all topics of
    this group must have.

    Raise _Hindrance if topics of the group require different numbers.
    """
    external = sorted(name for name in group if name not in own)
    repartition = sorted(name for name in group if name in own)
    if external:
        number = _common(external, existing)
    else:
        fixed = [name for name in repartition if own[name]]
        number = _common(fixed, own) if fixed else _most(repartition, counts, existing)
    for name in repartition:
        if own[name] and own[name] != number:
            raise _Hindrance(Status.INCORRECTLY_PARTITIONED_TOPICS,
                             f'Topic {name} asks for {own[name]} partitions; {", ".join(sorted(group))} need {number}.')
        counts[name] = number


def _common(names: Sequence[str], counts: Counts) -> int:
    if len({counts[name] for name in names}) > 1:
        found = ', '.join(f'{name} ({counts[name]})' for name in names)
        raise _Hindrance(Status.INCORRECTLY_PARTITIONED_TOPICS,
                         f'Topics have to have the same number of partitions: {found}.')
    return counts[names[0]]


def _internal_topics(subtopologies: Iterable[Subtopology], counts: Counts, tasks: Mapping[str, int]
                     ) -> Steps[list[InternalTopic]]:
    """Return all internal topics of the subtopologies with their numbers of partitions, sorted by name."""
    pace, found = Pace(), dict[str, InternalTopic]()
    for part in subtopologies:
        for topic in part.repartition_source_topics:
            found[topic.name] = replace(topic, partitions=counts[topic.name])
            if pace.spend():
                yield
        for topic in part.changelogs:
            found[topic.name] = replace(topic, partitions=tasks[part.subtopology_id])
            if pace.spend():
                yield
    return [found[name] for name in sorted(found)]


def _check_existing(wanted: Iterable[InternalTopic], existing: Counts) -> None:
    for topic in wanted:
        has = existing.get(topic.name, topic.partitions)
        if has != topic.partitions:
            raise _Hindrance(Status.INCORRECTLY_PARTITIONED_TOPICS,
                             f'Internal topic {topic.name} has {has} partitions; it needs {topic.partitions}.')
