"""The ledger of the sink, which is a topic on the broker.

The topic is compacted. The key of a row is `<prefix>~<owner>`, and its value is the last decided unit of this owner. A
unit is a micro-batch or a job, and its owner is a query or a job.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode
from kbroker.client import Admin, Consumer, KafkaError
from kbroker.client.admin import LATEST, NewTopic
from kbroker.client.admin_requests import ResourceType
from kbroker.client.cluster import Cluster
from kbroker_tools.spark.sink.values import Decision, SinkError, Visible

POLL_MS = 500
ENDING_MS = 2000
"""The time in milliseconds in which the markers of an ended transaction normally arrive."""
CLEANUP_POLICY = 'cleanup.policy'
CONFIGS = {CLEANUP_POLICY: 'compact', 'segment.bytes': str(1 << 20)}
"""The configs of the ledger topic. Each plan reads the whole ledger, and the active segment is never compacted. The
segments are therefore small."""


class Ledger:
    """The ledger topic of a cluster. Methods raise SinkError, KafkaError and ClientError."""

    def __init__(self, cluster: Cluster, topic: str, clock: Clock | None = None):
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._topic = topic
        self._clock = clock or Clock()

    def ensure(self) -> None:
        """Create the topic if it does not exist. Raise SinkError if the topic exists with configs that would delete its
        rows."""
        if self.exists():
            self._check()
            return
        error = self._admin.create_topics([NewTopic(self._topic, 1, configs=CONFIGS)])[self._topic]
        if error is not None and error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise error
        self._cluster.retrying(lambda: self._cluster.topics([self._topic]), f'topic {self._topic}',
                               also=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
        self._check()

    def exists(self) -> bool:
        return bool(partition_counts(self._cluster, [self._topic]))

    def _check(self) -> None:
        resource = (ResourceType.TOPIC, self._topic)
        found = self._admin.describe_configs([resource])[resource]
        if isinstance(found, KafkaError):
            raise found
        policy = next((config.value for config in found if config.name == CLEANUP_POLICY), None)
        if policy != 'compact':
            raise SinkError(f'the ledger {self._topic} has {CLEANUP_POLICY}={policy}, expected compact: otherwise '
                            'decisions would be deleted, and a repeated micro-batch would be written twice')

    def decisions(self, prefix: str) -> list[Decision]:
        """Return the last decision of each owner of the prefix, in the order in which they were made. All decisions
        that were committed before the call are included.

        An open transaction of another prefix can hide later rows from read_committed consumers. The call waits until
        this transaction has ended, and raises KafkaError after the request timeout.
        """
        timeout_ms = self._cluster.config.default_api_timeout_ms
        found, end_offset = self._read(prefix, timeout_ms)
        if end_offset is not None:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f'{self._topic}: not readable up to offset {end_offset} '
                             f'for {timeout_ms} ms, since an open transaction holds it. The command '
                             f'`kbroker-transactions why-stuck {self._topic}` names the transaction')
        return found

    def visible_decisions(self, prefix: str) -> Visible:
        """Return the decisions that no open transaction hides. Wait at most ENDING_MS for later decisions to become
        visible."""
        found, end_offset = self._read(prefix, ENDING_MS)
        return Visible(found, end_offset is not None)

    def _read(self, prefix: str, timeout_ms: int) -> tuple[list[Decision], int | None]:
        """Return (decisions, offset). The offset is None if the ledger could be read to its end. Otherwise it is the
        present end of the ledger."""
        partition = (self._topic, 0)
        end_offset = self._admin.list_offsets({partition: LATEST})[partition].offset
        found: dict[str, Decision] = {}
        with Consumer(self._cluster, isolation_level='read_committed', auto_offset_reset='earliest') as consumer:
            consumer.assign([partition])
            for key, value, time_ms in self._records(consumer, end_offset, timeout_ms):
                if key.startswith(f'{prefix}~'.encode()):
                    decision = Decision.read(key, value, time_ms)
                    found.pop(decision.unit.owner, None)
                    found[decision.unit.owner] = decision
            is_whole = (consumer.position(*partition) or 0) >= end_offset
        return list(found.values()), None if is_whole else end_offset

    def _records(self, consumer: Consumer, end_offset: int, timeout_ms: int
                 ) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield the committed records below `end_offset`, and perhaps some above it. Stop early when the time is up."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while (consumer.position(self._topic, 0) or 0) < end_offset:
            batches = consumer.poll(POLL_MS)
            for batch in batches:
                for record in batch.records():
                    if record.value is not None:
                        yield record.key or b'', record.value, record.timestamp_ms
            if not batches and self._clock.monotonic_ms() > deadline_ms:
                return


def partition_counts(cluster: Cluster, topics: Sequence[str]) -> dict[str, int]:
    """Return {topic: number of partitions} for the topics that exist. Raise KafkaError or ClientError if the broker
    fails."""
    counts = {}
    for topic in topics:
        try:
            found = cluster.retrying(partial(cluster.topics, [topic]), f'topic {topic}')
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        else:
            counts[topic] = len(found[topic].partitions)
    return counts
