"""Keeps the metadata of a producer's topics fresh, and forgets topics to which no records are sent."""
from __future__ import annotations

from kbroker.base.clock import Clock
from kbroker.base.errors import KafkaError
from kbroker.client.accumulator import PartitionQueue
from kbroker.client.cluster import Cluster, TopicMetadata
from kbroker.client.errors import ClientError
from kbroker.client.record_appender import RecordAppender
from kbroker.client.stream_settings import ProducerSettings
from kbroker.client.transaction_manager import TransactionManager

IDLE_LOOKS = 4
"""The number of times that idle topics are looked for within metadata.max.idle.ms."""


class TopicsInUse:
    """The schedule by which a producer refreshes and forgets its topics."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings, clock: Clock):
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._metadata_due_ms = clock.monotonic_ms() + settings.metadata_max_age_ms
        self._idle_due_ms = 0

    def find(self, topic: str) -> TopicMetadata:
        """Return the metadata of a topic. Wait if the broker creates the topic automatically
        (auto.create.topics.enable).
        """
        return self._cluster.found_or_created(topic, self._settings.max_block_ms)

    def look_again(self) -> None:
        """Make the next call of `refresh` fetch the metadata, even if the present metadata is fresh."""
        self._metadata_due_ms = 0

    def refresh(self, appender: RecordAppender) -> None:
        """Fetch the metadata of the topics in use, because partitions may have been added or a topic recreated."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._metadata_due_ms:
            return
        self._metadata_due_ms = now_ms + self._settings.metadata_max_age_ms
        names = appender.topic_names()
        if not names:
            return
        try:
            found = self._cluster.find_topics(names)
        except (KafkaError, ClientError) as error:
            if not passes(error):
                raise
            self._metadata_due_ms = now_ms + self._cluster.config.retry_backoff_ms
            return
        for name, metadata in found.items():
            appender.adopt(name, metadata)

    def forget_idle(self, appender: RecordAppender, transactions: TransactionManager) -> list[PartitionQueue] | None:
        """Forget topics to which no record was sent for metadata.max.idle.ms.

        Without this, a program that uses ever new topics would use ever more memory. The sequence numbers of a
        forgotten topic are lost. So the epoch is bumped, after which all sequence numbers begin at 0. A transactional
        producer below transaction.version 2 cannot bump its epoch, and keeps the topics that have sequence numbers.
        Return the queues of the forgotten topics, or None if idle topics are not yet due to be looked for.
        """
        now_ms, idle_ms = self._clock.monotonic_ms(), self._settings.metadata_max_idle_ms
        if now_ms < self._idle_due_ms:
            return None
        self._idle_due_ms = now_ms + idle_ms // IDLE_LOOKS
        idle = appender.idle_queues(idle_ms)
        numbered = {topic for topic, queues in idle.items() if any(
            queue.producer.is_valid and queue.producer == transactions.producer for queue in queues)}
        if transactions.is_transactional:
            idle = {topic: queues for topic, queues in idle.items() if topic not in numbered}
        elif numbered:
            transactions.bump_epoch()
        appender.forget(idle)
        self._cluster.forget_topics(idle)
        return [queue for queues in idle.values() for queue in queues]


def passes(error: KafkaError | ClientError) -> bool:
    """Return whether an error is temporary, so that the next turn of the producer can try again."""
    return error.code.retriable if isinstance(error, KafkaError) else not error.is_lasting
