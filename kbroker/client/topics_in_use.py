"""The topics of a producer. Old metadata is fetched again, and topics without records are forgotten."""
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
"""The number of searches for idle topics within metadata.max.idle.ms."""


class TopicsInUse:
    """The schedule of a producer's work on its topics."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings, clock: Clock):
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._metadata_due_ms = clock.monotonic_ms() + settings.metadata_max_age_ms
        self._idle_due_ms = 0

    def find(self, topic: str) -> TopicMetadata:
        """Return the topic. Wait for a topic that the broker creates automatically (auto.create.topics.enable)."""
        return self._cluster.found_or_created(topic, self._settings.max_block_ms)

    def look_again(self) -> None:
        """Let the next `refresh` fetch the metadata, whatever its age."""
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
        """Forget topics without a record for metadata.max.idle.ms, because a program may use ever new topics.

        This also drops the sequence numbers of the topics. So the epoch is bumped, under which all numbers begin at 0.
        A transactional producer below transaction.version 2 cannot bump it, and keeps topics with numbers. Return the
        queues of the forgotten topics, or None between two searches.
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
    """Return whether an error ends by itself, so that the next turn tries again."""
    return error.code.retriable if isinstance(error, KafkaError) else not error.is_lasting
