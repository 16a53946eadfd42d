"""Partitions and a registry in memory, with the faces of `kbroker.topics`: durability is the test's to give."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kbroker.errors import ErrorCode, KafkaError
from kbroker.record.batch import iter_batches, set_base_offset


@dataclass
class AppendResult:
    base_offset: int
    last_offset: int
    append_time_ms: int = -1
    log_start_offset: int = 0
    is_duplicate: bool = False


@dataclass(eq=False)
class MemoryPartition:
    """`flush()` makes everything appended durable; with `immediate` each append is durable at once."""

    topic: str
    partition: int
    topic_id: bytes = bytes(16)
    immediate: bool = True
    leader_epoch: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0
    is_offline: bool = False
    fail_with: KafkaError | None = None
    """Raised by the next appends while set."""
    stored: list[bytes] = field(default_factory=list)
    _waiters: list[tuple[int, Callable[[KafkaError | None], None]]] = field(default_factory=list)
    _replayer: Callable[[Any, memoryview], None] | None = None

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark

    def append(self, batch: Any, origin: Any = None, *, guard: Any = None, transaction_version: int = 0,
               verification_required: bool = False) -> AppendResult:
        if self.fail_with is not None:
            raise self.fail_with
        copy = bytearray(batch)
        base_offset = self.log_end_offset
        set_base_offset(copy, base_offset)
        (header, _), = iter_batches(copy)
        self.stored.append(bytes(copy))
        self.log_end_offset = header.last_offset + 1
        if self.immediate:
            self.flush()
        return AppendResult(base_offset, header.last_offset, log_start_offset=self.log_start_offset)

    def flush(self) -> None:
        before, self.high_watermark = self.high_watermark, self.log_end_offset
        if self._replayer is not None:
            for header, batch in self.batches(before):
                self._replayer(header, batch)
        ready = [done for offset, done in self._waiters if offset <= self.high_watermark]
        self._waiters = [waiter for waiter in self._waiters if waiter[0] > self.high_watermark]
        for done in ready:
            done(None)

    def fail_waiters(self, error: KafkaError) -> None:
        """What a dead directory does to everything that waits."""
        waiters, self._waiters = self._waiters, []
        for _, done in waiters:
            done(error)

    def when_durable(self, offset: int, done: Callable[[KafkaError | None], None]) -> None:
        if self.high_watermark >= offset:
            done(None)
        else:
            self._waiters.append((offset, done))

    def set_replayer(self, callback: Callable[[Any, memoryview], None]) -> None:
        self._replayer = callback

    def batches(self, start_offset: int = 0) -> Iterator[tuple[Any, memoryview]]:
        for stored in self.stored:
            for header, batch in iter_batches(stored):
                if header.last_offset >= start_offset:
                    yield header, batch


@dataclass
class MemoryTopic:
    name: str
    topic_id: bytes
    partitions: list[MemoryPartition]
    config: Any = None
    is_internal: bool = False


class MemoryRegistry:
    """`ensure_internal` makes topics of `internal_partitions` partitions."""

    def __init__(self, *, immediate: bool = True, internal_partitions: int = 50):
        self.immediate = immediate
        self.internal_partitions = internal_partitions
        self.topics: dict[str, MemoryTopic] = {}
        self.on_topic_created: list[Callable[[Any], None]] = []
        self.on_topic_deleted: list[Callable[[Any], None]] = []

    def create(self, name: str, partitions: int, configs: dict[str, str] | None = None) -> MemoryTopic:
        topic_id = len(self.topics).to_bytes(15, 'big') + b'\1'
        topic = MemoryTopic(name, topic_id, [MemoryPartition(name, index, topic_id, self.immediate)
                                             for index in range(partitions)], is_internal=name.startswith('__'))
        self.topics[name] = topic
        for listener in self.on_topic_created:
            listener(topic)
        return topic

    def delete(self, name: str) -> None:
        topic = self.topics.pop(name)
        for listener in self.on_topic_deleted:
            listener(topic)

    def ensure_internal(self, name: str) -> MemoryTopic:
        return self.topics.get(name) or self.create(name, self.internal_partitions)

    def topic(self, name: str) -> MemoryTopic | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> MemoryTopic | None:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def find(self, topic: str, partition: int) -> MemoryPartition | None:
        found = self.topics.get(topic)
        return found.partitions[partition] if found and 0 <= partition < len(found.partitions) else None

    def get(self, topic: str, partition: int) -> MemoryPartition:
        found = self.find(topic, partition)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'{topic}-{partition} does not exist')
        return found
