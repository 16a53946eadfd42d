"""The transaction coordinator: who may write under a transactional.id, in what transaction, and how it ended.

Each operation decides against the row in force, appends the next row, and answers when that row is durable; see
`state` for the states and `endings` for the decisions of EndTxn. Operations take `done` and call it exactly once,
possibly before they return; they do not raise.
"""
import logging
from typing import NamedTuple

from libc.stdint cimport int16_t, int64_t

from kbroker.clock cimport Clock, Timer, Timers
from kbroker.topics.partition cimport DurableWaiter
from kbroker.topics.partitioner cimport partition_for
from kbroker.transaction.endings cimport claimed, decide_with_bump, decide_without_bump, is_overflow_retry
from kbroker.transaction.markers cimport MarkerSender
from kbroker.transaction.state cimport (
    EPOCH_BUMPS_FROM, EXHAUSTED_PRODUCER_EPOCH, NEVER_TIMES_OUT_MS, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, STATUS_ONGOING,
    STATUS_PREPARE_ABORT, STATUS_PREPARE_EPOCH_FENCE, PartitionSet, TransactionMetadata, TransactionRow,
    is_idle, is_prepared, set_of,
)
from kbroker.transaction.store cimport StatePartition, Step, TransactionStore

from kbroker.errors import ErrorCode, KafkaError
from kbroker.internal_topics import CONSUMER_OFFSETS
from kbroker.transaction.state_log import value_version
from kbroker.transaction.verification import Mode, error_for_produce, error_for_write

logger = logging.getLogger(__name__)

ADD_RETRY_BACKOFF_MS = 20
"""Kafka's add.partitions.to.txn.retry.backoff.ms; the completion of a transaction cuts it short."""
ADD_RETRY_MAX_MS = 100
"""Kafka's add.partitions.to.txn.retry.backoff.max.ms."""


cdef enum:
    NO_DEADLINE = -1
    PRODUCE_VERSIONS = 32           # more than there are: what the last is, is every one after it

cdef object NONE = ErrorCode.NONE
cdef object CONCURRENT_TRANSACTIONS = ErrorCode.CONCURRENT_TRANSACTIONS
cdef object ADD = Mode.ADD
cdef tuple MODES = tuple(map(Mode.of_produce, range(PRODUCE_VERSIONS)))


class ProducerAnswer(NamedTuple):
    """What InitProducerId and EndTxn answer: an error, or the producer id and epoch to go on with."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


cdef class Asker:
    """Who asks from C for what others are told as a ProducerAnswer."""

    cdef int answered(self, object error, int64_t producer_id, int16_t producer_epoch) except -1:
        raise NotImplementedError


cdef class WriteAsker(DurableWaiter):
    """Who asks from C for what others are told by a dict."""

    cdef int verified(self, dict errors) except -1:
        """`errors`: by (topic, partition), a KafkaError where the coordinator refused."""
        raise NotImplementedError


cdef int answer(object done, object error, TransactionRow row) except -1:
    """Tell `done` the error, or the producer of `row`."""
    cdef int64_t producer_id = NO_PRODUCER_ID
    cdef int16_t producer_epoch = NO_PRODUCER_EPOCH
    if error is NONE:
        producer_id, producer_epoch = row.producer_id, row.producer_epoch
    if isinstance(done, Asker):
        return (<Asker>done).answered(error, producer_id, producer_epoch)
    done(ProducerAnswer(error, producer_id, producer_epoch))
    return 0


cdef class Ending(Step):
    """A decision on its way to the log, the markers, and the Complete row. `done` is told when the first is durable.

    `is_unstored_fence`: if the row cannot be appended, a fence was in force in memory and nowhere else.
    """

    cdef int appended(self, object code) except -1:
        """From the moment the Prepare row is durable the ending is certain: answer, and see it through."""
        cdef TransactionRow prepared
        if code is not NONE:
            if self.is_unstored_fence:
                self.metadata.has_failed_epoch_fence = True
            return answer(self.done, code, None)
        prepared = self.metadata.current
        self.metadata.prepare_complete(self.coordinator._clock.wall_ms())
        answer(self.done, NONE, self.metadata.pending)
        return self.send_markers(prepared)

    cdef int send_markers(self, TransactionRow prepared) except -1:
        """Nothing else can happen to the id until the Complete row, which is pending already, is in the log."""
        return self.coordinator._markers.send(self, prepared)

    cdef int markers_durable(self) except -1:
        if self.owned.is_lost:
            return 0
        self.store.settle(self.owned, self.metadata)
        return self.coordinator.wake_waiting_adds(self.metadata.transactional_id)


cdef class Adding(Step):
    """Partitions that are to join a transaction. `done` is told the error code or, for a write in some `mode`, a dict
    of the partitions that are refused.

    Until `deadline_ms` what is under way for the id is waited for.
    """

    cpdef attempt(self):
        self.coordinator.add(self)

    cdef int appended(self, object code) except -1:
        if (code is CONCURRENT_TRANSACTIONS and self.deadline_ms != NO_DEADLINE
                and self.coordinator._clock.monotonic_ms() < self.deadline_ms):
            return self.coordinator.add_later(self.transactional_id, self.attempt)
        if self.mode is None:
            self.done(code)
        elif code is NONE:
            tell(self.done, {})
        else:
            told = error_for_produce(self.mode, code)
            tell(self.done, {partition: KafkaError(told) for partition in self.partitions.members})
        return 0


cdef int tell(object done, dict errors) except -1:
    """Tell who asked for a write which partitions are refused."""
    if isinstance(done, WriteAsker):
        return (<WriteAsker>done).verified(errors)
    done(errors)
    return 0


cdef class Initialising(Step):
    """The Empty row of an InitProducerId."""
    cdef object done

    cdef int appended(self, object code) except -1:
        return answer(self.done, code, self.row)


cdef class TransactionCoordinator:
    """Owns the state of every transactional.id. `transaction_version` is the finalized level of that feature, which no
    request changes while the broker runs.

    Of `_waiting_adds`: by transactional.id, the timers of what waits for its previous transaction to be complete.
    """

    def __init__(self, config, Clock clock, Timers timers, topics, producer_ids, *, int transaction_version):
        self._config = config
        self._clock = clock
        self._timers = timers
        self._topics = topics
        self._producer_ids = producer_ids
        self._transaction_version = transaction_version
        self._markers = MarkerSender(topics, clock, timers)
        self.store = TransactionStore(config, clock, timers, topics, self._resume)
        self.store.row_version = value_version(transaction_version)
        self._waiting_adds = {}
        self._alone = {}
        topics.on_topic_deleted.append(self._on_topic_deleted)
        self._stops = []

    def start(self):
        """Load what `__transaction_state` says, finish what was decided, and begin to watch the time."""
        self.store.start()
        config = self._config
        self._stops = [
            self._timers.every(config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
                               self.abort_timed_out),
            self._timers.every(config.transaction_remove_expired_transaction_cleanup_interval_ms,
                               self.remove_expired),
        ]

    def close(self):
        """End all activity while the log is sound: what waits to be written with something else is written."""
        self.store.append_held()
        self.stop()

    def stop(self):
        """End all activity, and write nothing. What is under way is taken up at the next start."""
        for stop in self._stops:
            stop()
        self._stops = []
        self._markers.stop()
        self.store.stop()

    # -- InitProducerId ------------------------------------------------------------------------------------------

    def init_producer_id(self, str transactional_id, int64_t timeout_ms, int64_t producer_id, int16_t producer_epoch,
                         done):
        """A producer id and epoch for a new producer, or the next epoch for one that names its own (KIP-360).

        Whoever held the transactional.id before is fenced, and its open transaction aborted; a client is told
        CONCURRENT_TRANSACTIONS then, and asks again until the abort is complete.
        """
        cdef TransactionRow row
        cdef Initialising initialising
        try:
            if (producer_id == NO_PRODUCER_ID) != (producer_epoch == NO_PRODUCER_EPOCH):
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'found producer id {producer_id} with epoch '
                                 f'{producer_epoch}, expected both or neither')
            if transactional_id is None:
                fresh = ProducerAnswer(NONE, self._producer_ids.next(), 0)
            else:
                owned, metadata = self._to_initialise(transactional_id, timeout_ms)
                row = self._prepare_init(metadata, timeout_ms, producer_id, producer_epoch)
        except KafkaError as error:
            done(ProducerAnswer(error.code))
            return
        if transactional_id is None:
            done(fresh)
        elif row.status == STATUS_PREPARE_EPOCH_FENCE:
            self.abort_fenced(owned, metadata, lambda answer: done(ProducerAnswer(
                CONCURRENT_TRANSACTIONS if answer.error is NONE else answer.error)))
        else:
            initialising = Initialising.__new__(Initialising)
            initialising.done = done
            self.store.append(owned, metadata, initialising)

    def _to_initialise(self, str transactional_id, int64_t timeout_ms):
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

    def _prepare_init(self, TransactionMetadata metadata, int64_t timeout_ms, int64_t producer_id,
                      int16_t producer_epoch):
        """Prepare the Empty row, or the fence where a transaction is open.

        While one is open the epoch that the client names is not compared (as in Kafka): the abort is harmless to
        whoever holds the current epoch and repeats the request, and the other learns then that it was fenced.
        """
        cdef TransactionRow current = metadata.current
        check_not_busy(metadata)
        expected_epoch = None if producer_epoch == NO_PRODUCER_EPOCH else producer_epoch
        if (expected_epoch is not None and metadata.was_born()
                and producer_id != current.producer_id
                and not (producer_id == current.previous_producer_id and expected_epoch >= EXHAUSTED_PRODUCER_EPOCH)):
            raise KafkaError(ErrorCode.PRODUCER_FENCED, f'found producer id {producer_id} for '
                             f'{metadata.transactional_id!r}, expected {current.producer_id}')
        if is_prepared(current.status):
            raise busy(metadata)
        if current.status == STATUS_ONGOING:
            return metadata.prepare_epoch_fence()
        now_ms = self._clock.wall_ms()
        if current.is_exhausted() and (expected_epoch is None or expected_epoch == current.producer_epoch):
            return metadata.prepare_producer_id_rotation(self._producer_ids.next(), timeout_ms,
                                                         expected_epoch is not None, now_ms)
        return metadata.prepare_epoch_increment(timeout_ms, expected_epoch, now_ms)

    # -- partitions ----------------------------------------------------------------------------------------------

    cpdef add_partitions(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, partitions,
                         int client_transaction_version, done):
        """Make `partitions`, which exist, part of the producer's transaction; begin one if none is open.

        `done` with an ErrorCode; CONCURRENT_TRANSACTIONS while anything is under way for the id. That comes first, as
        the producer may hold already the producer id and epoch that the pending row will bring into force.
        """
        self.add(self.adding(transactional_id, producer_id, producer_epoch, set_of(partitions),
                             client_transaction_version, done))

    cpdef add_partitions_in_turn(self, str transactional_id, int64_t producer_id, int16_t producer_epoch,
                                 PartitionSet partitions, int client_transaction_version, done):
        """`add_partitions`, but what is under way is waited for, up to ADD_RETRY_MAX_MS, before it is refused.

        A producer hears of its ending before that is complete, and may be back with its next transaction by then.
        Kafka waits so on behalf of TV2 writes (KAFKA-18575). Older clients would sit out a backoff that is many times
        as long as the completion takes, in each transaction, so they are waited for as well.
        """
        cdef Adding adding = self.adding(transactional_id, producer_id, producer_epoch, partitions,
                                         client_transaction_version, done)
        adding.deadline_ms = self._clock.monotonic_ms() + ADD_RETRY_MAX_MS
        self.add(adding)

    cdef Adding adding(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, PartitionSet partitions,
                       int client_transaction_version, done):
        cdef Adding adding = Adding.__new__(Adding)
        adding.coordinator = self
        adding.transactional_id = transactional_id
        adding.producer_id = producer_id
        adding.producer_epoch = producer_epoch
        adding.partitions = partitions
        adding.client_transaction_version = client_transaction_version
        adding.deadline_ms = NO_DEADLINE
        adding.done = done
        return adding

    cdef int add(self, Adding adding) except -1:
        cdef StatePartition owned
        cdef TransactionMetadata metadata
        cdef TransactionRow current
        try:
            owned = self.owner(adding.transactional_id)
            metadata = known(owned, adding.transactional_id)
            check_not_busy(metadata)
            check_producer_id(metadata, adding.producer_id)
            check_epoch(metadata, adding.producer_epoch)
            self.check_row_can_hold(adding.client_transaction_version)
            current = metadata.current
            if is_prepared(current.status):
                raise busy(metadata)
            if current.status != STATUS_ONGOING or not holds(current.partition_set, adding.partitions):
                metadata.prepare_partitions(adding.partitions, adding.client_transaction_version,
                                            self._clock.wall_ms())
        except KafkaError as error:
            return adding.appended(error.code)
        if metadata.pending is None:
            return adding.appended(NONE)
        return self.store.append(owned, metadata, adding)

    def verify_partitions(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, partitions):
        """Whether each partition is in the producer's transaction: NONE or TRANSACTION_ABORTABLE (KIP-890 part 1)."""
        cdef TransactionMetadata metadata
        wanted = list(partitions)
        try:
            metadata = known(self.owner(transactional_id), transactional_id)
            check_producer_id(metadata, producer_id)
            check_epoch(metadata, producer_epoch)
            if is_prepared(metadata.current.status):
                raise busy(metadata)
        except KafkaError as error:
            return dict.fromkeys(wanted, error.code)
        return {partition: NONE if partition in metadata.current.partitions else ErrorCode.TRANSACTION_ABORTABLE
                for partition in wanted}

    def add_offsets(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, str group_id, done):
        """Make the partition of `__consumer_offsets` that holds `group_id` part of the transaction."""
        partitions = len(self._topics.ensure_internal(CONSUMER_OFFSETS).partitions)
        self.add_partitions_in_turn(transactional_id, producer_id, producer_epoch,
                                    set_of([(CONSUMER_OFFSETS, partition_for(group_id, partitions))]), 0, done)

    # -- what a transactional write asks first -------------------------------------------------------------------

    cpdef add_or_verify_partitions(self, str transactional_id, int64_t producer_id, int16_t producer_epoch,
                                   list partitions, int produce_version, done):
        """Have Partitions of a Produce added to the transaction (TV2) or verified; `done` with those refused, and why: a
        WriteAsker, or called with what that is told.

        Ask only for partitions where this producer has no open transaction.
        """
        cdef PartitionSet written = self.set_of_partitions(partitions)
        cdef Adding adding
        mode = MODES[min(produce_version, PRODUCE_VERSIONS - 1)]
        if mode is ADD:
            adding = self.adding(transactional_id, producer_id, producer_epoch, written, EPOCH_BUMPS_FROM, done)
            adding.deadline_ms = self._clock.monotonic_ms() + ADD_RETRY_MAX_MS
            adding.mode = mode
            self.add(adding)
        elif self._config.transaction_partition_verification_enable:
            answers = self.verify_partitions(transactional_id, producer_id, producer_epoch, written.members)
            tell(done, {partition: KafkaError(error_for_produce(mode, code))
                        for partition, code in answers.items() if code is not NONE})
        else:
            tell(done, {})

    cdef PartitionSet set_of_partitions(self, list partitions):
        """Of Partitions. Nearly every write is to one, and the set of it alone is made once."""
        cdef PartitionSet alone
        if len(partitions) != 1:
            return set_of([(partition.topic, partition.partition) for partition in partitions])
        only = partitions[0]
        alone = self._alone.get(only)
        if alone is None:
            self._alone[only] = alone = set_of([(only.topic, only.partition)])
        return alone

    def _on_topic_deleted(self, _):
        self._alone.clear()

    def add_or_verify_offsets_partition(self, str transactional_id, int64_t producer_id, int16_t producer_epoch,
                                        int partition, int request_version, done):
        """The same for a TxnOffsetCommit and its partition of `__consumer_offsets`; the client does the waiting."""
        mode = Mode.of_txn_offset_commit(request_version)
        wanted = (CONSUMER_OFFSETS, partition)

        def finish(code):
            done(None if code is NONE else KafkaError(error_for_write(mode, code)))

        if mode is ADD:
            self.add_partitions(transactional_id, producer_id, producer_epoch, [wanted], EPOCH_BUMPS_FROM, finish)
        elif self._config.transaction_partition_verification_enable:
            finish(self.verify_partitions(transactional_id, producer_id, producer_epoch, [wanted])[wanted])
        else:
            done(None)

    cdef int add_later(self, str transactional_id, add) except -1:
        """Call `add` when the transaction under way is complete, or in a while if something else is under way."""
        waiting = [timer for timer in self._waiting_adds.get(transactional_id, ()) if timer.callback is not None]
        self._waiting_adds[transactional_id] = [*waiting, self._timers.after(ADD_RETRY_BACKOFF_MS, add)]
        return 0

    cdef int wake_waiting_adds(self, str transactional_id) except -1:
        cdef Timer timer
        if not self._waiting_adds:
            return 0
        for timer in self._waiting_adds.pop(transactional_id, ()):
            add = timer.callback
            if add is not None:
                timer.cancel()
                add()
        return 0

    # -- endings -------------------------------------------------------------------------------------------------

    cpdef end_txn(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, bint committed,
                  int client_transaction_version, done):
        """Commit or abort. Answers when the decision is durable; the partitions learn of it afterwards.

        The answer carries the producer id and epoch for the next transaction, which TV2 clients go on with. `done` is
        an Asker, or called with a ProducerAnswer.
        """
        cdef StatePartition owned
        cdef TransactionMetadata metadata
        try:
            owned = self.owner(transactional_id)
            metadata = known(owned, transactional_id)
            self.check_row_can_hold(client_transaction_version)
            if client_transaction_version >= EPOCH_BUMPS_FROM:
                decision = ending_with_bump(metadata, producer_id, producer_epoch, committed)
            else:
                decision = ending_without_bump(metadata, producer_id, producer_epoch, committed)
            if type(decision) is not ErrorCode:
                self.prepare_end(metadata, decision, client_transaction_version)
            elif decision is not NONE:
                raise KafkaError(decision)
        except KafkaError as error:
            answer(done, error.code, None)
            return
        if decision is NONE:
            answer(done, NONE, metadata.current)
        else:
            self.append_decision(owned, metadata, done, False)

    cdef int abort_fenced(self, StatePartition owned, TransactionMetadata metadata, done) except -1:
        """Abort in the producer's place, at the epoch of the pending fence; NONE once the decision is durable."""
        assert metadata.pending is not None and metadata.current.status == STATUS_ONGOING
        try:
            self.prepare_end(metadata, STATUS_PREPARE_ABORT, self._transaction_version)
        except KafkaError as error:
            metadata.abandon()
            return answer(done, error.code, None)
        return self.append_decision(owned, metadata, done, self._transaction_version < EPOCH_BUMPS_FROM)

    cdef int prepare_end(self, TransactionMetadata metadata, int status, int transaction_version) except -1:
        """With TV2 the bump of an exhausted epoch needs the producer id that comes after it (KAFKA-18660, 20090)."""
        cdef int64_t next_producer_id = NO_PRODUCER_ID
        if transaction_version >= EPOCH_BUMPS_FROM and metadata.current.is_exhausted():
            next_producer_id = self._producer_ids.next()
        metadata.prepare_end(status, transaction_version, next_producer_id, self._clock.wall_ms())
        return 0

    cdef int append_decision(self, StatePartition owned, TransactionMetadata metadata, done,
                             bint is_unstored_fence) except -1:
        cdef Ending ending = Ending.__new__(Ending)
        ending.coordinator = self
        ending.done = done
        ending.is_unstored_fence = is_unstored_fence
        return self.store.append(owned, metadata, ending)

    def _resume(self, StatePartition owned not None):
        """After a load: a decision whose completion is not in the log is carried out again, whole."""
        cdef TransactionMetadata metadata
        cdef TransactionRow prepared
        cdef Ending ending
        for metadata in owned.transactions.values():
            if is_prepared(metadata.current.status):
                prepared = metadata.current
                metadata.prepare_complete(self._clock.wall_ms())
                ending = Ending.__new__(Ending)
                ending.coordinator = self
                ending.store = self.store
                ending.owned = owned
                ending.metadata = metadata
                ending.send_markers(prepared)

    # -- what tools ask ------------------------------------------------------------------------------------------

    def describe(self, str transactional_id):
        """The row in force. Raises INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND, and what an unloaded id raises."""
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, 'the transactional.id is empty')
        _, metadata = self.store.find(transactional_id)
        if metadata is None or not metadata.is_born or metadata.is_dying:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f'{transactional_id!r} is not known')
        return metadata.current

    def list_transactions(self):
        """Every transactional.id and its row in force. Raises COORDINATOR_LOAD_IN_PROGRESS until all are loaded."""
        if self.store.is_loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return ((metadata.transactional_id, metadata.current) for owned in self.store.loaded()
                for metadata in owned.transactions.values() if metadata.is_born and not metadata.is_dying)

    # -- time ----------------------------------------------------------------------------------------------------

    def abort_timed_out(self):
        """Fence and abort each transaction that is open for longer than its timeout."""
        cdef StatePartition owned
        cdef TransactionMetadata metadata
        cdef TransactionRow current
        cdef int64_t now_ms = self._clock.wall_ms()
        for owned in self.store.loaded():
            for metadata in list(owned.transactions.values()):
                current = metadata.current
                if (current.status == STATUS_ONGOING and metadata.pending is None
                        and current.timeout_ms != NEVER_TIMES_OUT_MS
                        and current.start_timestamp_ms + current.timeout_ms < now_ms):
                    logger.info('%s: aborting the transaction of producer %d epoch %d, open since %d for more than %d '
                                'ms', metadata.transactional_id, current.producer_id, current.producer_epoch,
                                current.start_timestamp_ms, current.timeout_ms)
                    metadata.prepare_epoch_fence()
                    self.abort_fenced(owned, metadata, lambda answer: None)

    def remove_expired(self):
        """Forget each id that was idle for longer than transactional.id.expiration.ms."""
        horizon_ms = self._clock.wall_ms() - self._config.transactional_id_expiration_ms
        for owned in self.store.loaded():
            self.store.remove(owned, [
                metadata for metadata in owned.transactions.values()
                if is_idle((<TransactionMetadata>metadata).current.status) and metadata.pending is None
                and metadata.current.last_update_timestamp_ms <= horizon_ms])

    # -- checks --------------------------------------------------------------------------------------------------

    cdef StatePartition owner(self, str transactional_id):
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, 'the transactional.id is empty')
        return self.store.owner(transactional_id)

    cdef int check_row_can_hold(self, int client_transaction_version) except -1:
        if self._transaction_version == 0 and client_transaction_version > 0:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f'found a client of transaction version '
                             f'{client_transaction_version}, but transaction.version is finalized at 0')
        return 0


cdef TransactionMetadata known(StatePartition owned, str transactional_id):
    cdef TransactionMetadata metadata = owned.transactions.get(transactional_id)
    if metadata is None or not metadata.was_born():
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f'{transactional_id!r} is not known')
    return metadata


cdef bint holds(PartitionSet partitions, PartitionSet wanted) except -1:
    return wanted is partitions or wanted.members <= partitions.members


cdef object busy(TransactionMetadata metadata):
    return KafkaError(CONCURRENT_TRANSACTIONS, f'{metadata.transactional_id!r} is in '
                      f'{metadata.current.state.title}, a change is under way')


cdef int check_not_busy(TransactionMetadata metadata) except -1:
    if metadata.pending is not None:
        raise busy(metadata)
    return 0


cdef int check_producer_id(TransactionMetadata metadata, int64_t producer_id) except -1:
    if producer_id != metadata.current.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f'found producer id {producer_id} for '
                         f'{metadata.transactional_id!r}, expected {metadata.current.producer_id}')
    return 0


cdef int check_epoch(TransactionMetadata metadata, int16_t producer_epoch) except -1:
    if producer_epoch != metadata.current.producer_epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED, f'found producer epoch {producer_epoch} for '
                         f'{metadata.transactional_id!r}, expected {metadata.current.producer_epoch}')
    return 0


cdef object ending_without_bump(TransactionMetadata metadata, int64_t producer_id, int16_t producer_epoch,
                                bint committed):
    """A client's epoch must be the very one in force, also where it is higher (KAFKA-9600)."""
    check_producer_id(metadata, producer_id)
    check_epoch(metadata, producer_epoch)
    check_not_busy(metadata)
    return decide_without_bump(metadata.current.status, committed)


cdef object ending_with_bump(TransactionMetadata metadata, int64_t producer_id, int16_t producer_epoch,
                             bint committed):
    """What is pending comes first: the client may hold already what the Complete row will say (KAFKA-18464)."""
    check_not_busy(metadata)
    if not is_overflow_retry(metadata.current, producer_id, producer_epoch):
        check_producer_id(metadata, producer_id)
    return decide_with_bump(metadata.current.status, claimed(metadata.current, producer_id, producer_epoch), committed)
