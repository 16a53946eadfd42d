"""The producer's side of idempotence and transactions: its id and epoch, and its requests to the coordinators.

The cluster's finalized feature transaction.version selects one of two protocols (KIP-890):

              below 2                                             2
    begin     nothing is sent                                     nothing is sent
    produce   AddPartitionsToTxn before a partition's first       Produce v12 adds the partition itself
    offsets   AddOffsetsToTxn, then TxnOffsetCommit               TxnOffsetCommit v5 adds the group itself
    end       EndTxn v4; the epoch stays, and after a batch was   EndTxn v5; its answer has the epoch of the next
              lost InitProducerId bumps it (KIP-360)              transaction
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.client.accumulator import ProducerIdAndEpoch
from kbroker.client.admin import OffsetAndMetadata
from kbroker.client.assignor import TopicPartition, by_topic
from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.connection import Connection
from kbroker.client.errors import ClientError, error_of, known_code
from kbroker.client.stream_settings import ProducerSettings
from kbroker.client.transaction_state import (
    FatalProducerError,
    Lifecycle,
    ProducerState,
    Severity,
    TransactionError,
    severity_at_coordinator,
)
from kbroker.clock import Clock
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol import messages

LAST_EPOCH = 32767
FIRST_BACKOFF_MS = 20
"""Errors like CONCURRENT_TRANSACTIONS end as soon as the markers of the previous transaction are written."""
EPOCH_BUMPS_FROM = 2


class GroupMetadata(NamedTuple):
    """The committer of offsets: a member of a generation (KIP-447), or with the defaults only a group."""

    group_id: str
    generation_id: int = -1
    member_id: str = ''
    group_instance_id: str | None = None


class TransactionManager:
    """The transaction protocol of one producer.

    Raises TransactionError if the transaction can only be aborted, FatalProducerError if the producer is unusable. Any
    other KafkaError or ClientError means that max.block.ms passed without a usable answer.
    """

    def __init__(self, cluster: Cluster, settings: ProducerSettings, clock: Clock | None = None,
                 sleep: Callable[[float], None] = time.sleep):
        self._cluster = cluster
        self._settings = settings
        self._clock = clock or Clock()
        self._sleep = sleep
        self.lifecycle = Lifecycle()
        self.producer = ProducerIdAndEpoch()
        self.is_version_2 = False
        self.has_lost_sequence = False
        """A numbered batch was not written. Partitions expect its sequence, so only a new epoch lets them continue."""
        self._partitions: set[TopicPartition] = set()
        self._is_started = False

    @property
    def is_transactional(self) -> bool:
        return self._settings.transactional_id is not None

    @property
    def state(self) -> ProducerState:
        return self.lifecycle.state

    # ---- producer id and epoch

    def initialize(self) -> None:
        """Get a producer id, or a newer epoch of the transactional.id, which fences its previous user."""
        self.lifecycle.enter(ProducerState.INITIALIZING)
        self._initialize(ProducerIdAndEpoch())
        self.lifecycle.enter(ProducerState.READY)

    def bump_epoch(self) -> None:
        """Raise the epoch locally, as a producer without a transactional.id may; get a new id when epochs run out."""
        if self.producer.producer_epoch < LAST_EPOCH:
            self.producer = self.producer._replace(producer_epoch=self.producer.producer_epoch + 1)
        else:
            self._initialize(ProducerIdAndEpoch())

    def _initialize(self, current: ProducerIdAndEpoch) -> None:
        answer = self._ask(messages.InitProducerIdRequest(
            transactional_id=self._settings.transactional_id,
            transaction_timeout_ms=self._settings.transaction_timeout_ms if self.is_transactional else 2**31 - 1,
            producer_id=current.producer_id, producer_epoch=current.producer_epoch), 'InitProducerId', max_version=5)
        self.producer = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        self.has_lost_sequence = False

    # ---- a transaction

    def begin(self) -> None:
        features = self._cluster.retrying(self._coordinator, self._words('finding the coordinator'),
                                          timeout_ms=self._settings.max_block_ms).finalized_features
        self.lifecycle.enter(ProducerState.IN_TRANSACTION)
        self._partitions.clear()
        self._is_started = False
        self.is_version_2 = features.get('transaction.version', 0) >= EPOCH_BUMPS_FROM

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions before the first batch to each. Raises TransactionError or FatalProducerError."""
        self._is_started = self._is_started or self.is_version_2
        new = set(partitions) - self._partitions
        if not new or self.is_version_2:
            return
        topics = [messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                  for topic, indexes in by_topic(new).items()]
        self._ask(messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._settings.transactional_id,
            v3_and_below_producer_id=self.producer.producer_id,
            v3_and_below_producer_epoch=self.producer.producer_epoch,
            v3_and_below_topics=topics), 'AddPartitionsToTxn', max_version=3)
        self._partitions |= new
        self._is_started = True

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        """Add offsets that the group commits with the transaction. Raises TransactionError or FatalProducerError."""
        self.lifecycle.check_can_send()
        self._is_started = self._is_started or self.is_version_2
        if not self.is_version_2:
            self._ask(messages.AddOffsetsToTxnRequest(
                transactional_id=self._settings.transactional_id, producer_id=self.producer.producer_id,
                producer_epoch=self.producer.producer_epoch, group_id=group.group_id), 'AddOffsetsToTxn')
            self._is_started = True
        request = messages.TxnOffsetCommitRequest
        topics = [request.TxnOffsetCommitRequestTopic(name=topic, partitions=[
            request.TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=offsets[topic, index].offset,
                committed_leader_epoch=offsets[topic, index].leader_epoch,
                committed_metadata=offsets[topic, index].metadata) for index in indexes])
            for topic, indexes in by_topic(offsets).items()]
        self._ask(request(
            transactional_id=self._settings.transactional_id, group_id=group.group_id,
            producer_id=self.producer.producer_id, producer_epoch=self.producer.producer_epoch,
            generation_id=group.generation_id, member_id=group.member_id, group_instance_id=group.group_instance_id,
            topics=topics), 'TxnOffsetCommit', max_version=5 if self.is_version_2 else 4, group_id=group.group_id)

    def end(self, committed: bool) -> None:
        """Commit or abort. No batch of the transaction may be in flight.

        After an error other than TransactionError and FatalProducerError, the outcome is unknown; the same call may be
        repeated.
        """
        ending = ProducerState.COMMITTING if committed else ProducerState.ABORTING
        if self.lifecycle.state is not ending:
            if committed:
                self.lifecycle.check_can_send()
            self.lifecycle.enter(ending)
        if self._is_started:
            answer = self._ask(messages.EndTxnRequest(
                transactional_id=self._settings.transactional_id, producer_id=self.producer.producer_id,
                producer_epoch=self.producer.producer_epoch, committed=committed), 'EndTxn',
                max_version=5 if self.is_version_2 else 4)
            if answer.producer_id >= 0:
                self.producer = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
                self.has_lost_sequence = False
        if self.has_lost_sequence:
            self.lifecycle.enter(ProducerState.INITIALIZING)
            self._initialize(self.producer)
        self.lifecycle.enter(ProducerState.READY)

    def fail(self, error: KafkaError, severity: Severity) -> None:
        """Record that a batch of the transaction was not written. Ignored while aborting, where it is irrelevant."""
        if severity is Severity.FATAL:
            self.lifecycle.enter(ProducerState.FATAL_ERROR, error)
        elif self.lifecycle.state in (ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE_ERROR):
            self.lifecycle.enter(ProducerState.ABORTABLE_ERROR, error)

    # ---- asking a coordinator

    def _coordinator(self, group_id: str | None = None) -> Connection:
        if group_id is not None:
            return self._cluster.coordinator(KeyType.GROUP, group_id)
        if not self.is_transactional:
            return self._cluster.any()
        return self._cluster.coordinator(KeyType.TRANSACTION, str(self._settings.transactional_id))

    def _ask(self, request: Any, name: str, max_version: int | None = None, group_id: str | None = None) -> Any:
        """Return the answer to `request`, repeated until it succeeds, has a lasting error, or max.block.ms is over."""
        deadline_ms = self._clock.monotonic_ms() + self._settings.max_block_ms
        backoff_ms = FIRST_BACKOFF_MS
        while True:
            error: KafkaError | ClientError
            try:
                answer = self._coordinator(group_id).call(request, max_version=max_version)
                code = _worst_code(answer)
                if code is ErrorCode.NONE:
                    return answer
                error = error_of(code, self._words(name))
                severity = severity_at_coordinator(code)
            except ClientError as lost:
                if lost.is_lasting:
                    raise
                error, severity = lost, Severity.FIND_COORDINATOR
            except KafkaError as refused:   # FindCoordinator's own answer
                if not refused.code.retriable:
                    raise
                error, severity = refused, Severity.FIND_COORDINATOR
            self._raise_lasting(error, severity)
            if self._clock.monotonic_ms() + backoff_ms > deadline_ms:
                raise error
            if severity is Severity.FIND_COORDINATOR:
                self._cluster.forget()
            self._sleep(backoff_ms / 1000)
            backoff_ms = min(backoff_ms * 2, self._cluster.config.retry_backoff_max_ms)

    def _raise_lasting(self, error: KafkaError | ClientError, severity: Severity) -> None:
        if not isinstance(error, KafkaError):
            return
        if severity is Severity.ABORTABLE and self.lifecycle.can_enter(ProducerState.ABORTABLE_ERROR):
            self.lifecycle.enter(ProducerState.ABORTABLE_ERROR, error)
            raise TransactionError(error.code, str(error))
        if severity in (Severity.ABORTABLE, Severity.FATAL):
            if error.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED):
                error = KafkaError(ErrorCode.PRODUCER_FENCED, f'{error} (another producer uses the transactional.id '
                                                              'now, or the transaction timed out)')
            self.lifecycle.enter(ProducerState.FATAL_ERROR, error)
            raise FatalProducerError(error.code, str(error))

    def _words(self, name: str) -> str:
        if not self.is_transactional:
            return name
        return f'{name} of transactional.id {self._settings.transactional_id!r}'


def _worst_code(answer: Any) -> ErrorCode:
    """Return the decisive error of an answer: among several partitions, the first that is not transient."""
    if isinstance(answer, messages.AddPartitionsToTxnResponse):
        codes = [row.partition_error_code for topic in answer.results_by_topic_v3_and_below
                 for row in topic.results_by_partition]
    elif isinstance(answer, messages.TxnOffsetCommitResponse):
        codes = [row.error_code for topic in answer.topics for row in topic.partitions]
    else:
        codes = [answer.error_code]
    found = [known_code(code) for code in codes if code]
    if not found:
        return ErrorCode.NONE
    # OPERATION_NOT_ATTEMPTED only means that another partition failed.
    return min(found, key=lambda code: (code.retriable, code is ErrorCode.OPERATION_NOT_ATTEMPTED))
