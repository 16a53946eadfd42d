"""Partitions on real logs whose flushes, failures and power cuts a test controls, and a registry of such partitions."""
from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import INTERNAL_TOPICS
from kbroker.log.fs import Directory, File, FileSystem, InterposedFile
from kbroker.log.log import Log
from kbroker.log.recovery import LogOptions
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig
from kbroker.topics.partition import Partition
from kbroker.topics.topic import Topic

IN_MEMORY = '/dev/shm'


class HeldFileSystem(FileSystem):
    """A file system without syncs. `refusals` maps a directory to the error that a write to its log raises."""

    def __init__(self) -> None:
        self.refusals: dict[str, KafkaError] = {}

    def open(self, path: str, create: bool = False) -> File:
        return HeldFile(self, path, create) if path.endswith('.log') else UnsyncedFile(path, create)

    def open_directory(self, path: str) -> File:
        return UnsyncedDirectory(path)


class UnsyncedFile(File):
    def sync(self) -> None:
        pass


class UnsyncedDirectory(Directory):
    def sync(self) -> None:
        pass


class HeldFile(InterposedFile):
    def __init__(self, fs: HeldFileSystem, path: str, create: bool):
        super().__init__(path, create)
        self.fs = fs
        self.directory = os.path.dirname(path)

    def on_write(self, data: bytes, position: int) -> tuple[int, Any] | None:
        error = self.fs.refusals.get(self.directory)
        return None if error is None else (0, error)

    def on_truncate(self, size: int) -> None:
        pass

    def sync(self) -> None:
        pass


class NoFlusher:
    """A stand-in for the flusher that ignores requests for a sync. The test calls `HeldPartition.flush` instead."""

    def request(self, partition: Partition) -> None:
        pass


class HeldPartition(Partition):
    """A partition whose appends become durable when the test calls `flush`, or immediately with `immediate`."""

    def __init__(self, log: Log, topic_id: bytes = bytes(16), leader_epoch: int = 0, immediate: bool = True):
        super().__init__(log, topic_id, leader_epoch, NoFlusher(), immediate)
        self.log = log
        self.immediate = immediate

    def flush(self) -> None:
        _, offset = self.files_to_sync()
        self.flushed(offset)

    def refuse(self, error: KafkaError | None) -> None:
        """Let each later append raise `error`. With None, accept appends again."""
        if error is None:
            self.log.fs.refusals.pop(self.log.directory, None)
        else:
            self.log.fs.refusals[self.log.directory] = error

    @property
    def stored(self) -> list[bytes]:
        """All batches of the log, whether durable or not."""
        return [bytes(batch) for _, batch in self.batches()]

    def after_power_loss(self, kept_batches: int = 0) -> HeldPartition:
        """Return the partition as a power cut leaves it: with all flushed and the first `kept_batches` unflushed
        batches.
        """
        durable = kept_batches + sum(header.last_offset < self.high_watermark for header, _ in self.batches())
        return self.reopened(self.log.directory, durable, self.leader_epoch + 1)

    def copy(self, directory: str) -> HeldPartition:
        """Return a partition with the same batches on its own log in `directory`."""
        if self.log.is_made:
            shutil.copytree(self.log.directory, directory)
        return self.reopened(directory, len(self.stored), self.leader_epoch)

    def reopened(self, directory: str, batches: int, leader_epoch: int) -> HeldPartition:
        """Open a partition in `directory` with the first `batches` batches of this one."""
        self.refuse(None)
        if not self.log.is_made:
            log = new_log(self.log.fs, directory, self.topic, self.partition, self.log.config, self.log.clock)
            return HeldPartition(log, self.topic_id, leader_epoch, self.immediate)
        kept = [(header.base_offset, len(batch)) for header, batch in self.batches()][:batches]
        for path in sorted(pathlib.Path(directory).glob('*.log'), reverse=True):
            os.truncate(path, sum(size for base_offset, size in kept if base_offset >= int(path.stem)))
            kept = [(base_offset, size) for base_offset, size in kept if base_offset < int(path.stem)]
        log = Log(self.log.fs, directory, self.topic, self.partition, self.log.config, self.log.clock,
                  LogOptions(clean_shutdown=False))
        return HeldPartition(log, self.topic_id, leader_epoch, self.immediate)


def new_log(fs: HeldFileSystem, directory: str, topic: str, index: int, config: LogConfig, clock: Clock) -> Log:
    """Return an empty log. It creates its directory with its first append."""
    def make() -> list[str]:
        fs.mkdir(directory)
        return []

    return Log(fs, directory, topic, index, config, clock, LogOptions(maker=make))


class HeldRegistry:
    """A registry of topics whose partitions are HeldPartitions. `ensure_internal` creates topics with
    `internal_partitions` partitions.
    """

    def __init__(self, clock: Clock, *, immediate: bool = True, internal_partitions: int = 50,
                 config: Config | None = None):
        self.clock = clock
        self.immediate = immediate
        self.internal_partitions = internal_partitions
        self.fs = HeldFileSystem()
        self.directory = tempfile.mkdtemp(prefix='kbroker-', dir=IN_MEMORY if os.path.isdir(IN_MEMORY) else None)
        weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)
        self.config = LogConfig(config or Config({}), {})
        self.by_name: dict[str, Topic] = {}
        self.topics_ever = 0
        self.on_topic_created: list[Callable[[Topic], None]] = []
        self.on_topic_deleted: list[Callable[[Topic], None]] = []
        self.on_partitions_added: list[Callable[[Topic], None]] = []
        self.metadata_offset = 0

    def create(self, name: str, partitions: int, configs: dict[str, str] | None = None) -> Topic:
        self.topics_ever += 1
        self.metadata_offset += 1 + partitions
        topic_id = self.topics_ever.to_bytes(15, 'big') + b'\1'
        opened = [self.open(name, index, topic_id) for index in range(partitions)]
        topic = Topic(name, topic_id, opened, {}, self.config, name in INTERNAL_TOPICS)
        self.by_name[name] = topic
        for listener in self.on_topic_created:
            listener(topic)
        return topic

    def open(self, name: str, index: int, topic_id: bytes) -> HeldPartition:
        directory = os.path.join(self.directory, f'{name}-{index}.{self.topics_ever}')
        return HeldPartition(new_log(self.fs, directory, name, index, self.config, self.clock), topic_id,
                             immediate=self.immediate)

    def add_partitions(self, name: str, count: int) -> None:
        """Raise the number of partitions of a topic to `count`."""
        topic = self.by_name[name]
        topic.partitions.extend([
            self.open(name, index, topic.topic_id) for index in range(len(topic.partitions), count)])
        for listener in self.on_partitions_added:
            listener(topic)

    def delete(self, name: str) -> None:
        topic = self.by_name.pop(name)
        for partition in topic.partitions:
            partition.mark_deleted()
        for listener in self.on_topic_deleted:
            listener(topic)

    def ensure_internal(self, name: str) -> Topic:
        return self.by_name.get(name) or self.create(name, self.internal_partitions)

    def topics(self) -> list[Topic]:
        return list(self.by_name.values())

    def topic(self, name: str) -> Topic | None:
        return self.by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        return next((topic for topic in self.by_name.values() if topic.topic_id == topic_id), None)

    def find(self, topic: str, partition: int) -> HeldPartition | None:
        found = self.by_name.get(topic)
        return found.partitions[partition] if found and 0 <= partition < len(found.partitions) else None

    def get(self, topic: str, partition: int) -> HeldPartition:
        found = self.find(topic, partition)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'{topic}-{partition} does not exist')
        return found

    def partitions(self) -> list[HeldPartition]:
        return [partition for topic in self.by_name.values() for partition in topic.partitions]

    def take_over(self, other: HeldRegistry) -> None:
        """Continue with copies of the partitions of `other`, which has the same topics."""
        for name, topic in self.by_name.items():
            topic.partitions[:] = [partition.copy(f'{self.directory}/{name}-{partition.partition}.copy')
                                   for partition in other.by_name[name].partitions]

    def power_loss(self, kept_batches: int = 0) -> None:
        """Discard all unflushed batches except the first `kept_batches` of each partition, and reopen the partitions.
        """
        for topic in self.by_name.values():
            topic.partitions[:] = [partition.after_power_loss(kept_batches) for partition in topic.partitions]
