"""The rooms of a broker that the collectors read, and how collectors walk over many partitions."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kbroker.base.clock import Clock
    from kbroker.group.coordinator import GroupCoordinator
    from kbroker.group.share.partitions import SharePartitions
    from kbroker.log.cleaner import Cleaner
    from kbroker.log.fs import FileSystem
    from kbroker.log.manager import LogManager
    from kbroker.metadata.controller import MetadataController
    from kbroker.metadata.snapshot_writer import SnapshotWriter
    from kbroker.settings.config import Config
    from kbroker.topics.partition import Partition
    from kbroker.topics.registry import TopicRegistry
    from kbroker.transaction.coordinator import TransactionCoordinator

PARTITIONS_AT_ONCE = 128
"""The partitions that a collector visits in one part. A visit takes about a microsecond."""


class Rooms(Protocol):
    """The rooms that the collectors read: a part of `daemon.node.Node`, which this room cannot import."""

    clock: Clock
    config: Config
    directory: str
    fs: FileSystem
    metadata: MetadataController
    snapshots: SnapshotWriter
    topics: TopicRegistry
    groups: GroupCoordinator
    share_partitions: SharePartitions
    transactions: TransactionCoordinator
    logs: LogManager
    cleaner: Cleaner
    started_ms: int
    start_took_ms: int


def partitions_in_parts(topics: TopicRegistry) -> Iterator[list[Partition]]:
    """Yield all partitions in lists. The partitions of a list belong to one topic, and none was deleted when the list
    was made.
    """
    for topic in topics.topics():
        partitions = topic.partitions
        for first in range(0, len(partitions), PARTITIONS_AT_ONCE):
            found = [partition for partition in partitions[first:first + PARTITIONS_AT_ONCE]
                     if not partition.is_deleted]
            if found:
                yield found
