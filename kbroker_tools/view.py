"""One face for two places to look: a live cluster, asked over the wire, and a log directory, read from the disk.

Commands are written against `View`. Offsets are those of records, times are milliseconds since the epoch. What is
absent is None: no open transaction, no such id.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from kbroker.record.batch import BatchHeader


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    topic: str
    partition: int
    leader: int
    """Node id; -1 without one."""
    replicas: tuple[int, ...] = ()
    in_sync_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Log start, high watermark and last stable offset of one partition."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """What a partition knows of a producer id (DescribeProducers, KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    """-1 before the first marker."""
    transaction_first_offset: int | None


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: str
    """By Kafka's name: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort."""


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """What the coordinator, or the last row in `__transaction_state`, says of a transactional.id."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_timestamp_ms: int | None
    partitions: frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[tuple[str, int], ...]
    epoch: int | None = None
    """Of the consumer protocol (KIP-848), as what follows; None for a member of another."""
    target_assignment: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    group_id: str
    state: str
    """Empty, Stable, PreparingRebalance, CompletingRebalance, Dead; offline what the last row implies."""
    protocol_type: str
    protocol: str
    """The assignor."""
    coordinator_id: int
    members: tuple[GroupMember, ...]
    epoch: int | None = None
    """Of the consumer protocol (KIP-848), as what follows; None for a group of another."""
    assignment_epoch: int | None = None


class View(Protocol):
    """Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION for a partition that is not there), OSError."""

    place: str
    """Where it looks, for messages: an address or a directory."""
    is_live: bool

    @property
    def bootstrap_server(self) -> str | None:
        """Where its broker is reached, or was when it last ran; None if nothing says so."""

    def now_ms(self) -> int:
        """The time that ages are counted from."""

    def topics(self) -> dict[str, TopicInfo]:
        """Every topic by name, internal ones too, in the order of names."""

    def partition_offsets(self, topic: str, partition: int) -> PartitionOffsets: ...

    def producers(self, topic: str, partition: int) -> list[ProducerInfo]: ...

    def transactions(self) -> list[TransactionListing]: ...

    def transaction(self, transactional_id: str) -> TransactionInfo | None: ...

    def groups(self) -> list[str]: ...

    def group(self, group_id: str) -> GroupInfo | None: ...

    def group_offsets(self, group_id: str) -> list[GroupOffset]: ...

    def batches(self, topic: str, partition: int, start_offset: int = 0,
                end_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch, markers too, that reaches `start_offset` and begins below `end_offset` (the log's end).

        A start below the log's start begins there. The view of a batch holds until the next one is asked for.
        """

    def close(self) -> None: ...
