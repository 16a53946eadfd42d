"""Turns the facts of a collection into the facts of the page."""
from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kbroker import __version__
from kbroker.base.clock import Clock
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.descriptions import TransactionInfo
from kbroker.page.facts import Disk, GroupLag, HeldPartition, Offline, OpenTransaction, PageFacts, Series
from kbroker.transaction.state import NEVER_TIMES_OUT_MS
from kbroker_tools.exporter.facts import ClusterFacts

MOST_COLLECTIONS = 60
"""The collections whose throughput the page shows."""
MOST_OFFLINE = 100
MOST_PARTITIONS = 10
"""The partitions of a transaction that the page gets by name."""
ENDED_BY_TIME = 'Ongoing'
"""The state in which the coordinator aborts a transaction after its timeout. Later states only wait for markers."""


class PageSource:
    """The facts of the page, made once for each collection.

    `title` has the bootstrap servers, `place_options` the options with which a command reaches the cluster.
    """

    def __init__(self, title: str, place_options: tuple[str, ...], clock: Clock):
        self._title = title
        self._place_options = place_options
        self._clock = clock
        self._of: ClusterFacts | None = None
        self._made: PageFacts | None = None
        self._last: ClusterFacts | None = None
        self._rates: deque[tuple[int, float]] = deque(maxlen=MOST_COLLECTIONS)
        """For each collection, the ms since the one before it, and the offsets per second between them."""

    def note(self, facts: ClusterFacts) -> None:
        """Note the high watermarks of a collection. The page shows the throughput since the collection before it."""
        last, self._last = self._last, facts
        if last is not None and facts.at_ms > last.at_ms:
            span_ms = facts.at_ms - last.at_ms
            appended = sum(max(ends.high_watermark - last.ends[at].high_watermark, 0)
                           for at, ends in facts.ends.items() if at in last.ends)
            self._rates.append((span_ms, appended * 1000 / span_ms))

    def facts(self, facts: ClusterFacts | None, problem: str | None) -> PageFacts:
        """Return the facts of the page. Without facts of the cluster, the page shows only the problem."""
        if facts is None:
            return PageFacts(self._title, _program(), '', self._clock.wall_ms(), problems=[problem or ''],
                             place_options=self._place_options)
        if self._of is not facts or self._made is None:
            self._of, self._made = facts, self._make(facts)
        return self._made

    def _make(self, facts: ClusterFacts) -> PageFacts:
        by_producer = {each.producer_id: each for each in facts.open_transactions}
        held = [_held_partition(facts, at, by_producer) for at, ends in facts.ends.items() if ends.held]
        offline = [(name, row.partition) for name, topic in facts.topics.items() for row in topic.partitions.values()
                   if row.leader_id < 0]
        return PageFacts(
            self._title, _program(), facts.cluster_id or '', facts.at_ms, None,
            _transactions(facts, held), held, _lags(facts), self._series(),
            [Disk(f'broker {each.broker_id}: {each.path}', each.usable_bytes or 0, each.total_bytes or 0,
                  None if each.is_online else 'its broker cannot use it') for each in facts.log_directories
             if each.total_bytes is not None or not each.is_online],
            (), [Offline(*at, 'it has no leader') for at in offline[:MOST_OFFLINE]], len(offline),
            [problem.line for problem in facts.problems], self._place_options, has_pages_of_commands=True)

    def _series(self) -> Sequence[Series]:
        if not self._rates:
            return ()
        mean_s = sum(span_ms for span_ms, _ in self._rates) / len(self._rates) / 1000
        return [Series('appended', 'records', [rate for _, rate in self._rates], mean_s)]


def _program() -> str:
    return f'kbroker-exporter {__version__}'


def _held_partition(facts: ClusterFacts, at: TopicPartition,
                    by_producer: dict[int, TransactionInfo]) -> HeldPartition:
    """Return a held partition with its holder. A transaction that does not include the partition is not its holder."""
    producers = facts.open_producers.get(at, ())
    found = by_producer.get(producers[0].producer_id) if producers else None
    if found is not None and at not in found.partitions:
        found = None
    ends = facts.ends[at]
    return HeldPartition(*at, ends.last_stable_offset, ends.high_watermark,
                         None if found is None else found.transactional_id,
                         None if found is None else found.start_timestamp_ms)


def _transactions(facts: ClusterFacts, held: Sequence[HeldPartition]) -> list[OpenTransaction]:
    records: dict[str, int] = {}
    for each in held:
        if each.holder is not None:
            records[each.holder] = records.get(each.holder, 0) + each.held_records
    found = []
    for row in facts.open_transactions:
        began_ms = facts.at_ms if row.start_timestamp_ms is None else row.start_timestamp_ms
        is_timed = row.state == ENDED_BY_TIME and row.timeout_ms != NEVER_TIMES_OUT_MS
        found.append(OpenTransaction(
            row.transactional_id, row.state, row.producer_id, began_ms, began_ms + row.timeout_ms if is_timed else None,
            row.partitions[:MOST_PARTITIONS], len(row.partitions), records.get(row.transactional_id, 0)))
    return found


def _lags(facts: ClusterFacts) -> list[GroupLag]:
    sums: dict[str, tuple[int, int, int]] = {}
    for lag in facts.lags:
        partitions, high, stable = sums.get(lag.group_id, (0, 0, 0))
        sums[lag.group_id] = partitions + 1, high + lag.to_high_watermark, stable + lag.to_last_stable_offset
    for share in facts.share_lags:
        partitions, high, stable = sums.get(share.group_id, (0, 0, 0))
        sums[share.group_id] = partitions + 1, high + share.lag, stable + share.lag
    return [GroupLag(group.group_id, group.kind or 'classic', group.state, group.members or 0,
                     *sums.get(group.group_id, (0, 0, 0))) for group in facts.groups]
