"""The implementation of the protocol's `Store` by a broker."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kbroker.base.errors import ErrorCode
from kbroker.client import KafkaError, Producer, ProducerFencedError
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker.client.stream_settings import ProducerSettings
from kbroker_tools.spark.sink.coordinator import TaskTransactions
from kbroker_tools.spark.sink.ledger import Ledger, partition_counts
from kbroker_tools.spark.sink.options import SinkOptions
from kbroker_tools.spark.sink.rows import send_rows, staged_batches
from kbroker_tools.spark.sink.topics import create_topics
from kbroker_tools.spark.sink.values import Decision, SinkError, Staged, Visible, driver_id

_STALE_PAIR = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH,
                         ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_TXN_STATE})
"""The errors that the broker returns for a producer id and epoch whose transaction was ended by another process. Apache
Kafka 4.3 answers a late commit with the last of these errors."""

LIMITED_BY = {False: 'transactionTimeout', True: 'half of decisionMargin'}
"""The name of the limit on the driver's transaction, for a decision that is not urgent and for one that is."""


class BrokerStore(TaskTransactions):
    """A broker, as the `Store` of the protocol. Connections are opened when they are first needed."""

    def __init__(self, options: SinkOptions, cluster: Cluster | None = None):
        """If `cluster` is given, the caller must close it."""
        self.cluster = cluster or Cluster(ClientConfig.from_settings(options.connection()))
        super().__init__(self.cluster)
        self._options = options
        self._owns_cluster = cluster is None
        self.ledger_topic = options.ledger_topic
        self._ledger = Ledger(self.cluster, options.ledger_topic)

    def close(self) -> None:
        if self._owns_cluster:
            self.cluster.close()

    # ---- the drivers

    def check_topic(self) -> None:
        if self._options.topic is not None:
            self._existing([self._options.topic])

    def fence(self, prefix: str, is_urgent: bool = False) -> ProducerIdAndEpoch:
        self._ledger.ensure()
        producer = self._driver(is_urgent)
        initialize(producer)
        with producer:
            return producer.transactions.producer

    def decisions(self, prefix: str) -> list[Decision]:
        return self._ledger.decisions(prefix)

    def visible_decisions(self, prefix: str) -> Visible:
        return self._ledger.visible_decisions(prefix)

    def write(self, staged: Sequence[Staged], decision: Decision, check: Callable[[], None]) -> None:
        if staged:
            self.check_cluster(staged[0].plan.cluster_id)
        self.check_partitions(_highest(staged))
        is_urgent = bool(staged) and staged[0].plan.is_urgent
        may_time_out = bool(decision.handles) and not staged[0].plan.is_two_phase
        producer = self._driver(is_urgent)
        producer.transactions.resume(decision.pair)
        try:
            with producer, producer.transaction():
                for message in staged:
                    for batch in staged_batches(message.chunks):
                        send_rows(producer, batch, self._options.topic)
                if not may_time_out:
                    producer.flush()
                    check()
                # The row of the ledger is sent last, because other prefixes wait while a transaction is open in the
                # ledger.
                producer.send(self._options.ledger_topic, decision.value(), decision.key(), partition=0)
                if may_time_out:
                    # The timeout of the transaction begins with its first row. Write that row before the time is
                    # checked.
                    producer.flush()
                    check()
        except KafkaError as error:
            if is_stale(error):
                limit_ms = self._options.decision_limit_ms(is_urgent)
                raise SinkError(f'since the plan of this write, another query or driver has taken the prefix '
                                f'{decision.prefix!r}, or {LIMITED_BY[is_urgent]} ({limit_ms} ms) has passed: {error}'
                                ) from error
            raise

    # ---- rows

    def producer(self, transactional_id: str | None = None, timeout_ms: int | None = None) -> Producer:
        """Return a producer that shares the connections of the store. With `timeout_ms` None, its transactions are in
        two-phase commit."""
        settings: dict[str, object] = {**self._options.producer()}
        if transactional_id is not None:
            settings['transactional.id'] = transactional_id
            if timeout_ms is None:
                settings['transaction.two.phase.commit.enable'] = 'true'
            else:
                settings['transaction.timeout.ms'] = timeout_ms
        return Producer(self.cluster, settings)

    def _driver(self, is_urgent: bool) -> Producer:
        """Return a producer with the drivers' transactional.id. It has not claimed the id."""
        return self.producer(driver_id(self._options.prefix), self._options.decision_limit_ms(is_urgent))

    def check_cluster(self, planned: str | None) -> None:
        """Raise SinkError unless this cluster has the id that the plan names."""
        self.cluster.refresh([])
        if self.cluster.cluster_id != planned:
            raise SinkError(f'{self._options.kafka["bootstrap.servers"]}: found cluster {self.cluster.cluster_id}, '
                            f'and the write was planned for cluster {planned}')

    def check_partitions(self, highest: Mapping[str, int]) -> None:
        """`highest` maps a topic to the highest partition number that a row names. Raise SinkError unless each topic
        has this partition. A topic that does not exist may be created."""
        counts = self._existing(list(highest))
        for topic, number in highest.items():
            if number >= counts[topic]:
                raise SinkError(f'found partition {number} in a row of topic {topic}, which has {counts[topic]} '
                                'partitions')
            if topic == self._options.ledger_topic:
                raise SinkError(f'found {topic} in the column topic, which is the ledger of the sink')

    def _existing(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Return {topic: number of partitions}. With createTopics, missing topics are created here. Otherwise the
        broker creates a missing topic, as it does for any producer.

        Raise SinkError if a topic is not created.
        """
        found = partition_counts(self.cluster, topics)
        missing = [topic for topic in topics if topic not in found]
        if missing and self._options.new_topics is not None:
            create_topics(self.cluster, missing, self._options.new_topics)
            return found | partition_counts(self.cluster, missing)
        limit_ms = ProducerSettings.from_properties(self._options.producer()).max_block_ms
        for topic in topics:
            if topic not in found:
                try:
                    found[topic] = len(self.cluster.found_or_created(topic, limit_ms).partitions)
                except KafkaError as error:
                    if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise
                    raise SinkError(f'found no topic {topic!r}, expected it to exist: create it first, use '
                                    'createTopics=true, or set auto.create.topics.enable of the broker') from None
        return found


def is_stale(error: BaseException) -> bool:
    """Return whether the broker refuses a producer id and epoch because another process has ended their transaction."""
    return isinstance(error, ProducerFencedError) or (isinstance(error, KafkaError) and error.code in _STALE_PAIR)


def initialize(producer: Producer) -> None:
    """Claim the transactional.id of a producer. Raise SinkError if the broker does not allow the timeout of its
    transactions."""
    try:
        producer.init_transactions(keep=False)
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise
        raise SinkError(f'found a transactionTimeout of {producer.settings.transaction_timeout_ms} ms, which is more '
                        'than the broker allows: set a lower one, or raise transaction.max.timeout.ms of the broker'
                        ) from error


def _highest(staged: Sequence[Staged]) -> dict[str, int]:
    """Return {topic: the highest partition number that a staged row names}."""
    highest: dict[str, int] = {}
    for message in staged:
        for topic, number in message.highest_partitions:
            highest[topic] = max(number, highest.get(topic, number))
    return highest
