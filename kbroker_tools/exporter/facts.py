"""The facts that one collection finds about a cluster. They are plain values, without connections."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.base.lean_dataclasses import dataclass
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.cluster import Node, TopicMetadata
from kbroker.client.descriptions import ProducerInfo, TransactionInfo


class PartitionEnds(NamedTuple):
    """The offsets of a partition. The last stable offset is read before the high watermark."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int

    @property
    def held(self) -> int:
        """Return the number of offsets that open transactions hold back from read_committed consumers."""
        return max(self.high_watermark - self.last_stable_offset, 0)


@dataclass(frozen=True)
class GroupFacts:
    """A group of any kind. `offsets` is empty for a share group."""

    group_id: str
    kind: str
    """classic, consumer, share or streams; '' if the broker is older than Kafka 3.8."""
    state: str
    coordinator_id: int
    members: int | None
    """None if the coordinator did not describe the group."""
    offsets: Mapping[TopicPartition, int]


class RecordBounds(NamedTuple):
    """Bounds of a number of records. If both are equal, the number is exact."""

    least: int
    most: int

    @property
    def is_exact(self) -> bool:
        return self.least == self.most


class GroupLag(NamedTuple):
    """The distance of a group from the ends of a partition."""

    group_id: str
    topic: str
    partition: int
    committed_offset: int
    to_high_watermark: int
    """A number of offsets, as in Kafka's tools."""
    to_last_stable_offset: int
    records: RecordBounds
    """The records that a read_committed consumer gets before it reaches the last stable offset."""
    age_ms: int | None
    """The age of the first batch that the group has not read; 0 if it has read all, None if it is not known."""


class ShareGroupLag(NamedTuple):
    group_id: str
    topic: str
    partition: int
    lag: int


class HangingTransaction(NamedTuple):
    topic: str
    partition: int
    producer: ProducerInfo


class ReplicaSize(NamedTuple):
    topic: str
    partition: int
    broker_id: int
    log_directory: str
    size_bytes: int


class LogDirectory(NamedTuple):
    broker_id: int
    path: str
    total_bytes: int | None
    usable_bytes: int | None
    """None if the broker is older than Kafka 3.3."""
    is_online: bool


class Problem(NamedTuple):
    """A part of the facts that is missing."""

    what: str
    error: str
    objects: int
    """The number of objects, such as partitions, that it concerns."""
    text: str
    """The error of the first of them."""

    @property
    def line(self) -> str:
        """Return one line for the log."""
        return self.text if self.objects == 1 else f'{self.text} (and {self.objects - 1:,} more)'


@dataclass(frozen=True)
class ClusterFacts:
    """All facts of one collection. A part that a broker did not report is missing, and `problems` says why."""

    at_ms: int
    """The wall-clock time at which the collection began, in ms since the epoch."""
    took_ms: int
    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, Node]
    topics: Mapping[str, TopicMetadata]
    ends: Mapping[TopicPartition, PartitionEnds]
    groups: Sequence[GroupFacts]
    lags: Sequence[GroupLag]
    share_lags: Sequence[ShareGroupLag]
    open_transactions: Sequence[TransactionInfo]
    open_producers: Mapping[TopicPartition, Sequence[ProducerInfo]]
    """The producers with an open transaction in the partitions that they hold back, the lowest first offset first."""
    hanging: Sequence[HangingTransaction]
    sizes: Sequence[ReplicaSize]
    log_directories: Sequence[LogDirectory]
    problems: Sequence[Problem]
    requests: Mapping[str, int]
    """Maps each API to the number of requests of the collection."""
    fetched_bytes: int
    """The bytes of records that were read to count records and to find ages."""
