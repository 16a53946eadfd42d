"""The transaction coordinator: producer ids, the partitions of transactions, and the transactional ids themselves.

Each operation compares the request with the row in force, appends the next row, and completes when that row is durable.
`state` documents the states. `end_transaction` ends transactions. An operation that gets a completion passes its errors
to the completion, and raises none.
"""
import logging
from heapq import nsmallest

from libc.stdint cimport int16_t, int64_t

from kbroker.base.clock cimport Clock, Timers
from kbroker.base.completion cimport Completion
from kbroker.base.long_work cimport LongWork
from kbroker.transaction.checks cimport (
    busy, check_epoch, check_not_busy, check_not_kept, check_partitions_count, check_producer_id, check_row_can_hold,
)
from kbroker.transaction.end_transaction cimport Ending, TransactionEnder
from kbroker.transaction.state cimport (
    EPOCH_BUMPS_FROM, EXHAUSTED_PRODUCER_EPOCH, NEVER_TIMES_OUT_MS, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP,
    STATUS_EMPTY, STATUS_ONGOING, STATUS_PREPARE_EPOCH_FENCE, PartitionSet, TransactionMetadata, TransactionRow,
    is_idle, is_prepared, set_of,
)
from kbroker.transaction.store cimport StatePartition, TransactionStore

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import CONSUMER_OFFSETS
from kbroker.security.escape import shown
from kbroker.transaction.initialisations import Step, claim_of, decide, place_of
from kbroker.transaction.state_log import value_version
from kbroker.transaction.store import MOST_TOGETHER_BYTES
from kbroker.transaction.verification import Mode, error_for_produce, error_for_write

logger = logging.getLogger(__name__)

ADD_RETRY_MAX_MS = 100
"""Kafka's add.partitions.to.txn.retry.backoff.max.ms."""

cdef enum:
    NO_DEADLINE = -1
    IDS_AT_ONCE = 512               # ids that one part of long work visits
    COST_OF_ABORT = 64              # the cost of aborting a transaction, in visited ids
    TOMBSTONES_AT_ONCE = 64
    PRODUCE_VERSIONS = 32           # more than there are; the versions above have the mode of the last

cdef object NONE = ErrorCode.NONE
cdef object CONCURRENT_TRANSACTIONS = ErrorCode.CONCURRENT_TRANSACTIONS
cdef object ADD = Mode.ADD
cdef object KEEP = Step.KEEP
cdef object FENCE = Step.FENCE
cdef tuple MODES = tuple(map(Mode.of_produce, range(PRODUCE_VERSIONS)))


cdef class Adding(Completion):
    """A request to add partitions to a transaction.

    If another change of the transactional.id is in flight, the attempt is repeated until `deadline_ms` of the monotonic
    clock. If `error_for_mode` is not None, it translates the coordinator's errors for a write in `mode`.
    """

    cpdef attempt(self):
        self.coordinator.add(self)

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        """Report the result of an attempt, or repeat the attempt.

        If `error` is None, the partitions are durably in the transaction.
        """
        if error is None:
            return self.done.complete(None, self.part, None)
        if (error.code is CONCURRENT_TRANSACTIONS and self.deadline_ms != NO_DEADLINE
                and self.coordinator._clock.monotonic_ms() < self.deadline_ms):
            return self.coordinator.ender.wait(self.transactional_id, self.attempt)
        if self.error_for_mode is not None:
            error = KafkaError(self.error_for_mode(self.mode, error.code))
        return self.done.complete(error, self.part, None)


cdef class FencedFirst(Completion):
    """An InitProducerId that first aborts the open transaction.

    Its client repeats the request until the abort is complete.
    """
    cdef Completion done

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        return self.done.complete(KafkaError(CONCURRENT_TRANSACTIONS) if error is None else error, 0, None)


cdef class Kept(Completion):
    """An InitProducerId that keeps the open transaction. The broker seals the transaction before it replies."""
    cdef TransactionStore store
    cdef Completion done

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        if error is None:
            self.store.seal(result)
        return self.done.complete(error, 0, result)


cdef class TransactionCoordinator:
    """Owns the state of every transactional.id.

    `transaction_version` is the finalized level of the feature `transaction.version`. `use_version` changes it.
    """

    def __init__(self, config, Clock clock, LongWork long_work, topics, producer_ids, *, int transaction_version,
                 Py_ssize_t most_together_bytes=MOST_TOGETHER_BYTES):
        cdef Timers timers = long_work.timers
        self._config = config
        self._clock = clock
        self._timers = timers
        self._long_work = long_work
        self._topics = topics
        self._producer_ids = producer_ids
        self._transaction_version = transaction_version
        self.store = TransactionStore(config, clock, timers, topics, self._on_loaded, most_together_bytes)
        self.store.row_version = value_version(transaction_version)
        self.ender = TransactionEnder(self.store, clock, long_work, topics, producer_ids,
                                      transaction_version=transaction_version)
        self._alone = {}
        topics.on_topic_deleted.append(self._on_topic_deleted)
        self._stops = []

    def use_version(self, int transaction_version):
        """From now on, use another level of transaction.version. The rows that are in the log are not changed."""
        self._transaction_version = transaction_version
        self.store.row_version = value_version(transaction_version)
        self.ender.transaction_version = transaction_version

    def start(self):
        """Load `__transaction_state`, finish the transactions that are decided, and start the periodic checks."""
        self.store.start()
        config = self._config
        self._stops = [
            self._timers.every(config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
                               self.abort_timed_out),
            self._timers.every(config.transaction_remove_expired_transaction_cleanup_interval_ms,
                               self.remove_expired),
        ]

    def close(self):
        """Write the held rows, then stop. If the log has failed, the caller calls `stop` instead."""
        self.store.append_held()
        self.stop()

    def stop(self):
        """Stop without a write. The next start finishes the transactions that are decided."""
        for stop in self._stops:
            stop()
        self._stops = []
        self.ender.stop()
        self.store.stop()

    def _on_loaded(self, StatePartition owned not None):
        self.ender.resume(owned)

    # -- InitProducerId ------------------------------------------------------------------------------------------

    def init_producer_id(self, str transactional_id, int64_t timeout_ms, int64_t producer_id, int16_t producer_epoch,
                         Completion done not None, bint is_two_phase=False, bint keeps=False):
        """Pass a TransactionRow to `done`. Its client's pair of producer id and epoch is the reply to the client.

        A new producer gets a new pair. A producer that names its current pair gets the next epoch (KIP-360). The
        previous owner of the transactional.id is fenced. If it has an open transaction, the transaction is aborted. The
        client then gets CONCURRENT_TRANSACTIONS, and repeats the request until the abort is complete.

        In two-phase commit (KIP-939), transactions never time out, and `timeout_ms` is not used. If `keeps` is true,
        the client takes over the open transaction, which is not aborted. The row then has the state Ongoing, and
        contains the transaction's pair, too.
        """
        cdef TransactionRow row
        cdef FencedFirst fenced
        cdef Kept kept
        try:
            if (producer_id == NO_PRODUCER_ID) != (producer_epoch == NO_PRODUCER_EPOCH):
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'found producer id {producer_id} with epoch '
                                 f'{producer_epoch}, expected both or neither')
            if transactional_id is None:        # the row is only for the reply
                row = TransactionRow(STATUS_EMPTY, self._producer_ids.next(), 0, 0, self._clock.wall_ms())
            else:
                if is_two_phase:
                    timeout_ms = NEVER_TIMES_OUT_MS
                self._check_initialisation(transactional_id, timeout_ms, is_two_phase, keeps)
                owned, metadata = self._to_initialise(transactional_id, timeout_ms)
                row = self._prepare_init(metadata, timeout_ms, producer_id, producer_epoch, keeps)
        except KafkaError as error:
            done.complete(error, 0, None)
            return
        if transactional_id is None:
            done.complete(None, 0, row)
        elif row.fields.state == STATUS_PREPARE_EPOCH_FENCE:
            fenced = FencedFirst.__new__(FencedFirst)
            fenced.done = done
            self.ender.abort_fenced(owned, metadata, fenced)
        elif row.keeps():
            kept = Kept.__new__(Kept)
            kept.store, kept.done = self.store, done
            self.store.append(owned, metadata, kept, 0)
        else:
            self.store.append(owned, metadata, done, 0)

    def _check_initialisation(self, str transactional_id, int64_t timeout_ms, bint is_two_phase, bint keeps):
        longest_ms = self._config.transaction_max_timeout_ms
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, 'the transactional.id is empty')
        if not is_two_phase and not 0 < timeout_ms <= longest_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                             f'found transaction timeout {timeout_ms} ms, expected 1 to {longest_ms}')
        if keeps and self._transaction_version < EPOCH_BUMPS_FROM:     # the markers need a separate epoch
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, 'a prepared transaction is kept from transaction.version '
                             f'{EPOCH_BUMPS_FROM} on, found {self._transaction_version}')

    def _to_initialise(self, str transactional_id, int64_t timeout_ms):
        """Return the state partition and the metadata of a transactional.id.

        For a new id, create metadata without a row.
        """
        owned, metadata = self.store.find(transactional_id)
        if metadata is None:
            metadata = TransactionMetadata.unborn(transactional_id, self._producer_ids.next(), timeout_ms,
                                                  self._clock.wall_ms())
            self.store.add_new(owned, metadata)
        return owned, metadata

    def _prepare_init(self, TransactionMetadata metadata, int64_t timeout_ms, int64_t producer_id,
                      int16_t producer_epoch, bint keeps):
        """Prepare the row that `initialisations` decides on: an Empty row, a kept row, or the fence of an open
        transaction.

        While a transaction is open and not kept, the client's epoch is not checked here, as in Kafka. The transaction
        is aborted in any case, and the client repeats its request. If the client has the current epoch, the repeated
        request succeeds. Otherwise the repeated request is fenced.
        """
        cdef TransactionRow current = metadata.current
        check_not_busy(metadata)
        expected_epoch = None if producer_epoch == NO_PRODUCER_EPOCH else producer_epoch
        if (expected_epoch is not None and metadata.was_born()
                and producer_id != current.id_of_client()
                and not (producer_id == current.fields.previous_producer_id
                         and expected_epoch >= EXHAUSTED_PRODUCER_EPOCH)):
            raise KafkaError(ErrorCode.PRODUCER_FENCED, f'found producer id {producer_id} for '
                             f'{metadata.transactional_id!r}, expected {current.id_of_client()}')
        decision = decide(place_of(current), claim_of(current, producer_id, producer_epoch), keeps)
        now_ms = self._clock.wall_ms()
        if decision is FENCE:
            return metadata.prepare_epoch_fence()
        if decision is KEEP:
            return self._prepare_keep(metadata, timeout_ms, now_ms)
        if type(decision) is ErrorCode:
            raise KafkaError(decision, f'found producer id {producer_id} epoch {producer_epoch} for '
                             f'{metadata.transactional_id!r} in {current.state.title}, expected '
                             f'{current.id_of_client()} epoch {current.epoch_of_client()}')
        if current.is_exhausted() and (expected_epoch is None or expected_epoch == current.fields.producer_epoch):
            return metadata.prepare_producer_id_rotation(self._producer_ids.next(), timeout_ms,
                                                         expected_epoch is not None, now_ms)
        return metadata.prepare_epoch_increment(timeout_ms, expected_epoch, now_ms)

    def _prepare_keep(self, TransactionMetadata metadata, int64_t timeout_ms, int64_t now_ms):
        """Prepare the kept row.

        The row keeps the transaction's timeout unless transactions of the client never time out, because the
        transaction began with that timeout.
        """
        cdef TransactionRow current = metadata.current
        fresh_producer_id = self._producer_ids.next() if current.is_exhausted() else NO_PRODUCER_ID
        return metadata.prepare_keep(timeout_ms if timeout_ms == NEVER_TIMES_OUT_MS else current.fields.timeout_ms,
                                     fresh_producer_id, now_ms)

    # -- partitions ----------------------------------------------------------------------------------------------

    cpdef add_partitions(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, partitions,
                         int client_transaction_version, Completion done):
        """Add `partitions`, which must exist, to the producer's transaction. If no transaction is open, begin one.

        Refuse the request with CONCURRENT_TRANSACTIONS while another change of the transactional.id is in flight.
        """
        self.add(self.adding(transactional_id, producer_id, producer_epoch, set_of(partitions),
                             client_transaction_version, done))

    cpdef add_partitions_in_turn(self, str transactional_id, int64_t producer_id, int16_t producer_epoch,
                                 PartitionSet partitions, object connection, Completion done):
        """Add partitions for a client from before TV2, whose request arrived on `connection`.

        Unlike `add_partitions`, this waits up to ADD_RETRY_MAX_MS if another change is in flight, and only then refuses
        the request. `stale_requests` checks the request after the wait, because the client may change its connection
        while it waits.

        A producer gets the reply to its EndTxn before the transaction is complete. So it may begin its next transaction
        too early. Kafka waits for the completion only in writes of TV2 (KAFKA-18575). An older client then has to wait
        for its retry backoff in each transaction, which is many times longer than the completion takes. So kbroker
        waits for older clients, too.
        """
        cdef Adding adding = self.adding(transactional_id, producer_id, producer_epoch, partitions, 0, done)
        adding.connection = connection
        adding.deadline_ms = self._clock.monotonic_ms() + ADD_RETRY_MAX_MS
        self.add(adding)

    cdef Adding adding(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, PartitionSet partitions,
                       int client_transaction_version, Completion done):
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
            owned = self.store.owner(adding.transactional_id)
            metadata = owned.known(adding.transactional_id)
            check_not_busy(metadata)
            check_producer_id(metadata, adding.producer_id)
            check_epoch(metadata, adding.producer_epoch)
            check_row_can_hold(adding.client_transaction_version, self._transaction_version)
            current = metadata.current
            if is_prepared(current.fields.state):
                raise busy(metadata)
            check_not_kept(metadata)
            self.store.stale_requests.check(metadata, adding.connection, 'an addition of partitions')
            if current.fields.state != STATUS_ONGOING or not holds(current.partition_set, adding.partitions):
                check_partitions_count(len(current.partition_set.members) + len(adding.partitions.members))
                metadata.prepare_partitions(adding.partitions, adding.client_transaction_version,
                                            self._clock.wall_ms())
                self.store.count_added(owned, metadata)
        except KafkaError as error:
            return adding.complete(error, 0, None)
        if metadata.pending is None:        # all partitions are already in the transaction
            return adding.complete(None, 0, None)
        return self.store.append(owned, metadata, adding, 0)

    def verify_partitions(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, partitions):
        """Return {partition: error code}.

        The code says whether the partition is in the producer's transaction (KIP-890 part 1).

        The code is NONE if it is, TRANSACTION_ABORTABLE if it is not. If a check of the producer fails, all partitions
        get the error of that check.
        """
        cdef TransactionMetadata metadata
        wanted = list(partitions)
        try:
            metadata = self.store.owner(transactional_id).known(transactional_id)
            check_producer_id(metadata, producer_id)
            check_epoch(metadata, producer_epoch)
            if is_prepared(metadata.current.fields.state):
                raise busy(metadata)
            check_not_kept(metadata)
        except KafkaError as error:
            return dict.fromkeys(wanted, error.code)
        return {partition: NONE if partition in metadata.current.partitions else ErrorCode.TRANSACTION_ABORTABLE
                for partition in wanted}

    def add_offsets(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, int partition,
                    object connection, Completion done not None):
        """Add a partition of `__consumer_offsets` to the transaction."""
        self.add_partitions_in_turn(transactional_id, producer_id, producer_epoch,
                                    set_of([(CONSUMER_OFFSETS, partition)]), connection, done)

    # -- the check before a transactional write ------------------------------------------------------------------

    cpdef add_or_verify_partitions(self, str transactional_id, int64_t producer_id, int16_t producer_epoch,
                                   list partitions, int produce_version, Completion done, Py_ssize_t part):
        """Add the partitions of a Produce to the transaction (TV2), or verify that they are in it.

        `partitions` are Partition objects. In each of them, the producer has no open transaction. If `done` gets an
        error, all partitions are refused. Otherwise its result is None, or {(topic, partition): KafkaError} for the
        refused partitions.
        """
        cdef PartitionSet written = self.set_of_partitions(partitions)
        cdef Adding adding
        mode = MODES[min(produce_version, PRODUCE_VERSIONS - 1)]
        if mode is ADD:
            adding = self.adding(transactional_id, producer_id, producer_epoch, written, EPOCH_BUMPS_FROM, done)
            adding.deadline_ms = self._clock.monotonic_ms() + ADD_RETRY_MAX_MS
            adding.mode = mode
            adding.error_for_mode = error_for_produce
            adding.part = part
            self.add(adding)
        elif self._config.transaction_partition_verification_enable:
            codes = self.verify_partitions(transactional_id, producer_id, producer_epoch, written.members)
            done.complete(None, part, {partition: KafkaError(error_for_produce(mode, code))
                                       for partition, code in codes.items() if code is not NONE})
        else:
            done.complete(None, part, None)

    cdef PartitionSet set_of_partitions(self, list partitions):
        """Return the set of these Partition objects.

        Sets of single partitions are cached, because nearly every write has a single partition.
        """
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

    cpdef add_or_verify_offsets_partition(self, str transactional_id, int64_t producer_id, int16_t producer_epoch,
                                          int partition, int request_version, Completion done, Py_ssize_t part):
        """Add the partition of a TxnOffsetCommit in `__consumer_offsets` to the transaction (TV2), or verify that it is
        in it.

        If another change is in flight, refuse the request without waiting: the client retries.
        """
        cdef Adding adding
        mode = Mode.of_txn_offset_commit(request_version)
        wanted = (CONSUMER_OFFSETS, partition)
        if mode is ADD:
            adding = self.adding(transactional_id, producer_id, producer_epoch, set_of([wanted]), EPOCH_BUMPS_FROM,
                                 done)
            adding.mode = mode
            adding.error_for_mode = error_for_write
            adding.part = part
            self.add(adding)
            return
        code = NONE
        if self._config.transaction_partition_verification_enable:
            code = self.verify_partitions(transactional_id, producer_id, producer_epoch, [wanted])[wanted]
        done.complete(None if code is NONE else KafkaError(error_for_write(mode, code)), part, None)

    # -- requests of tools ---------------------------------------------------------------------------------------

    def describe(self, str transactional_id):
        """Return the current row of a transactional.id.

        Raise INVALID_REQUEST for an empty id, TRANSACTIONAL_ID_NOT_FOUND for an unknown id, and the errors that
        `store.owner` raises.
        """
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, 'the transactional.id is empty')
        _, metadata = self.store.find(transactional_id)
        if metadata is None or not metadata.is_born or metadata.is_dying:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f'{transactional_id!r} is not known')
        return metadata.current

    def list_transactions(self, bint only_open=False):
        """Return (transactional.id, row) for each id. Raise COORDINATOR_LOAD_IN_PROGRESS until all ids are loaded.

        `only_open` omits the ids in an idle state. These ids are not even visited, so their number does not affect the
        cost.
        """
        if self.store.is_loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return ((metadata.transactional_id, metadata.current) for owned in self.store.loaded()
                for metadata in tuple((owned.open if only_open else owned.transactions).values())
                if metadata.is_born and not metadata.is_dying)

    @property
    def unfinished(self):
        """Maps each transactional.id that is decided but not complete to the partitions without a durable marker."""
        cdef Ending ending
        return {ending.metadata.transactional_id: [partition for partition, is_marked
                                                   in zip(ending.partitions, ending.is_marked) if not is_marked]
                for ending in self.ender.marking}

    def oldest_open(self, Py_ssize_t most):
        """Return, as long work, (start in ms of the wall clock, transactional.id) of the `most` transactions that have
        been open for the longest time, in ascending order.

        A transaction is open until each of its partitions has the marker.
        """
        cdef StatePartition owned
        cdef TransactionMetadata metadata
        cdef list found = []
        for owned in self.store.loaded():
            for metadata in list(owned.open.values()):
                # An abort with nothing to abort has no start.
                if metadata.current.fields.start_timestamp_ms != NO_TIMESTAMP:
                    found.append((metadata.current.fields.start_timestamp_ms, metadata.transactional_id))
                if len(found) >= IDS_AT_ONCE + most:
                    found = nsmallest(most, found)
                    yield
        return nsmallest(most, found)

    def names_of_producers(self, set producer_ids not None):
        """Return, as long work, {producer id: transactional.id} of the open transactions of these producers."""
        cdef StatePartition owned
        cdef TransactionMetadata metadata
        cdef Py_ssize_t looked_at = 0
        cdef dict found = {}
        for owned in self.store.loaded():
            for metadata in list(owned.open.values()):
                if metadata.current.fields.producer_id in producer_ids:
                    found[metadata.current.fields.producer_id] = metadata.transactional_id
                looked_at += 1
                if looked_at % IDS_AT_ONCE == 0:
                    yield
        return found

    # -- time ----------------------------------------------------------------------------------------------------

    def abort_timed_out(self):
        """As long work, fence and abort each transaction that has been open for longer than its timeout."""
        if not self._is_aborting:
            self._is_aborting = True
            self._long_work.start(self._abort_timed_out())

    def _abort_timed_out(self):
        cdef StatePartition owned
        cdef TransactionMetadata metadata
        cdef TransactionRow current
        cdef int64_t now_ms = self._clock.wall_ms()
        cdef Py_ssize_t cost = 0
        for owned in self.store.loaded():
            for metadata in list(owned.open.values()):
                current = metadata.current
                cost += 1
                if (current.fields.state == STATUS_ONGOING and metadata.pending is None
                        and current.fields.timeout_ms != NEVER_TIMES_OUT_MS
                        and current.fields.start_timestamp_ms + current.fields.timeout_ms < now_ms):
                    logger.info('%s: aborting the transaction of producer %d epoch %d, open since %d for more than %d '
                                'ms', shown(metadata.transactional_id), current.fields.producer_id,
                                current.fields.producer_epoch, current.fields.start_timestamp_ms,
                                current.fields.timeout_ms)
                    metadata.prepare_epoch_fence()
                    self.ender.abort_fenced(owned, metadata, None)
                    cost += COST_OF_ABORT
                if cost >= IDS_AT_ONCE:
                    cost = 0
                    yield
                    if owned.is_lost:
                        break
        self._is_aborting = False

    def remove_expired(self):
        """As long work, forget each id that has been idle for longer than transactional.id.expiration.ms."""
        if not self._is_removing:
            self._is_removing = True
            self._long_work.start(self._remove_expired())

    def _remove_expired(self):
        cdef StatePartition owned
        cdef TransactionMetadata metadata
        cdef int64_t horizon_ms = self._clock.wall_ms() - self._config.transactional_id_expiration_ms
        cdef Py_ssize_t looked_at = 0
        cdef list expired
        for owned in self.store.loaded():
            expired = []
            for metadata in list(owned.transactions.values()):
                looked_at += 1
                if (is_idle(metadata.current.fields.state) and metadata.pending is None
                        and metadata.current.fields.last_update_timestamp_ms <= horizon_ms):
                    expired.append(metadata)
                if looked_at >= IDS_AT_ONCE or len(expired) >= TOMBSTONES_AT_ONCE:
                    self.store.remove(owned, expired)
                    expired, looked_at = [], 0
                    yield
                    if owned.is_lost:
                        expired = []
                        break
            self.store.remove(owned, expired)
        self._is_removing = False


cdef bint holds(PartitionSet partitions, PartitionSet wanted) except -1:
    return wanted is partitions or wanted.members <= partitions.members
