"""The interface that a live cluster and a log directory share.

Commands are written against `View`. Offsets are record offsets, times are milliseconds since the epoch. An absent
value is None: no open transaction, no such id.
"""
from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

from kbroker.record.batch import BatchHeader


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    topic: str
    partition: int
    leader: int
    """The leader's node id; -1 without a leader."""
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
    """The log start, high watermark and last stable offset of one partition."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """A partition's state of one producer id (DescribeProducers, KIP-664)."""

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
    """Kafka's name: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort."""


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """The state of a transactional.id, from its coordinator or from its last row in `__transaction_state`."""

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
    """The member epoch. This field and the next are set for the consumer protocol (KIP-848) only."""
    target_assignment: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    group_id: str
    state: str
    """Empty, Stable, PreparingRebalance, CompletingRebalance or Dead; offline, the state that the last row implies."""
    protocol_type: str
    protocol: str
    """The assignor."""
    coordinator_id: int
    members: tuple[GroupMember, ...]
    epoch: int | None = None
    """The group epoch. This field and the next are None for the classic protocol."""
    assignment_epoch: int | None = None

    @property
    def group_type(self) -> str:
        """Kafka's type of a group that was described: classic, consumer, share or streams."""
        if self.protocol_type in ('share', 'streams'):
            return self.protocol_type
        return 'classic' if self.epoch is None else 'consumer'


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """The place where a share group begins in a partition. `start_offset` is None until the group has chosen one."""

    topic: str
    partition: int
    leader_epoch: int | None
    start_offset: int | None
    lag: int | None
    """The offsets from the start to the end of the log that no member has finished; None if it is not known."""


@dataclass(frozen=True, slots=True)
class StreamsMemberInfo:
    """A member of a streams group (KIP-1071). Tasks are numbers by role and by subtopology."""

    member_id: str
    process_id: str
    client_id: str
    client_host: str
    epoch: int
    topology_epoch: int
    is_classic: bool
    tasks: dict[str, dict[str, list[int]]]
    target: dict[str, dict[str, list[int]]]


@dataclass(frozen=True, slots=True)
class SubtopologyInfo:
    """The topics of a subtopology."""

    subtopology_id: str
    sources: tuple[str, ...]
    repartition_sources: tuple[str, ...]
    changelogs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamsGroupInfo:
    group_id: str
    state: str
    coordinator_id: int
    epoch: int
    assignment_epoch: int
    subtopologies: tuple[SubtopologyInfo, ...]
    members: tuple[StreamsMemberInfo, ...]


class View(Protocol):
    """A source of cluster state: a broker or a directory.

    Methods raise KafkaError (UNKNOWN_TOPIC_OR_PARTITION for a missing partition), OSError.
    """

    place: str
    """The address or the directory, for messages."""
    is_live: bool

    @property
    def bootstrap_server(self) -> str | None:
        """The broker's address, offline the one of its last run; None if it is not known."""

    def now_ms(self) -> int:
        """Return the time from which ages are counted."""

    def topics(self) -> dict[str, TopicInfo]:
        """Return every topic by name, sorted; internal topics are included."""

    def partition_offsets(self, topic: str, partition: int) -> PartitionOffsets: ...

    def producers(self, topic: str, partition: int) -> list[ProducerInfo]: ...

    def transactions(self) -> list[TransactionListing]: ...

    def transaction(self, transactional_id: str) -> TransactionInfo | None: ...

    def transactions_of(self, transactional_ids: Collection[str]) -> dict[str, TransactionInfo]:
        """Return the transactions of many ids at the cost of few questions, without the ids that do not exist."""

    def groups(self) -> list[str]: ...

    def group(self, group_id: str) -> GroupInfo | None: ...

    def listed_groups(self) -> list[GroupInfo]:
        """Return all groups, of a broker without their members."""

    def group_offsets(self, group_id: str) -> list[GroupOffset]: ...

    def streams_group(self, group_id: str) -> StreamsGroupInfo | None: ...

    def share_offsets(self, group_id: str) -> list[ShareOffset]:
        """Return the offsets of a share group, sorted by topic and partition."""

    def batches(self, topic: str, partition: int, start_offset: int = 0,
                end_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield every batch, markers included, that reaches `start_offset` and begins below `end_offset`.

        The default end is the end of the log. A `start_offset` below the log start is raised to it. A batch's
        memoryview is valid until the next batch is requested.
        """

    def close(self) -> None: ...
