"""The producer's side of idempotence and transactions: the producer id and epoch, and the requests to coordinators.

The cluster's finalized feature transaction.version selects one of two protocols (KIP-890):

              below 2                                             2
    begin     nothing is sent                                     nothing is sent
    produce   AddPartitionsToTxn before a partition's first       Produce v12 adds the partition itself
    offsets   AddOffsetsToTxn, then TxnOffsetCommit               TxnOffsetCommit v5 adds the group itself
    end       EndTxn v4; the epoch stays, and after a batch was   EndTxn v5; its answer has the epoch of the next
              lost InitProducerId bumps it (KIP-360)              transaction

With two-phase commit (KIP-939), InitProducerId v6 returns the transaction that the previous producer with this
transactional.id did not end. The coordinator knows this transaction, so an EndTxn ends it. Preparing a transaction
sends no request.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import OffsetAndMetadata
from kbroker.client.assignor import by_topic
from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.connection import Connection
from kbroker.client.errors import ClientError, error_of, known_code
from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker.client.stream_settings import ProducerSettings
from kbroker.client.transaction_state import (
    IllegalProducerState,
    Lifecycle,
    PreparedTransaction,
    ProducerState,
    Severity,
    TransactionError,
    fatal_error,
    severity_at_coordinator,
)
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey

LAST_EPOCH = 32767
FIRST_BACKOFF_MS = 20
"""The pause after errors like CONCURRENT_TRANSACTIONS, which last until the markers of the previous transaction are
written.
"""
EPOCH_BUMPS_FROM = 2
LAST_ORDINARY_INIT_VERSION = 5
TWO_PHASE_INIT_VERSION = 6
ROTATION_EPOCH = LAST_EPOCH - 2
"""At this epoch or above, the coordinator may assign a new producer id instead of the next epoch."""


class GroupMetadata(NamedTuple):
    """The group, generation and member for which offsets are committed (KIP-447). The defaults name only the group."""

    group_id: str
    generation_id: int = -1
    member_id: str = ''
    group_instance_id: str | None = None


def as_group(given: GroupMetadata | str) -> GroupMetadata:
    """Return the metadata of a group, for which its id is enough. Raise TypeError for anything else."""
    if isinstance(given, str):
        return GroupMetadata(given)
    if not isinstance(given, GroupMetadata):
        raise TypeError(f'found {type(given).__name__} as a group, expected its id as str, or `group_metadata` of a '
                        'consumer')
    return given


class TransactionManager:
    """The transaction protocol of one producer.

    The methods raise TransactionError if the transaction can only be aborted, FatalProducerError if the producer is
    unusable. A different KafkaError or ClientError means that max.block.ms passed without a usable answer.
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
        """True if a numbered batch was not written.

        The partition of the batch expects the missing sequence numbers, and accepts later batches only under a new
        epoch.
        """
        self.prepared: PreparedTransaction | None = None
        """The transaction that was prepared, or found by `initialize`; None if there is none."""
        self._partitions: set[TopicPartition] = set()
        self._is_started = False
        """True if the coordinator knows the transaction, so that the transaction must be ended by EndTxn."""
        self._unfinished: tuple[str, bool] | None = None
        """The call that timed out, with its argument; else None. Only the same call may follow."""

    @property
    def is_transactional(self) -> bool:
        return self._settings.transactional_id is not None

    @property
    def state(self) -> ProducerState:
        return self.lifecycle.state

    # ---- producer id and epoch

    def initialize(self, keep: bool = False) -> None:
        """Get a producer id. With a transactional.id, get its next epoch, which fences the previous producer.

        The coordinator aborts the open transaction of the previous producer. With `keep` the coordinator keeps this
        transaction, and it becomes `prepared`. After a call that timed out, only the same call may follow.
        """
        self._begin_call(('init_transactions', keep), ProducerState.INITIALIZING)
        found = self._initialize(ProducerIdAndEpoch(), keep)
        if self.is_transactional:
            self._choose_version()
        self._unfinished = None
        if found is None:
            self.lifecycle.enter(ProducerState.READY)
            return
        self.prepared, self._is_started = found, True
        self.lifecycle.enter(ProducerState.PREPARED_TRANSACTION)

    def resume(self, producer: ProducerIdAndEpoch) -> None:
        """Use the producer id and epoch that `initialize` received in a different process, which no longer uses them.

        This sends no request about the transactional.id. If a newer producer has claimed the transactional.id, the
        broker refuses the first write or the end of the transaction.
        """
        self.lifecycle.enter(ProducerState.INITIALIZING)
        self.producer = producer
        self._choose_version()
        self.lifecycle.enter(ProducerState.READY)

    def check_two_phase_commit(self) -> None:
        """Raise KafkaError(UNSUPPORTED_VERSION) unless the coordinator supports two-phase commit."""
        connection = self._cluster.retrying(self._coordinator, self._words('finding the coordinator'),
                                            timeout_ms=self._settings.max_block_ms)
        served = connection.api_versions.get(ApiKey.INIT_PRODUCER_ID, (0, -1))[1]
        if served < TWO_PHASE_INIT_VERSION:
            raise _no_two_phase_commit(f'broker {connection.address} serves InitProducerId up to version {served}, '
                                       f'expected {TWO_PHASE_INIT_VERSION}')

    def bump_epoch(self) -> None:
        """Increment the epoch without a request, which is allowed without a transactional.id.

        Get a new producer id after the largest epoch.
        """
        if self.producer.producer_epoch < LAST_EPOCH:
            self.producer = self.producer._replace(producer_epoch=self.producer.producer_epoch + 1)
        else:
            self._initialize(ProducerIdAndEpoch())

    def _initialize(self, current: ProducerIdAndEpoch, keep: bool = False) -> PreparedTransaction | None:
        """Request and adopt a producer id and epoch. Return the transaction that the coordinator kept, or None."""
        two_phase_commit = self._settings.two_phase_commit
        needs_version_6 = keep or two_phase_commit
        try:
            answer = self._ask(messages.InitProducerIdRequest(
                transactional_id=self._settings.transactional_id,
                transaction_timeout_ms=self._settings.transaction_timeout_ms if self.is_transactional else 2**31 - 1,
                producer_id=current.producer_id, producer_epoch=current.producer_epoch,
                enable2_pc=two_phase_commit, keep_prepared_txn=keep), 'InitProducerId',
                TWO_PHASE_INIT_VERSION if needs_version_6 else LAST_ORDINARY_INIT_VERSION,
                TWO_PHASE_INIT_VERSION if needs_version_6 else 0)
        except KafkaError as error:
            if needs_version_6 and error.code is ErrorCode.UNSUPPORTED_VERSION:
                raise _no_two_phase_commit(str(error)) from error
            raise
        self.producer = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        self.has_lost_sequence = False
        if answer.ongoing_txn_producer_id < 0:
            return None
        return PreparedTransaction(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch,
                                   self._settings.transactional_id)

    def _choose_version(self) -> None:
        features = self._cluster.retrying(self._coordinator, self._words('finding the coordinator'),
                                          timeout_ms=self._settings.max_block_ms).finalized_features
        self.is_version_2 = features.get('transaction.version', 0) >= EPOCH_BUMPS_FROM

    def _begin_call(self, call: tuple[str, bool], state: ProducerState) -> None:
        """Begin a call: enter `state`, unless the call repeats a call that timed out.

        Raise IllegalProducerState if a different call has timed out, or if the present state does not allow this call.
        """
        if self._unfinished is None or self.lifecycle.state is ProducerState.FATAL_ERROR:
            self.lifecycle.enter(state)
            self._unfinished = call
        elif self._unfinished != call:
            raise IllegalProducerState(f'found {_call_in_words(self._unfinished)} without a result, expected the same '
                                       f'call again instead of {_call_in_words(call)}')

    # ---- a transaction

    def begin(self) -> None:
        self.lifecycle.check_can_enter(ProducerState.IN_TRANSACTION)
        self._choose_version()
        self.lifecycle.enter(ProducerState.IN_TRANSACTION)
        self._partitions.clear()
        self._is_started = False

    def check_can_prepare(self) -> None:
        """Raise IllegalProducerState unless the producer uses two-phase commit and has an open transaction."""
        if not self._settings.two_phase_commit:
            raise IllegalProducerState('found a producer without transaction.two.phase.commit.enable, expected true')
        self.lifecycle.check_can_send()

    def prepare(self) -> PreparedTransaction:
        """Prepare the transaction, whose batches must have been written. Return its identity."""
        self.check_can_prepare()
        self.lifecycle.enter(ProducerState.PREPARED_TRANSACTION)
        self.prepared = PreparedTransaction(*self.producer, self._settings.transactional_id)
        return self.prepared

    def complete(self, decided: PreparedTransaction | None) -> bool:
        """Commit the prepared transaction if `decided` is its identity, abort it otherwise.

        Return False in the state READY, in which no transaction is prepared. Raise IllegalProducerState or
        FatalProducerError in any other state without a prepared transaction. Raise ValueError for the identity of a
        transaction with a different transactional.id.
        """
        if self.prepared is None:
            if self.lifecycle.state is ProducerState.READY:
                return False
            raise self.lifecycle.refusal(ProducerState.PREPARED_TRANSACTION)
        if decided is not None:
            self._check_is_own(decided, self.prepared)
        self.end(committed=decided == self.prepared)
        return True

    def _check_is_own(self, decided: PreparedTransaction, prepared: PreparedTransaction) -> None:
        """Raise ValueError if `decided` has a different transactional.id than `prepared`. Aborting would lose data."""
        if decided.transactional_id not in (None, self._settings.transactional_id):
            raise ValueError(f'found the token {decided} of transactional.id {decided.transactional_id!r}, expected '
                             f'one of {self._settings.transactional_id!r}')
        if decided.producer_id != prepared.producer_id and decided.producer_epoch < ROTATION_EPOCH:
            raise ValueError(f'found the token {decided} of another producer id than that of the prepared transaction, '
                             f'{prepared}: is it of another transactional.id? `abort_transaction` aborts without a '
                             'token')

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions to the transaction, before their first batches are sent.

        Raise TransactionError or FatalProducerError if the coordinator refuses.
        """
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
        """Add offsets to the transaction, which commits them for the group. Raise TransactionError or
        FatalProducerError.
        """
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
            generation_id_or_member_epoch=group.generation_id, member_id=group.member_id,
            group_instance_id=group.group_instance_id, topics=topics), 'TxnOffsetCommit',
            max_version=5 if self.is_version_2 else 4, group_id=group.group_id)

    def end(self, committed: bool) -> None:
        """Commit or abort the transaction. None of its batches may be in flight.

        After an error other than TransactionError and FatalProducerError, the outcome is unknown. The same call may
        then be repeated.
        """
        ending = ProducerState.COMMITTING if committed else ProducerState.ABORTING
        if committed and self._unfinished is None and self.prepared is None:
            self.lifecycle.check_can_send()
        self._begin_call(('commit_transaction' if committed else 'abort_transaction', committed), ending)
        if self.lifecycle.state is ending:
            if self._is_started:
                self._send_end(committed)
            if self.has_lost_sequence:
                self.lifecycle.enter(ProducerState.INITIALIZING)
        if self.lifecycle.state is ProducerState.INITIALIZING:
            self._initialize(self.producer)
        self.prepared = self._unfinished = None
        self.lifecycle.enter(ProducerState.READY)

    def _send_end(self, committed: bool) -> None:
        answer = self._ask(messages.EndTxnRequest(
            transactional_id=self._settings.transactional_id, producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch, committed=committed), 'EndTxn',
            max_version=5 if self.is_version_2 else 4)
        if answer.producer_id >= 0:
            self.producer = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
            self.has_lost_sequence = False

    def fail(self, error: KafkaError, severity: Severity) -> None:
        """Record that a batch of the transaction was not written. During an abort, the lost batch does not matter."""
        if severity is Severity.FATAL:
            self.lifecycle.enter(ProducerState.FATAL_ERROR, error)
        elif self.lifecycle.state in (ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE_ERROR):
            self.lifecycle.enter(ProducerState.ABORTABLE_ERROR, error)

    # ---- requests to coordinators

    def _coordinator(self, group_id: str | None = None) -> Connection:
        if group_id is not None:
            return self._cluster.coordinator(KeyType.GROUP, group_id)
        if not self.is_transactional:
            return self._cluster.any()
        return self._cluster.coordinator(KeyType.TRANSACTION, str(self._settings.transactional_id))

    def _ask(self, request: Any, name: str, max_version: int | None = None, min_version: int = 0,
             group_id: str | None = None) -> Any:
        """Send `request`, and return its answer. Repeat it after transient errors, for at most max.block.ms."""
        with self._cluster.limit.call(self._settings.max_block_ms):
            return self._ask_until_answered(request, name, max_version, min_version, group_id)

    def _ask_until_answered(self, request: Any, name: str, max_version: int | None, min_version: int,
                            group_id: str | None) -> Any:
        backoff_ms = FIRST_BACKOFF_MS
        while True:
            error: KafkaError | ClientError
            try:
                answer = self._coordinator(group_id).call(request, max_version=max_version, min_version=min_version)
                code = _worst_code(answer)
                if code is ErrorCode.NONE:
                    return answer
                error = error_of(code, self._words(name), api=name)
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
            if self._cluster.limit.left_ms(backoff_ms) < backoff_ms:
                raise error
            if severity is Severity.FIND_COORDINATOR:
                self._cluster.forget()
            self._sleep(backoff_ms / 1000)
            backoff_ms = min(backoff_ms * 2, self._cluster.config.retry_backoff_max_ms)

    def _raise_lasting(self, error: KafkaError | ClientError, severity: Severity) -> None:
        if not isinstance(error, KafkaError):
            return
        if severity is Severity.ABORTABLE and self.lifecycle.can_enter(ProducerState.ABORTABLE_ERROR):
            self._unfinished = None
            self.lifecycle.enter(ProducerState.ABORTABLE_ERROR, error)
            raise TransactionError(error.code, str(error))
        if severity in (Severity.ABORTABLE, Severity.FATAL):
            if error.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED):
                error = KafkaError(ErrorCode.PRODUCER_FENCED, f'{error} (another producer uses the transactional.id '
                                                              'now, or the transaction timed out)')
            self.lifecycle.enter(ProducerState.FATAL_ERROR, error)
            raise fatal_error(error.code, str(error))

    def _words(self, name: str) -> str:
        if not self.is_transactional:
            return name
        return f'{name} of transactional.id {self._settings.transactional_id!r}'


def _no_two_phase_commit(found: str) -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_VERSION, f'two-phase commit needs a broker with '
                      f'transaction.two.phase.commit.enable=true that serves InitProducerId {TWO_PHASE_INIT_VERSION}: '
                      f'{found}')


def _call_in_words(call: tuple[str, bool]) -> str:
    name, argument = call
    return f'{name}(keep={argument})' if name == 'init_transactions' else name


def _worst_code(answer: Any) -> ErrorCode:
    """Return the error of an answer that decides. If several partitions failed, prefer an error that is not
    transient.
    """
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
    # OPERATION_NOT_ATTEMPTED only means that a different partition of the request failed.
    return min(found, key=lambda code: (code.retriable, code is ErrorCode.OPERATION_NOT_ATTEMPTED))
