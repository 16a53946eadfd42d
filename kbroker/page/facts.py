"""The view model of the page: plain facts, which the broker takes from its state and the exporter from a cluster.

Times are milliseconds since the epoch. Durations are in milliseconds.
"""
from __future__ import annotations

from collections.abc import Sequence

from kbroker.base.lean_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has begun, and has not ended in all of its partitions."""

    transactional_id: str
    state: str
    producer_id: int
    began_ms: int
    deadline_ms: int | None
    """The time at which its coordinator aborts it. None if it does not, or not any more."""
    partitions: tuple[tuple[str, int], ...]
    partition_count: int
    """The number of its partitions, of which `partitions` may have only the first ones."""
    held_records: int
    """The offsets from the last stable offset to the high watermark, in the partitions that it holds back."""


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """A partition whose last stable offset is below its high watermark."""

    topic: str
    partition: int
    last_stable_offset: int
    high_watermark: int
    holder: str | None
    """The transactional id that holds it back, if a coordinator knows it."""
    since_ms: int | None
    """The begin of the holder's transaction."""

    @property
    def held_records(self) -> int:
        """The offsets that a read_committed consumer does not get yet."""
        return self.high_watermark - self.last_stable_offset


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group in all of its partitions, in offsets."""

    group: str
    kind: str
    state: str
    members: int
    partitions: int
    to_high_watermark: int
    to_last_stable_offset: int


@dataclass(frozen=True, slots=True)
class Series:
    """A rate over the last minutes, oldest value first."""

    name: str
    unit: str
    """The unit of a value per second: bytes or records."""
    values: Sequence[float]
    interval_s: float


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system with a log directory."""

    path: str
    free_bytes: int
    size_bytes: int
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that serves a listener or is trusted by one."""

    listener: str
    subject: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class Offline:
    """A partition that is not served."""

    topic: str
    partition: int
    reason: str


@dataclass(frozen=True)
class PageFacts:
    """All that the page shows."""

    title: str
    """The cluster: the address of the broker, or the bootstrap servers."""
    program: str
    cluster_id: str
    now_ms: int
    started_ms: int | None = None
    transactions: Sequence[OpenTransaction] = ()
    held: Sequence[HeldPartition] = ()
    lags: Sequence[GroupLag] = ()
    series: Sequence[Series] = ()
    disks: Sequence[Disk] = ()
    certificates: Sequence[Certificate] = ()
    offline: Sequence[Offline] = ()
    offline_count: int = 0
    """The number of offline partitions, of which `offline` may have only the first ones."""
    problems: Sequence[str] = ()
    """The facts that could not be found, in a sentence each."""
    place_options: tuple[str, ...] = ()
    """The options with which a command reaches this cluster, for the commands to copy."""
    has_pages_of_commands: bool = False
    """True if the sub-pages exist that commands write: timelines, histories and reasons."""
