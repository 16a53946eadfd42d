"""Decides what becomes of a sent batch: written, retried or failed. Each batch ends with a Delivery to the program."""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.accumulator import PartitionQueue, ProducerBatch
from kbroker.client.cluster import Cluster
from kbroker.client.errors import error_of, known_code
from kbroker.client.record_appender import RecordAppender
from kbroker.client.statistics import Counts
from kbroker.client.stream_settings import ProducerSettings
from kbroker.client.topics_in_use import TopicsInUse
from kbroker.client.transaction_manager import TransactionManager
from kbroker.client.transaction_state import Severity, severity_at_partition

_E = ErrorCode

_WRITTEN = frozenset({_E.NONE, _E.DUPLICATE_SEQUENCE_NUMBER})
# Errors that reject the sequence numbers of a batch, not its content.
_OUT_OF_PLACE = frozenset({_E.OUT_OF_ORDER_SEQUENCE_NUMBER, _E.UNKNOWN_PRODUCER_ID})
_STALE_METADATA = frozenset({
    _E.NOT_LEADER_OR_FOLLOWER, _E.LEADER_NOT_AVAILABLE, _E.UNKNOWN_TOPIC_OR_PARTITION, _E.UNKNOWN_TOPIC_ID,
    _E.KAFKA_STORAGE_ERROR, _E.FENCED_LEADER_EPOCH, _E.REPLICA_NOT_AVAILABLE,
})


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome of one batch.

    `contexts` has the context that `send` got for each record; empty if no record has a context.
    """

    topic: str
    partition: int
    contexts: list[Any]
    records_count: int
    base_offset: int = -1
    """The offset of the first record; -1 if the batch failed, or with acks=0, because the broker does not answer."""
    error: KafkaError | None = None
    record_errors: dict[int, str] = field(default_factory=dict)
    """Maps the index (from 0) in the batch of each record that the broker rejected to its error."""


class Outcomes:
    """Decides after the answer to a batch, or the loss of the answer, whether to retry. Reports final outcomes to
    `on_delivery`.

    Without `on_delivery`, `failure` is the error of the first batch that failed since the last `raise_failure`.
    """

    def __init__(self, cluster: Cluster, settings: ProducerSettings, clock: Clock, transactions: TransactionManager,
                 appender: RecordAppender, topics: TopicsInUse, counts: Counts,
                 on_delivery: Callable[[Delivery], None] | None):
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._transactions = transactions
        self._appender = appender
        self._topics = topics
        self._counts = counts
        self._on_delivery = on_delivery
        self.failure: KafkaError | None = None
        self._raised: BaseException | None = None
        self.lost_numbers: set[PartitionQueue] = set()
        """The partitions for which a numbered batch was not written. They reject later batches until the epoch is
        bumped.
        """

    def take(self, queue: PartitionQueue, batch: ProducerBatch, row: Any) -> None:
        """Finish, retry, split or fail a batch, according to its row in the answer."""
        batch.is_in_doubt = False
        if row.error_code in _WRITTEN:
            self.finish(queue, batch, row.base_offset)
            return
        code = known_code(row.error_code)
        what = f'{queue.topic}-{queue.partition}'
        error = error_of(row.error_code, what, row.error_message, 'Produce')
        if code is ErrorCode.MESSAGE_TOO_LARGE and batch.records_count > 1:
            queue.put_back_halves(batch)
            self._counts.add('batch_split_total')
        elif code in _OUT_OF_PLACE and (queue in self.lost_numbers or not queue.is_first_unfinished(batch)):
            queue.put_back(batch, 0)    # rejected because of an earlier batch
        elif code in _OUT_OF_PLACE and not self._transactions.is_transactional:
            # There are two causes. The partition has forgotten the producer. Or it did not know the producer when it
            # refused this batch, and then accepted a later batch, because the first batch of a producer may have any
            # sequence number. Under a new epoch, all sequence numbers restart at 0.
            queue.put_back(batch, 0)
            self.lost_numbers.add(queue)
        elif severity_at_partition(code) is Severity.RETRY:
            if code in _STALE_METADATA:
                self._cluster.forget()
                self._topics.look_again()
            self._retry(queue, batch, error)
        else:
            record_errors = {entry.batch_index: entry.batch_index_error_message or '' for entry in row.record_errors}
            self.fail(queue, batch, error, record_errors, in_flight=True)

    def put_back(self, batches: Mapping[PartitionQueue, ProducerBatch], error: BaseException) -> None:
        """Requeue the batches of a request that got no answer. The broker may or may not have written them."""
        self._cluster.forget()
        for queue, batch in batches.items():
            batch.is_in_doubt = True
            self._retry(queue, batch, KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error)))

    def _retry(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError) -> None:
        if batch.attempts >= self._settings.retries:
            self.fail(queue, batch, error, in_flight=True)
            return
        config = self._cluster.config
        backoff_ms = min(config.retry_backoff_ms << min(batch.attempts, 10), config.retry_backoff_max_ms)
        self._counts.add('record_retry_total', batch.records_count)
        queue.put_back(batch, self._clock.monotonic_ms() + backoff_ms)

    def finish(self, queue: PartitionQueue, batch: ProducerBatch, base_offset: int) -> None:
        """Report a batch as written."""
        queue.finish(batch)
        self._report(queue, batch, base_offset)

    def fail(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError,
             record_errors: dict[int, str] | None = None, in_flight: bool = False) -> None:
        """Report a batch as failed. Its missing sequence numbers make the partition reject later batches."""
        if in_flight:
            queue.finish(batch)
        if batch.base_sequence is not None:
            self._transactions.has_lost_sequence = True
            self.lost_numbers.add(queue)
        if self._transactions.is_transactional:
            severity = severity_at_partition(error.code)
            self._transactions.fail(error, Severity.ABORTABLE if severity is Severity.RETRY else severity)
        self._report(queue, batch, -1, error, record_errors)
        if self._transactions.is_transactional:
            self.drop_waiting(error)

    def drop_waiting(self, error: KafkaError) -> None:
        """Report all batches that are not in flight as failed."""
        for queue in self._appender.queues:
            for batch in queue.drop_waiting():
                if batch.base_sequence is not None:
                    self._transactions.has_lost_sequence = True
                self._report(queue, batch, -1, error)

    def forget_numbers_of(self, queues: Collection[PartitionQueue]) -> None:
        """Forget that numbered batches were lost in partitions that the producer no longer uses."""
        self.lost_numbers.difference_update(queues)

    def forget(self) -> None:
        """Forget the failures of a transaction that is being aborted."""
        self.failure = None
        self.lost_numbers.clear()

    # ---- reports

    def _report(self, queue: PartitionQueue, batch: ProducerBatch, base_offset: int, error: KafkaError | None = None,
                record_errors: dict[int, str] | None = None) -> None:
        self._appender.release(batch)
        self._counts.add('record_send_total' if error is None else 'record_error_total', batch.records_count)
        if self._on_delivery is None:
            self.failure = self.failure or error
            return
        delivery = Delivery(queue.topic, queue.partition, batch.contexts, batch.records_count, base_offset, error,
                            record_errors or {})
        try:
            self._on_delivery(delivery)
        except BaseException as raised:     # the remaining batches of the answer must be finished, too
            self._raised = self._raised or raised

    def raise_reported(self) -> None:
        """Raise the first error that `on_delivery` has raised since the last call of this method."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    def raise_failure(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
