"""The ledger of the sink on a broker, and the transaction that writes rows and ledger together.

The ledger is a compacted topic. Its key is `<prefix>~<owner>`, and its value the last decided unit of that owner.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from kbroker.client import Admin, Consumer, KafkaError, Producer, ProducerFencedError
from kbroker.client.admin import LATEST, NewTopic
from kbroker.client.admin_requests import ResourceType
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker.client.stream_settings import ProducerSettings
from kbroker.clock import Clock
from kbroker.errors import ErrorCode
from kbroker_tools.spark.sink.options import SinkOptions
from kbroker_tools.spark.sink.protocol import Decision, SinkError, Staged
from kbroker_tools.spark.sink.rows import send_rows, staged_batches

POLL_MS = 500
CLEANUP_POLICY = 'cleanup.policy'
CONFIGS = {CLEANUP_POLICY: 'compact', 'segment.bytes': str(1 << 20)}
"""Each plan reads the whole ledger. The segment that is being written is not compacted, so it must stay small."""

_STALE_PAIR = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH,
                         ErrorCode.INVALID_PRODUCER_ID_MAPPING})


def driver_id(prefix: str) -> str:
    """Return the transactional.id of the drivers of a prefix."""
    return f'{prefix}~d'


class Ledger:
    """The ledger topic of a cluster. Raises SinkError, KafkaError, ClientError."""

    def __init__(self, cluster: Cluster, topic: str, clock: Clock | None = None):
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._topic = topic
        self._clock = clock or Clock()

    def ensure(self) -> None:
        """Create the topic if it does not exist. SinkError if its rows would not be kept."""
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
        """Return the last decision of each owner of the prefix, in the order of the decisions.

        They include all that were committed before the call. An open transaction of another prefix can hide later rows
        from read_committed consumers, so the call waits for its end.
        """
        partition = (self._topic, 0)
        end_offset = self._admin.list_offsets({partition: LATEST})[partition].offset
        found: dict[str, Decision] = {}
        with Consumer(self._cluster, isolation_level='read_committed', auto_offset_reset='earliest') as consumer:
            consumer.assign([partition])
            for key, value in self._records(consumer, end_offset):
                if key.startswith(f'{prefix}~'.encode()):
                    decision = Decision.read(key, value)
                    found.pop(decision.unit.owner, None)
                    found[decision.unit.owner] = decision
        return list(found.values())

    def _records(self, consumer: Consumer, end_offset: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the committed records below `end_offset` and some above it."""
        timeout_ms = self._cluster.config.default_api_timeout_ms
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while (consumer.position(self._topic, 0) or 0) < end_offset:
            batches = consumer.poll(POLL_MS)
            for batch in batches:
                for record in batch.records():
                    if record.value is not None:
                        yield record.key or b'', record.value
            if not batches and self._clock.monotonic_ms() > deadline_ms:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f'{self._topic}: not readable up to offset {end_offset} '
                                 f'for {timeout_ms} ms, since an open transaction holds it. The command '
                                 f'`kbroker-transactions why-stuck {self._topic}` names the transaction')


class BrokerStore:
    """The broker as the protocol's store. Opens its connections when it is first used."""

    def __init__(self, options: SinkOptions):
        self._options = options
        self._cluster = Cluster(ClientConfig.from_settings(options.connection()))
        self._ledger = Ledger(self._cluster, options.ledger_topic)

    def close(self) -> None:
        self._cluster.close()

    def fence(self, prefix: str) -> tuple[str | None, ProducerIdAndEpoch]:
        if self._options.topic is not None:
            self._existing([self._options.topic])
        self._ledger.ensure()
        with self._producer() as producer:
            return self._cluster.cluster_id, producer.transactions.producer

    def decisions(self, prefix: str) -> list[Decision]:
        return self._ledger.decisions(prefix)

    def write(self, staged: Sequence[Staged], decision: Decision) -> None:
        self._check_cluster(staged[0].plan.cluster_id)
        self._check_partitions(staged)
        producer = self._producer()
        producer.transactions.resume(decision.pair)
        try:
            with producer, producer.transaction():
                for message in staged:
                    for batch in staged_batches(message.chunks):
                        send_rows(producer, batch, self._options.topic)
                producer.flush()    # the ledger comes last: other prefixes wait for open transactions in it
                producer.send(self._options.ledger_topic, decision.value(), decision.key(), partition=0)
        except KafkaError as error:
            if isinstance(error, ProducerFencedError) or error.code in _STALE_PAIR:
                limit_ms = self._options.transaction_timeout_ms
                raise SinkError(f'since the plan of this write, another query or driver has taken the prefix '
                                f'{decision.prefix!r}, or transactionTimeout ({limit_ms} ms) has passed: {error}'
                                ) from error
            raise

    def _producer(self) -> Producer:
        """Return a producer of the driver's transactional.id, without a pair. It shares the store's connections."""
        settings = {name: text for name, text in self._options.kafka.items() if name in ProducerSettings.defaults()}
        return Producer(self._cluster, {
            **settings, 'transactional.id': driver_id(self._options.prefix),
            'transaction.timeout.ms': self._options.transaction_timeout_ms})

    def _check_cluster(self, planned: str | None) -> None:
        self._cluster.refresh([])
        if self._cluster.cluster_id != planned:
            raise SinkError(f'{self._options.kafka["bootstrap.servers"]}: found cluster {self._cluster.cluster_id}, '
                            f'and the write was planned for cluster {planned}')

    def _check_partitions(self, staged: Sequence[Staged]) -> None:
        highest: dict[str, int] = {}
        for message in staged:
            for topic, number in message.highest_partitions:
                highest[topic] = max(number, highest.get(topic, number))
        counts = self._existing(list(highest))
        for topic, number in highest.items():
            if number >= counts[topic]:
                raise SinkError(f'found partition {number} in a row of topic {topic}, which has {counts[topic]} '
                                'partitions')
            if topic == self._options.ledger_topic:
                raise SinkError(f'found {topic} in the column topic, which is the ledger of the sink')

    def _existing(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Return the number of partitions by topic. SinkError for a topic that does not exist."""
        found = partition_counts(self._cluster, topics)
        for topic in topics:
            if topic not in found:
                raise SinkError(f'found no topic {topic!r}, expected it to exist: create it first')
        return found


def partition_counts(cluster: Cluster, topics: Sequence[str]) -> dict[str, int]:
    """Return the number of partitions of the topics that exist. KafkaError, ClientError."""
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
