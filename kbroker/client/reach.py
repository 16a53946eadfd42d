"""Separates the partitions of a consumer that have no leader, so that they do not delay the other partitions."""
from __future__ import annotations

from collections.abc import Iterable

from kbroker.base.clock import Clock
from kbroker.base.errors import KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.cluster import Cluster

NEVER_MS = 2**63


class Reach:
    """The partitions that have no leader. Their metadata is fetched again after a back-off.

    The back-off grows from retry.backoff.ms to retry.backoff.max.ms.
    """

    def __init__(self, cluster: Cluster, clock: Clock):
        self.errors: dict[TopicPartition, KafkaError] = {}
        """Maps each partition that had no leader at the last fetch of the metadata to its error."""
        self.due_ms = NEVER_MS
        """The time of the next fetch of the metadata, in ms of the monotonic clock."""
        self._cluster = cluster
        self._clock = clock
        self._backoff_ms = cluster.config.retry_backoff_ms

    def within(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return those of the given partitions that have a leader.

        Raise KafkaError for a topic that does not exist, ClientError for a network failure.
        """
        now_ms, config = self._clock.monotonic_ms(), self._cluster.config
        known = self.errors if now_ms < self.due_ms else {}
        wanted = [at for at in partitions if at not in known]
        found = self._cluster.leaderless(wanted) if wanted else {}
        self.errors = {**known, **found}
        if found:
            self.due_ms = now_ms + self._backoff_ms
            self._backoff_ms = min(self._backoff_ms * 2, config.retry_backoff_max_ms)
        elif not self.errors:
            self.due_ms, self._backoff_ms = NEVER_MS, config.retry_backoff_ms
        return [at for at in wanted if at not in found]
