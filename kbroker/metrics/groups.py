"""Groups: their kinds and states, their members, and their lags."""
from __future__ import annotations

from collections.abc import Iterator
from heapq import heappush, heappushpop
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple

from kbroker.base.errors import KafkaError
from kbroker.base.lean_dataclasses import dataclass, field
from kbroker.base.long_work import Pace
from kbroker.group.share.group import ShareGroup
from kbroker.group.share.rows import ShareKey
from kbroker.metrics.rooms import Rooms
from kbroker.metrics.table import MOST_SERIES, Metric, Sample

if TYPE_CHECKING:
    from kbroker.group.group import Group
    from kbroker.metadata.changes import Steps

MOST_WORST = 20
"""The most groups in the list of the greatest lags."""
GROUP_COST = 4
"""The cost of a visit to a group, in committed offsets."""
GROUP_SERIES = f'groups with offsets, at most {MOST_SERIES:,}'
TOPIC_SERIES = f'pairs of a group and a topic of its offsets, at most {MOST_SERIES:,}'
TO_END = 'from the committed offset to the high watermark, summed over the partitions'
TO_STABLE = ('from the committed offset to the last stable offset, which a read_committed consumer can reach, summed '
             'over the partitions')

GROUPS = Metric('kbroker_groups', 'gauge', 'Groups by kind and state.', labels=('kind', 'state'),
                series='4 kinds with at most 7 states')
MEMBERS = Metric('kbroker_group_members', 'gauge', 'Members of the group.', labels=('kind', 'group'),
                 series=f'groups, at most {MOST_SERIES:,}')
LAG = Metric('kbroker_group_lag', 'gauge', f'Offsets {TO_END}.', labels=('group',), series=GROUP_SERIES)
STABLE_LAG = Metric('kbroker_group_stable_lag', 'gauge', f'Offsets {TO_STABLE}.', labels=('group',),
                    series=GROUP_SERIES)
TOPIC_LAG = Metric('kbroker_group_topic_lag', 'gauge', f'Offsets {TO_END} of the topic.', labels=('group', 'topic'),
                   series=TOPIC_SERIES)
TOPIC_STABLE_LAG = Metric('kbroker_group_topic_stable_lag', 'gauge', f'Offsets {TO_STABLE} of the topic.',
                          labels=('group', 'topic'), series=TOPIC_SERIES)


class Lag(NamedTuple):
    """The lag of a group, in offsets. `partitions` is the number of partitions with an offset of the group."""

    to_end: int
    to_stable: int
    group_id: str
    kind: str
    state: str
    members: int
    partitions: int


@dataclass
class GroupSurvey:
    """The groups of a broker at one time.

    `lags` has every group that has offsets. `topic_lags` has (group, topic, lag to the high watermark, lag to the last
    stable offset), for at most MOST_SERIES pairs of a group and a topic; `topics_left_out` counts the others.
    """

    by_kind: dict[tuple[str, str], int] = field(default_factory=dict)
    members: list[tuple[str, str, int]] = field(default_factory=list)
    lags: list[Lag] = field(default_factory=list)
    greatest: list[Lag] = field(default_factory=list)
    """A heap of the MOST_WORST greatest lags, or of fewer."""
    topic_lags: list[tuple[str, str, int, int]] = field(default_factory=list)
    topics_left_out: int = 0

    def worst(self) -> list[Lag]:
        """Return the greatest lags to the high watermark, the greatest first. Groups without a lag are left out."""
        return [lag for lag in sorted(self.greatest, reverse=True) if lag.to_end > 0]

    def add(self, lag: Lag) -> None:
        self.lags.append(lag)
        if len(self.greatest) < MOST_WORST:
            heappush(self.greatest, lag)
        else:
            heappushpop(self.greatest, lag)


Lags = dict[str, list[int]]
"""Maps a topic to [lag to the high watermark, lag to the last stable offset, number of partitions]."""


def survey(rooms: Rooms) -> Steps[GroupSurvey]:
    """Return the groups of a broker, as long work."""
    found, pace = GroupSurvey(), Pace()
    for group in chain.from_iterable(rooms.groups.groups_in_parts()):
        if pace.spend(GROUP_COST):
            yield
        if group.is_dead:
            continue
        kind, state, members = group.group_type, group.state_name, len(group.members)    # type: ignore[attr-defined]
        found.by_kind[kind, state] = found.by_kind.get((kind, state), 0) + 1
        found.members.append((kind, group.group_id, members))
        try:
            lags = yield from (_share_lags(rooms, group, pace) if isinstance(group, ShareGroup)
                               else _lags(rooms, group, pace))
        except KafkaError:      # `__consumer_offsets` was deleted, or the log directory has failed
            continue
        if lags:
            columns = list(zip(*lags.values(), strict=True))
            found.add(Lag(sum(columns[0]), sum(columns[1]), group.group_id, kind, state, members, sum(columns[2])))
            room = max(0, MOST_SERIES - len(found.topic_lags))
            found.topic_lags += [(group.group_id, topic, to_end, to_stable)
                                 for topic, (to_end, to_stable, _) in list(lags.items())[:room]]
            found.topics_left_out += max(0, len(lags) - room)
    return found


def _lags(rooms: Rooms, group: Group, pace: Pace) -> Steps[Lags]:
    """Return the lags of the committed offsets of a group, as long work. Raise KafkaError."""
    lags: Lags = {}
    for offsets in rooms.groups.committed_in_parts(group.group_id):
        for key, offset in offsets:
            partition = rooms.topics.find(key.topic, key.partition)
            if partition is not None:
                _add(lags, key.topic, partition.high_watermark - offset, partition.last_stable_offset - offset)
        if pace.spend(len(offsets)):
            yield
    return lags


def _share_lags(rooms: Rooms, group: ShareGroup, pace: Pace) -> Steps[Lags]:
    """Return the lags of a share group, as long work. As in Kafka, records count that no member has finished. Raise
    KafkaError.
    """
    lags: Lags = {}
    states = rooms.groups.share_states
    for topic_id, initialized in list(group.initialized.items()) if states.is_served else []:
        for number in initialized.partitions:
            if pace.spend():
                yield
            partition = rooms.topics.find(initialized.name, number)
            state = None if partition is None else states.summary(ShareKey(group.group_id, topic_id, number))
            lag = None if partition is None or state is None else state.lag(partition.high_watermark)
            if partition is not None and state is not None and lag is not None:
                _add(lags, initialized.name, lag, lag - partition.high_watermark + partition.last_stable_offset)
    return lags


def _add(lags: Lags, topic: str, to_end: int, to_stable: int) -> None:
    """Add the lag of a partition. An offset above the end, after the log was lost or cut, has no lag."""
    of_topic = lags.setdefault(topic, [0, 0, 0])
    of_topic[0] += max(0, to_end)
    of_topic[1] += max(0, to_stable)
    of_topic[2] += 1


def collect(rooms: Rooms) -> Iterator[Sample | None]:
    """Yield the samples of all groups."""
    found = yield from survey(rooms)
    for (kind, state), count in found.by_kind.items():
        yield GROUPS, (kind, state), count
    for kind, group_id, count in found.members:
        yield MEMBERS, (kind, group_id), count
    for lag in found.lags:
        yield LAG, (lag.group_id,), lag.to_end
    for lag in found.lags:
        yield STABLE_LAG, (lag.group_id,), lag.to_stable
    for metric, place in (TOPIC_LAG, 0), (TOPIC_STABLE_LAG, 1):
        for group_id, topic, *lags in found.topic_lags:
            yield metric, (group_id, topic), lags[place]
        if found.topics_left_out:       # beyond MOST_SERIES, samples are only counted
            yield from repeat((metric, (group_id, topic), 0), found.topics_left_out)
