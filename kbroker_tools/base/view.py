"""The interface to cluster state that a live cluster and a log directory share. Commands are written against `View`.

Offsets are record offsets, and times are milliseconds since the epoch. An absent value is None, for example the first
offset of an open transaction if no transaction is open.
"""
from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kbroker.base.topic_partition import TopicPartition
from kbroker.client.descriptions import (
    GroupInfo,
    LogDirectory,
    ProducerInfo,
    ShareOffset,
    StreamsGroupInfo,
    TransactionInfo,
    TransactionListing,
)
from kbroker.record.batch import BatchHeader


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    topic: str
    partition: int
    leader: int
    """The node id of the leader, or -1 if there is no leader."""
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
class GroupOffset:
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class Unreadable(NamedTuple):
    """A partition that this view cannot read."""

    reason: str
    """The reason: a sentence that begins with the name of the partition."""
    command: str | None = None
    """A command that shows more about the partition, or None."""
    where: str = ''
    """The place where the command must run, such as `on the machine of broker 1`."""

    @property
    def advice(self) -> str | None:
        """Return one text with the command and the place where the command must run."""
        return None if self.command is None else f'{self.where}{": " if self.where else ""}{self.command}'


def check_brokers(existing: Collection[int], wanted: Collection[int]) -> None:
    """Raise ValueError if a broker of `wanted` is not one of `existing`."""
    if missing := sorted(set(wanted) - set(existing)):
        raise ValueError(f'found no broker {", ".join(map(str, missing))}; the brokers are '
                         f'{", ".join(map(str, sorted(existing)))}')


class View(Protocol):
    """A source of cluster state: a broker or a log directory. Methods raise KafkaError and OSError. If a partition is
    missing, the error is KafkaError UNKNOWN_TOPIC_OR_PARTITION."""

    place: str
    """The address of the cluster or the path of the directory, for messages."""
    is_live: bool

    @property
    def bootstrap_server(self) -> str | None:
        """The address of the broker. For a directory, it is the address at which its broker last ran. None if the
        address is unknown."""

    def now_ms(self) -> int:
        """Return the present time, from which the ages in the output are computed."""

    def topics(self) -> dict[str, TopicInfo]:
        """Return {name: topic} for every topic, sorted by name. Internal topics are included."""

    def unreadable(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Unreadable]:
        """Return the existing partitions in `partitions` that this view cannot read, with the reasons.

        One call can check many partitions.
        """

    def log_directories(self, partitions: Collection[TopicPartition] | None = None,
                        broker_ids: Collection[int] | None = None) -> list[LogDirectory]:
        """Return the log directories of all brokers, or of `broker_ids`, with the sizes of all partitions, or of
        `partitions`. Raise ValueError if a broker does not exist."""

    def partition_offsets(self, topic: str, partition: int) -> PartitionOffsets: ...

    def partition_offsets_of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionOffsets]:
        """Return the offsets of many partitions, for few requests."""

    def producers(self, topic: str, partition: int) -> list[ProducerInfo]: ...

    def transactions(self) -> list[TransactionListing]: ...

    def transaction(self, transactional_id: str) -> TransactionInfo | None: ...

    def transactions_of(self, transactional_ids: Collection[str]) -> dict[str, TransactionInfo]:
        """Return {transactional id: transaction} for the ids that exist. Many ids cost few requests."""

    def groups(self) -> list[str]: ...

    def group(self, group_id: str) -> GroupInfo | None: ...

    def listed_groups(self) -> list[GroupInfo]:
        """Return all groups. A broker's groups come without their members."""

    def group_offsets(self, group_id: str) -> list[GroupOffset]: ...

    def streams_group(self, group_id: str) -> StreamsGroupInfo | None: ...

    def share_offsets(self, group_id: str) -> list[ShareOffset]:
        """Return the offsets of a share group, sorted by topic and partition."""

    def batches(self, topic: str, partition: int, start_offset: int = 0,
                end_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield every batch, markers included, that ends at or after `start_offset` and begins below `end_offset`.

        The default end is the end of the log. A `start_offset` below the log start is raised to it. A batch's
        memoryview is valid until the next batch is requested.
        """

    def batch_headers(self, topic: str, partition: int, start_offset: int = 0,
                      end_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview | None]]:
        """Yield the headers of the same batches as `batches`. None may stand for the bytes of a batch, except for
        markers and for a batch that begins below `start_offset`."""

    def close(self) -> None: ...
