"""The transaction coordinator: who may write under a transactional.id, in what transaction, and how it ended.

Each operation decides against the row in force, appends the next row, and answers when that row is durable; see
`state` for the states and `endings` for the decisions of EndTxn. Operations take `done` and call it exactly once,
possibly before they return; they do not raise.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kbroker.clock import Clock, Timer, Timers
from kbroker.errors import ErrorCode, KafkaError
from kbroker.topics.partitioner import partition_for
from kbroker.transaction import endings
from kbroker.transaction.markers import MarkerSender
from kbroker.transaction.producer_ids import ProducerIds
from kbroker.transaction.state import (
    EPOCH_BUMPS_FROM,
    EXHAUSTED_PRODUCER_EPOCH,
    IDLE,
    NEVER_TIMES_OUT_MS,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    TopicPartition,
    TransactionMetadata,
    TransactionRow,
    TransactionState,
)
from kbroker.transaction.store import StatePartition, TransactionStore
from kbroker.transaction.verification import Mode, error_for_produce, error_for_write

if TYPE_CHECKING:
    from kbroker.config import Config
    from kbroker.topics.registry import TopicRegistry

logger = logging.getLogger(__name__)

COMPLETE_RETRY_BACKOFF_MS = 100
ADD_RETRY_BACKOFF_MS = 20
"""Kafka's add.partitions.to.txn.retry.backoff.ms; the completion of a transaction cuts it short."""
ADD_RETRY_MAX_MS = 100
"""Kafka's add.partitions.to.txn.retry.backoff.max.ms."""
OFFSETS_TOPIC = '__consumer_offsets'


class ProducerAnswer(NamedTuple):
    """What InitProducerId and EndTxn answer: an error, or the producer id and epoch to go on with."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class TransactionCoordinator:
    """Owns the state of every transactional.id. `transaction_version` gives the finalized level of that feature."""

    def __init__(self, config: Config, clock: Clock, timers: Timers, topics: TopicRegistry, producer_ids: ProducerIds,
                 *, transaction_version: Callable[[], int]):
        self._config = config
        self._clock = clock
        self._timers = timers
        self._topics = topics
        self._producer_ids = producer_ids
        self._transaction_version = transaction_version
        self._markers = MarkerSender(topics, clock, timers)
        self.store = TransactionStore(config, clock, topics, transaction_version, self._resume)
        self._waiting_adds: dict[str, list[Timer]] = {}
        """By transactional.id, what waits for its previous transaction to be complete."""
        self._stops: list[Callable[[], None]] = []

    def start(self) -> None:
        """Load what `__transaction_state` says, finish what was decided, and begin to watch the time."""
        self.store.start()
        config = self._config
        self._stops = [
            self._timers.every(config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
                               self.abort_timed_out),
            self._timers.every(config.transaction_remove_expired_transaction_cleanup_interval_ms,
                               self.remove_expired),
        ]

    def stop(self) -> None:
        """End all activity. What is under way is taken up at the next start."""
        for stop in self._stops:
            stop()
        self._stops = []
        self._markers.stop()
        self.store.stop()

    # -- InitProducerId ------------------------------------------------------------------------------------------

    def init_producer_id(self, transactional_id: str | None, timeout_ms: int, producer_id: int, producer_epoch: int,
                         done: Callable[[ProducerAnswer], None]) -> None:
        """A producer id and epoch for a new producer, or the next epoch for one that names its own (KIP-360).

        Whoever held the transactional.id before is fenced, and its open transaction aborted; a client is told
        CONCURRENT_TRANSACTIONS then, and asks again until the abort is complete.
        """
        try:
            if (producer_id == NO_PRODUCER_ID) != (producer_epoch == NO_PRODUCER_EPOCH):
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'found producer id {producer_id} with epoch '
                                 f'{producer_epoch}, expected both or neither')
            if transactional_id is None:
                fresh = ProducerAnswer(ErrorCode.NONE, self._producer_ids.next(), 0)
            else:
                owned, metadata = self._to_initialise(transactional_id, timeout_ms)
                row = self._prepare_init(metadata, timeout_ms, producer_id, producer_epoch)
        except KafkaError as error:
            done(ProducerAnswer(error.code))
            return
        if transactional_id is None:
            done(fresh)
        elif row.state is TransactionState.PREPARE_EPOCH_FENCE:
            self._abort_fenced(owned, metadata, lambda error: done(ProducerAnswer(
                ErrorCode.CONCURRENT_TRANSACTIONS if error is ErrorCode.NONE else error)))
        else:
            self.store.append(owned, metadata, lambda error: done(_answer(error, row)))

    def _to_initialise(self, transactional_id: str, timeout_ms: int) -> tuple[StatePartition, TransactionMetadata]:
        """The id's metadata, made in memory if there is none; the row that InitProducerId appends is its first."""
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, 'the transactional.id is empty')
        longest_ms = self._config.transaction_max_timeout_ms
        if not 0 < timeout_ms <= longest_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                             f'found transaction timeout {timeout_ms} ms, expected 1 to {longest_ms}')
        owned, metadata = self.store.find(transactional_id)
        if metadata is None:
            metadata = TransactionMetadata.unborn(transactional_id, self._producer_ids.next(), timeout_ms,
                                                  self._clock.wall_ms())
            owned.transactions[transactional_id] = metadata
        return owned, metadata

    def _prepare_init(self, metadata: TransactionMetadata, timeout_ms: int, producer_id: int,
                      producer_epoch: int) -> TransactionRow:
        """Prepare the Empty row, or the fence where a transaction is open.

        While one is open the epoch that the client names is not compared (as in Kafka): the abort is harmless to
        whoever holds the current epoch and repeats the request, and the other learns then that it was fenced.
        """
        _check_not_busy(metadata)
        current = metadata.current
        expected_epoch = None if producer_epoch == NO_PRODUCER_EPOCH else producer_epoch
        if (expected_epoch is not None and metadata.is_born
                and producer_id != current.producer_id
                and not (producer_id == current.previous_producer_id and expected_epoch >= EXHAUSTED_PRODUCER_EPOCH)):
            raise KafkaError(ErrorCode.PRODUCER_FENCED, f'found producer id {producer_id} for '
                             f'{metadata.transactional_id!r}, expected {current.producer_id}')
        if current.state in PREPARED:
            raise _busy(metadata)
        if current.state is TransactionState.ONGOING:
            return metadata.prepare_epoch_fence()
        now_ms = self._clock.wall_ms()
        if current.is_producer_epoch_exhausted and expected_epoch in (None, current.producer_epoch):
            return metadata.prepare_producer_id_rotation(self._producer_ids.next(), timeout_ms,
                                                         expected_epoch is not None, now_ms)
        return metadata.prepare_epoch_increment(timeout_ms, expected_epoch, now_ms)

    # -- partitions ----------------------------------------------------------------------------------------------

    def add_partitions(self, transactional_id: str | None, producer_id: int, producer_epoch: int,
                       partitions: Iterable[TopicPartition], client_transaction_version: int,
                       done: Callable[[ErrorCode], None]) -> None:
        """Make `partitions`, which exist, part of the producer's transaction; begin one if none is open.

        CONCURRENT_TRANSACTIONS while anything is under way for the id; that comes first, as the producer may hold
        already the producer id and epoch that the pending row will bring into force.
        """
        try:
            owned, metadata = self._known(transactional_id)
            _check_not_busy(metadata)
            _check_producer_id(metadata, producer_id)
            _check_epoch(metadata, producer_epoch)
            self._check_row_can_hold(client_transaction_version)
            current = metadata.current
            if current.state in PREPARED:
                raise _busy(metadata)
            added = frozenset(partitions)
            is_known = current.state is TransactionState.ONGOING and added <= current.partitions
            if not is_known:
                metadata.prepare_partitions(added, client_transaction_version, self._clock.wall_ms())
        except KafkaError as error:
            done(error.code)
            return
        if is_known:
            done(ErrorCode.NONE)
        else:
            self.store.append(owned, metadata, done)

    def add_partitions_in_turn(self, transactional_id: str | None, producer_id: int, producer_epoch: int,
                               partitions: Iterable[TopicPartition], client_transaction_version: int,
                               done: Callable[[ErrorCode], None]) -> None:
        """`add_partitions`, but what is under way is waited for, up to ADD_RETRY_MAX_MS, before it is refused.

        A producer hears of its ending before that is complete, and may be back with its next transaction by then.
        Kafka waits so on behalf of TV2 writes (KAFKA-18575). Older clients would sit out a backoff that is many times
        as long as the completion takes, in each transaction, so they are waited for as well.
        """
        wanted = frozenset(partitions)
        deadline_ms = self._clock.monotonic_ms() + ADD_RETRY_MAX_MS

        def add() -> None:
            self.add_partitions(transactional_id, producer_id, producer_epoch, wanted, client_transaction_version,
                                added)

        def added(code: ErrorCode) -> None:
            if code is ErrorCode.CONCURRENT_TRANSACTIONS and self._clock.monotonic_ms() < deadline_ms:
                self._add_later(transactional_id, add)
            else:
                done(code)

        add()

    def verify_partitions(self, transactional_id: str | None, producer_id: int, producer_epoch: int,
                          partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
        """Whether each partition is in the producer's transaction: NONE or TRANSACTION_ABORTABLE (KIP-890 part 1)."""
        wanted = list(partitions)
        try:
            _, metadata = self._known(transactional_id)
            _check_producer_id(metadata, producer_id)
            _check_epoch(metadata, producer_epoch)
            if metadata.current.state in PREPARED:
                raise _busy(metadata)
        except KafkaError as error:
            return dict.fromkeys(wanted, error.code)
        return {partition: ErrorCode.NONE if partition in metadata.current.partitions
                else ErrorCode.TRANSACTION_ABORTABLE for partition in wanted}

    def add_offsets(self, transactional_id: str | None, producer_id: int, producer_epoch: int, group_id: str,
                    done: Callable[[ErrorCode], None]) -> None:
        """Make the partition of `__consumer_offsets` that holds `group_id` part of the transaction."""
        partitions = len(self._topics.ensure_internal(OFFSETS_TOPIC).partitions)
        self.add_partitions_in_turn(transactional_id, producer_id, producer_epoch,
                                    [(OFFSETS_TOPIC, partition_for(group_id, partitions))], 0, done)

    # -- what a transactional write asks first -------------------------------------------------------------------

    def add_or_verify_partitions(self, transactional_id: str | None, producer_id: int, producer_epoch: int,
                                 partitions: Iterable[TopicPartition], produce_version: int,
                                 done: Callable[[dict[TopicPartition, KafkaError]], None]) -> None:
        """Have partitions of a Produce added to the transaction (TV2) or verified; `done` with those refused, and why.

        Ask only for partitions where this producer has no open transaction.
        """
        mode = Mode.of_produce(produce_version)
        wanted = list(partitions)

        def finish(answers: dict[TopicPartition, ErrorCode]) -> None:
            done({partition: KafkaError(error_for_produce(mode, code))
                  for partition, code in answers.items() if code is not ErrorCode.NONE})

        if mode is Mode.ADD:
            self.add_partitions_in_turn(transactional_id, producer_id, producer_epoch, wanted, EPOCH_BUMPS_FROM,
                                        lambda code: finish(dict.fromkeys(wanted, code)))
        elif self._config.transaction_partition_verification_enable:
            finish(self.verify_partitions(transactional_id, producer_id, producer_epoch, wanted))
        else:
            done({})

    def add_or_verify_offsets_partition(self, transactional_id: str | None, producer_id: int, producer_epoch: int,
                                        partition: int, request_version: int,
                                        done: Callable[[KafkaError | None], None]) -> None:
        """The same for a TxnOffsetCommit and its partition of `__consumer_offsets`; the client does the waiting."""
        mode = Mode.of_txn_offset_commit(request_version)
        wanted = (OFFSETS_TOPIC, partition)

        def finish(code: ErrorCode) -> None:
            done(None if code is ErrorCode.NONE else KafkaError(error_for_write(mode, code)))

        if mode is Mode.ADD:
            self.add_partitions(transactional_id, producer_id, producer_epoch, [wanted], EPOCH_BUMPS_FROM, finish)
        elif self._config.transaction_partition_verification_enable:
            finish(self.verify_partitions(transactional_id, producer_id, producer_epoch, [wanted])[wanted])
        else:
            done(None)

    def _add_later(self, transactional_id: str | None, add: Callable[[], None]) -> None:
        """Call `add` when the transaction under way is complete, or in a while if something else is under way."""
        assert transactional_id
        waiting = [timer for timer in self._waiting_adds.get(transactional_id, ()) if timer.callback is not None]
        self._waiting_adds[transactional_id] = [*waiting, self._timers.after(ADD_RETRY_BACKOFF_MS, add)]

    def _wake_waiting_adds(self, transactional_id: str) -> None:
        for timer in self._waiting_adds.pop(transactional_id, ()):
            add = timer.callback
            if add is not None:
                timer.cancel()
                add()

    # -- endings -------------------------------------------------------------------------------------------------

    def end_txn(self, transactional_id: str | None, producer_id: int, producer_epoch: int, committed: bool,
                client_transaction_version: int, done: Callable[[ProducerAnswer], None]) -> None:
        """Commit or abort. Answers when the decision is durable; the partitions learn of it afterwards.

        The answer carries the producer id and epoch for the next transaction, which TV2 clients go on with.
        """
        bumps_epoch = client_transaction_version >= EPOCH_BUMPS_FROM
        try:
            owned, metadata = self._known(transactional_id)
            self._check_row_can_hold(client_transaction_version)
            decide = _decide_with_bump if bumps_epoch else _decide_without_bump
            decision = decide(metadata, producer_id, producer_epoch, committed)
            if isinstance(decision, TransactionState):
                self._prepare_end(metadata, decision, client_transaction_version)
            elif decision is not ErrorCode.NONE:
                raise KafkaError(decision)
        except KafkaError as error:
            done(ProducerAnswer(error.code))
            return
        if decision is ErrorCode.NONE:
            done(_answer(ErrorCode.NONE, metadata.current))
        else:
            self._append_decision(owned, metadata, done)

    def _abort_fenced(self, owned: StatePartition, metadata: TransactionMetadata,
                      done: Callable[[ErrorCode], None]) -> None:
        """Abort in the producer's place, at the epoch of the pending fence; NONE once the decision is durable."""
        transaction_version = self._transaction_version()
        assert metadata.pending is not None and metadata.current.state is TransactionState.ONGOING
        try:
            self._prepare_end(metadata, TransactionState.PREPARE_ABORT, transaction_version)
        except KafkaError as error:
            metadata.abandon()
            done(error.code)
            return

        def finish(answer: ProducerAnswer) -> None:
            if answer.error is not ErrorCode.NONE and transaction_version < EPOCH_BUMPS_FROM:
                metadata.has_failed_epoch_fence = True
            done(answer.error)

        self._append_decision(owned, metadata, finish)

    def _prepare_end(self, metadata: TransactionMetadata, state: TransactionState, transaction_version: int) -> None:
        """With TV2 the bump of an exhausted epoch needs the producer id that comes after it (KAFKA-18660, 20090)."""
        rotates = transaction_version >= EPOCH_BUMPS_FROM and metadata.current.is_producer_epoch_exhausted
        next_producer_id = self._producer_ids.next() if rotates else NO_PRODUCER_ID
        metadata.prepare_end(state, transaction_version, next_producer_id, self._clock.wall_ms())

    def _append_decision(self, owned: StatePartition, metadata: TransactionMetadata,
                         done: Callable[[ProducerAnswer], None]) -> None:
        """From the moment the Prepare row is durable the ending is certain: answer, and see it through."""
        def finish(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                done(ProducerAnswer(error))
                return
            prepared = metadata.current
            done(_answer(ErrorCode.NONE, metadata.prepare_complete(self._clock.wall_ms())))
            self._send_markers(owned, metadata, prepared)

        self.store.append(owned, metadata, finish)

    def _send_markers(self, owned: StatePartition, metadata: TransactionMetadata, prepared: TransactionRow) -> None:
        """Nothing else can happen to the id until the Complete row, which is pending already, is in the log."""
        self._markers.send(metadata.transactional_id, prepared, owned.coordinator_epoch,
                           lambda: self._append_complete(owned, metadata))

    def _append_complete(self, owned: StatePartition, metadata: TransactionMetadata) -> None:
        """Every partition knows: say so in the log, again and again if it fails, as no request would do it later."""
        if not self.store.owns(owned):
            return
        if self.store.settle(owned, metadata):
            self._wake_waiting_adds(metadata.transactional_id)
        else:
            metadata.prepare_complete(self._clock.wall_ms())
            self._timers.after(COMPLETE_RETRY_BACKOFF_MS, lambda: self._append_complete(owned, metadata))

    def _resume(self, owned: StatePartition) -> None:
        """After a load: a decision whose completion is not in the log is carried out again, whole."""
        for metadata in owned.transactions.values():
            if metadata.current.state in PREPARED:
                prepared = metadata.current
                metadata.prepare_complete(self._clock.wall_ms())
                self._send_markers(owned, metadata, prepared)

    # -- what tools ask ------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionRow:
        """The row in force. Raises INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND, and what an unloaded id raises."""
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, 'the transactional.id is empty')
        _, metadata = self.store.find(transactional_id)
        if metadata is None or not metadata.is_born or metadata.is_dying:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f'{transactional_id!r} is not known')
        return metadata.current

    def list_transactions(self) -> Iterator[tuple[str, TransactionRow]]:
        """Every transactional.id and its row in force. Raises COORDINATOR_LOAD_IN_PROGRESS until all are loaded."""
        if self.store.is_loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return ((metadata.transactional_id, metadata.current) for owned in self.store.loaded()
                for metadata in owned.transactions.values() if metadata.is_born and not metadata.is_dying)

    # -- time ----------------------------------------------------------------------------------------------------

    def abort_timed_out(self) -> None:
        """Fence and abort each transaction that is open for longer than its timeout."""
        now_ms = self._clock.wall_ms()
        for owned in self.store.loaded():
            for metadata in list(owned.transactions.values()):
                current = metadata.current
                if (current.state is TransactionState.ONGOING and metadata.pending is None
                        and current.timeout_ms != NEVER_TIMES_OUT_MS
                        and current.start_timestamp_ms + current.timeout_ms < now_ms):
                    logger.info('%s: aborting the transaction of producer %d epoch %d, open since %d for more than %d '
                                'ms', metadata.transactional_id, current.producer_id, current.producer_epoch,
                                current.start_timestamp_ms, current.timeout_ms)
                    metadata.prepare_epoch_fence()
                    self._abort_fenced(owned, metadata, lambda error: None)

    def remove_expired(self) -> None:
        """Forget each id that was idle for longer than transactional.id.expiration.ms."""
        horizon_ms = self._clock.wall_ms() - self._config.transactional_id_expiration_ms
        for owned in self.store.loaded():
            self.store.remove(owned, [
                metadata for metadata in owned.transactions.values()
                if metadata.current.state in IDLE and metadata.pending is None
                and metadata.current.last_update_timestamp_ms <= horizon_ms])

    # -- checks --------------------------------------------------------------------------------------------------

    def _known(self, transactional_id: str | None) -> tuple[StatePartition, TransactionMetadata]:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, 'the transactional.id is empty')
        owned, metadata = self.store.find(transactional_id)
        if metadata is None or not metadata.is_born:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f'{transactional_id!r} is not known')
        return owned, metadata

    def _check_row_can_hold(self, client_transaction_version: int) -> None:
        if client_transaction_version > 0 and self._transaction_version() == 0:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f'found a client of transaction version '
                             f'{client_transaction_version}, but transaction.version is finalized at 0')


def _answer(error: ErrorCode, row: TransactionRow) -> ProducerAnswer:
    if error is not ErrorCode.NONE:
        return ProducerAnswer(error)
    return ProducerAnswer(error, row.producer_id, row.producer_epoch)


def _busy(metadata: TransactionMetadata) -> KafkaError:
    return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, f'{metadata.transactional_id!r} is in '
                      f'{metadata.current.state.title}, a change is under way')


def _check_not_busy(metadata: TransactionMetadata) -> None:
    if metadata.pending is not None:
        raise _busy(metadata)


def _check_producer_id(metadata: TransactionMetadata, producer_id: int) -> None:
    if producer_id != metadata.current.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f'found producer id {producer_id} for '
                         f'{metadata.transactional_id!r}, expected {metadata.current.producer_id}')


def _check_epoch(metadata: TransactionMetadata, producer_epoch: int) -> None:
    if producer_epoch != metadata.current.producer_epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED, f'found producer epoch {producer_epoch} for '
                         f'{metadata.transactional_id!r}, expected {metadata.current.producer_epoch}')


def _decide_without_bump(metadata: TransactionMetadata, producer_id: int, producer_epoch: int,
                         committed: bool) -> endings.Decision:
    """A client's epoch must be the very one in force, also where it is higher (KAFKA-9600)."""
    _check_producer_id(metadata, producer_id)
    _check_epoch(metadata, producer_epoch)
    _check_not_busy(metadata)
    return endings.decide_without_bump(metadata.current.state, committed)


def _decide_with_bump(metadata: TransactionMetadata, producer_id: int, producer_epoch: int,
                      committed: bool) -> endings.Decision:
    """What is pending comes first: the client may hold already what the Complete row will say (KAFKA-18464)."""
    _check_not_busy(metadata)
    current = metadata.current
    if not endings.is_overflow_retry(current, producer_id, producer_epoch):
        _check_producer_id(metadata, producer_id)
    return endings.decide_with_bump(current.state, endings.claim_of(current, producer_id, producer_epoch), committed)
