"""The transactional.ids in memory, by the partition of `__transaction_state` that each belongs to.

Memory is the replay of the partitions: they are read once, when the broker starts or the topic is created, and from
then on a row is adopted when it is durable.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbroker.clock import Clock
from kbroker.errors import ErrorCode, KafkaError
from kbroker.topics.partitioner import partition_for
from kbroker.transaction import state_log
from kbroker.transaction.state import COMPLETED, TransactionMetadata, TransactionRow

if TYPE_CHECKING:
    from kbroker.config import Config
    from kbroker.topics.partition import Partition
    from kbroker.topics.registry import Topic, TopicRegistry

logger = logging.getLogger(__name__)

TOMBSTONE_OVERHEAD_BYTES = 40
"""More than what a record without a value needs beside its key."""


@dataclass(slots=True, eq=False)
class StatePartition:
    """One partition of `__transaction_state` that this broker leads."""

    partition: Partition
    coordinator_epoch: int
    """The leader epoch of the partition: data partitions refuse markers of a lower one."""
    is_loading: bool = True
    transactions: dict[str, TransactionMetadata] = field(default_factory=dict)


class TransactionStore:
    """Finds transactions, and makes their pending rows durable."""

    def __init__(self, config: Config, clock: Clock, topics: TopicRegistry, transaction_version: Callable[[], int],
                 on_loaded: Callable[[StatePartition], None]):
        self._config = config
        self._clock = clock
        self._topics = topics
        self._transaction_version = transaction_version
        self._on_loaded = on_loaded
        self._owned: list[StatePartition] = []
        topics.on_topic_created.append(self._on_topic_created)
        topics.on_topic_deleted.append(self._on_topic_deleted)

    def start(self) -> None:
        """Load every state partition: ids are found from when all that was read of their partition is durable."""
        topic = self._topics.topic(state_log.TOPIC)
        if topic is not None:
            self._on_topic_created(topic)

    def stop(self) -> None:
        """Forget everything: what is still on its way to the disk has no effect here any more."""
        self._owned = []

    def owns(self, owned: StatePartition) -> bool:
        """Whether `owned` is still this coordinator's to act for."""
        return owned in self._owned

    @property
    def is_loading(self) -> bool:
        return any(owned.is_loading for owned in self._owned)

    def loaded(self) -> Iterator[StatePartition]:
        return (owned for owned in self._owned if not owned.is_loading)

    def owner(self, transactional_id: str) -> StatePartition:
        """The partition of an id. Raises NOT_COORDINATOR without one, COORDINATOR_LOAD_IN_PROGRESS until it is read."""
        if not self._owned:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f'{state_log.TOPIC} does not exist')
        owned = self._owned[partition_for(transactional_id, len(self._owned))]
        if owned.is_loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return owned

    def find(self, transactional_id: str) -> tuple[StatePartition, TransactionMetadata | None]:
        """The partition of an id and what it knows of it. Raises as `owner`."""
        owned = self.owner(transactional_id)
        return owned, owned.transactions.get(transactional_id)

    def append(self, owned: StatePartition, metadata: TransactionMetadata, done: Callable[[ErrorCode], None]) -> None:
        """Append the pending row of `metadata`. Once it is durable it is adopted, then `done(NONE)`.

        If it cannot be made durable it is abandoned, then `done` with the error for the client. NOT_COORDINATOR if
        the partition was lost meanwhile; then nothing changes here.
        """
        row = metadata.pending
        assert row is not None

        def finish(error: ErrorCode) -> None:
            if not self.owns(owned) or metadata.pending is not row:
                done(ErrorCode.NOT_COORDINATOR)
                return
            if error is ErrorCode.NONE:
                metadata.complete()
            else:
                metadata.abandon()
            done(error)

        state_log.append(owned.partition, [self._encode(metadata, row)], self._clock.wall_ms(), finish)

    def settle(self, owned: StatePartition, metadata: TransactionMetadata) -> bool:
        """Append the pending Complete row and adopt it at once; False, and the row abandoned, if it cannot be appended.

        It is the one row that is adopted before it is durable, because it says nothing new: it follows from the Prepare
        row and the markers, all of which are. A start that finds it missing sends the markers again, which changes
        nothing, and comes to the same row. What is built on it is appended behind it, to the same log, so that none of
        that can be durable without it.
        """
        row = metadata.pending
        assert row is not None and row.state in COMPLETED
        try:
            state_log.write(owned.partition, [self._encode(metadata, row)], self._clock.wall_ms())
        except KafkaError as error:
            logger.warning('appending to %s-%d failed: %s', state_log.TOPIC, owned.partition.partition, error)
            metadata.abandon()
            return False
        metadata.complete()
        return True

    def _encode(self, metadata: TransactionMetadata, row: TransactionRow) -> state_log.Row:
        return state_log.encode_row(metadata.transactional_id, row,
                                    state_log.value_version(self._transaction_version()))

    def remove(self, owned: StatePartition, expired: list[TransactionMetadata]) -> None:
        """Append tombstones for `expired`, all of them idle, and forget each id once its tombstone is durable."""
        batch: list[TransactionMetadata] = []
        size_bytes = 0
        for metadata in expired:
            record_bytes = len(metadata.transactional_id.encode()) + TOMBSTONE_OVERHEAD_BYTES
            if batch and size_bytes + record_bytes > self._config.message_max_bytes:
                self._append_tombstones(owned, batch)
                batch, size_bytes = [], 0
            metadata.prepare_dead()
            batch.append(metadata)
            size_bytes += record_bytes
        if batch:
            self._append_tombstones(owned, batch)

    def _append_tombstones(self, owned: StatePartition, batch: list[TransactionMetadata]) -> None:
        def finish(error: ErrorCode) -> None:
            for metadata in batch:
                if error is ErrorCode.NONE:
                    del owned.transactions[metadata.transactional_id]
                else:
                    metadata.abandon()

        state_log.append(owned.partition, [state_log.encode_tombstone(metadata.transactional_id) for metadata in batch],
                         self._clock.wall_ms(), finish)

    def _on_topic_created(self, topic: Topic) -> None:
        """Partitions that are added later change nothing until the next start: ids would belong elsewhere at once."""
        if topic.name != state_log.TOPIC or self._owned:
            return
        self._owned = [StatePartition(partition, partition.leader_epoch) for partition in topic.partitions]
        for owned in self._owned:
            self._load(owned)

    def _on_topic_deleted(self, topic: Topic) -> None:
        if topic.name == state_log.TOPIC:
            self.stop()

    def _load(self, owned: StatePartition) -> None:
        """Read the partition once all of it is durable: a decision may not be acted on before it cannot be lost."""
        def read(error: KafkaError | None) -> None:
            if not self.owns(owned):
                return
            if error is not None:
                logger.error('%s-%d cannot be loaded: %s', state_log.TOPIC, owned.partition.partition, error)
                return
            for transactional_id, row in state_log.read_all(owned.partition).items():
                owned.transactions[transactional_id] = TransactionMetadata(transactional_id, row)
            owned.is_loading = False
            self._on_loaded(owned)

        owned.partition.when_durable(owned.partition.log_end_offset, read)
