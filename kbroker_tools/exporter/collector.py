"""Collects the facts of a cluster. Costly facts are kept from one collection to the next."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kbroker.base.clock import Clock
from kbroker.base.internal_topics import CONSUMER_OFFSETS
from kbroker.base.lean_dataclasses import dataclass
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.cluster import Cluster, TopicMetadata
from kbroker.client.descriptions import ProducerInfo, TransactionInfo
from kbroker_tools.exporter.asking import Brokers
from kbroker_tools.exporter.facts import (
    ClusterFacts,
    GroupFacts,
    GroupLag,
    LogDirectory,
    PartitionEnds,
    ReplicaSize,
)
from kbroker_tools.exporter.groups import read_groups
from kbroker_tools.exporter.partitions import leaders_of, read_ends, read_producers, read_sizes
from kbroker_tools.exporter.reading import Ages, BatchReader, RecordCounts
from kbroker_tools.exporter.transactions import find_hanging_ones, read_open_transactions

PATIENCE_SHARE = 4
"""One broker may take one part in so many of the time of a collection before it is left out."""
SIZES_EVERY_MS = 60_000
"""The time for which sizes are kept. A broker walks over all its partitions to tell them."""
MOST_HELD = 2_000
"""The most held partitions whose producers a collection asks for. Those that hold most come first."""
MOST_PROBED = 2_000
"""The most partitions whose producers a collection asks for only to learn whether they have transactions."""
PROBED_AGAIN_MS = 600_000


def every(_: str) -> bool:
    return True


@dataclass(frozen=True)
class Options:
    """The choice of topics and groups, and the bounds of a collection."""

    selects_topic: Callable[[str], bool] = every
    selects_group: Callable[[str], bool] = every
    is_filtered: bool = False
    """True if `selects_topic` leaves out topics."""
    timeout_ms: int = 8_000
    """The time of one collection. The parts that do not fit are missing."""
    read_bytes: int = 8 << 20
    """The most bytes of records that a collection reads; 0 reads none."""
    max_transaction_timeout_ms: int = 15 * 60_000
    """The longest timeout of any transaction. An open transaction of that age may hang."""


class Collector:
    """Collects facts, one collection at a time, from one thread."""

    def __init__(self, cluster: Cluster, options: Options, clock: Clock | None = None):
        self._cluster = cluster
        self._options = options
        self._clock = clock or Clock()
        self._brokers = Brokers(cluster, options.timeout_ms // PATIENCE_SHARE, self._clock)
        self._reader = BatchReader(self._brokers, options.read_bytes)
        self._ages = Ages(self._reader)
        self._counts = RecordCounts(self._reader)
        self._probed_ms: dict[TopicPartition, int] = {}
        self._transactional: set[TopicPartition] = set()
        """The partitions that are known to have transactions."""
        self._sizes: tuple[list[ReplicaSize], list[LogDirectory]] = ([], [])
        self._sizes_ms: int | None = None

    def collect(self) -> ClusterFacts:
        """Return the facts. Raise KafkaError, ClientError or OutOfTime if no broker reports the metadata."""
        began_ms, at_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        self._brokers.begin()
        self._reader.begin()
        with self._cluster.within(self._options.timeout_ms):
            topics = self._read_topics()
            leaders = leaders_of(topics)
            groups, share_lags = read_groups(self._brokers, self._options.selects_group, topics.__contains__)
            ends = read_ends(self._brokers, leaders)
            transactions = read_open_transactions(self._brokers)
            producers = self._read_producers(groups, ends, leaders, transactions)
            opened = _opened(producers, ends)
            hanging = find_hanging_ones(self._brokers, opened, at_ms, self._options.max_transaction_timeout_ms)
            sizes, directories = self._read_sizes(leaders)
            lags = self._read_lags(groups, ends, leaders)
            self._brokers.note_the_end()
        return ClusterFacts(
            at_ms, self._clock.monotonic_ms() - began_ms, self._cluster.cluster_id, self._cluster.controller_id,
            dict(self._cluster.nodes), topics, ends, groups, lags, share_lags, transactions, opened, hanging, sizes,
            directories, self._brokers.problems, dict(self._brokers.requests), self._reader.read_bytes)

    def _read_topics(self) -> dict[str, TopicMetadata]:
        return {name: topic for name, topic in self._brokers.topics().items() if self._options.selects_topic(name)}

    def _read_producers(self, groups: Sequence[GroupFacts], ends: Mapping[TopicPartition, PartitionEnds],
                        leaders: Mapping[TopicPartition, int],
                        transactions: Sequence[TransactionInfo]) -> Mapping[TopicPartition, list[ProducerInfo]]:
        """Return the producers of the held partitions. Learn which partitions have transactions."""
        held = sorted((at for at, each in ends.items() if each.held), key=lambda at: -ends[at].held)
        self._transactional |= self._counts.with_markers
        self._transactional |= {*held, *(at for each in transactions for at in each.partitions)}
        self._transactional &= ends.keys()
        now_ms = self._clock.monotonic_ms()
        lagging = {at for group in groups for at, offset in group.offsets.items()
                   if at in ends and offset < ends[at].last_stable_offset and at not in self._transactional}
        probed = [at for at in sorted(lagging)
                  if at not in self._probed_ms or now_ms - self._probed_ms[at] >= PROBED_AGAIN_MS]
        found = read_producers(self._brokers, [*held[:MOST_HELD], *probed[:MOST_PROBED]], leaders)
        self._probed_ms = {at: probed_ms for at, probed_ms in self._probed_ms.items() if at in ends}
        self._probed_ms |= dict.fromkeys(found, now_ms)
        self._transactional |= {at for at, producers in found.items() if any(
            each.coordinator_epoch >= 0 or each.transaction_first_offset is not None for each in producers)}
        return found

    def _read_sizes(self, leaders: Mapping[TopicPartition, int]) -> tuple[list[ReplicaSize], list[LogDirectory]]:
        now_ms = self._clock.monotonic_ms()
        if self._sizes_ms is None or now_ms - self._sizes_ms >= SIZES_EVERY_MS:
            self._sizes, self._sizes_ms = read_sizes(self._brokers, leaders, self._options.is_filtered), now_ms
        return self._sizes

    def _read_lags(self, groups: Sequence[GroupFacts], ends: Mapping[TopicPartition, PartitionEnds],
                   leaders: Mapping[TopicPartition, int]) -> list[GroupLag]:
        """Return the lags of the groups, the largest first."""
        positions = _positions(groups, ends)
        distances = {(at, position): ends[at].high_watermark - position
                     for at, some in positions.items() for position in some if position < ends[at].high_watermark}
        readable = [each for each in sorted(distances, key=lambda each: -distances[each])
                    if each[1] < ends[each[0]].last_stable_offset]
        times_ms = self._ages.read(readable, leaders)
        below = {at: sorted(position for position in some if position < ends[at].last_stable_offset)
                 for at, some in positions.items() if at in self._transactional and at[0] != CONSUMER_OFFSETS}
        self._counts.read({at: some for at, some in below.items() if some}, ends, leaders)
        now_ms = self._clock.wall_ms()
        lags = []
        for group in groups:
            for at, offset in group.offsets.items():
                if at not in ends:
                    continue
                found = ends[at]
                position = _position(offset, found)
                time_ms = times_ms.get((at, position))
                is_read = position >= found.high_watermark
                lags.append(GroupLag(
                    group.group_id, *at, offset, max(found.high_watermark - offset, 0),
                    max(found.last_stable_offset - offset, 0),
                    self._counts.bounds(at, position, found.last_stable_offset),
                    0 if is_read else None if time_ms is None else max(now_ms - time_ms, 0)))
        return sorted(lags, key=lambda lag: (-lag.to_high_watermark, lag[:3]))


def _opened(producers: Mapping[TopicPartition, list[ProducerInfo]],
            ends: Mapping[TopicPartition, PartitionEnds]) -> dict[TopicPartition, list[ProducerInfo]]:
    """Return the producers that have an open transaction, by partition, the lowest first offset first."""
    found = {}
    for at, some in producers.items():
        opened = [each for each in some if each.transaction_first_offset is not None]
        if opened and at in ends:
            found[at] = sorted(opened, key=lambda each: each.transaction_first_offset or 0)
    return found


def _positions(groups: Sequence[GroupFacts],
               ends: Mapping[TopicPartition, PartitionEnds]) -> dict[TopicPartition, set[int]]:
    """Return the offsets from which groups go on, in each partition."""
    found: dict[TopicPartition, set[int]] = {}
    for group in groups:
        for at, offset in group.offsets.items():
            if at in ends:
                found.setdefault(at, set()).add(_position(offset, ends[at]))
    return found


def _position(offset: int, ends: PartitionEnds) -> int:
    """Return the offset from which a group goes on: records below the log start are gone."""
    return max(offset, ends.log_start_offset)
