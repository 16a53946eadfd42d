"""The transactional ids in memory, grouped by their partition of `__transaction_state`.

The state in memory is the result of replaying these partitions. The store reads a partition once, when the broker
starts or the topic is created. Later it adopts each row when the row is durable. Complete rows are an exception, which
`TransactionStore.hold_complete` documents.
"""
import logging

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int16_t, int64_t, uint8_t
from libc.string cimport memcpy, memmove, memset

from kbroker.base.clock cimport Clock, Timer, Timers
from kbroker.base.completion cimport Completion
from kbroker.base.object_memory cimport memory_of, utf8_length
from kbroker.record.batch cimport HEADER_BYTES, BatchFields, write_header
from kbroker.record.record_writer cimport RECORD_OVERHEAD_BYTES
from kbroker.topics.partition cimport Partition
from kbroker.topics.partitioner cimport partition_for
from kbroker.transaction.row_encoder cimport put_value, topics_of, value_room
from kbroker.transaction.stale_requests cimport StaleRequests
from kbroker.transaction.state cimport (
    NO_PRODUCER_EPOCH, NO_PRODUCER_ID, STATUS_COMPLETE_ABORT, STATUS_COMPLETE_COMMIT, STATUS_DEAD, STATUS_EMPTY,
    STATUS_ONGOING, STATUS_PREPARE_ABORT, STATUS_PREPARE_COMMIT, STATUSES, PartitionSet, TransactionMetadata,
    TransactionRow, is_idle, is_prepared,
)
from kbroker.wire.bytes cimport put_unsigned_varint, unsigned_varint_size, zigzag

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import TRANSACTION_STATE
from kbroker.base.ledger import Line
from kbroker.record.batch import encode_batch
from kbroker.topics.partition import APPEND_ERRORS
from kbroker.transaction import state_log
from kbroker.transaction.row_encoder import encode_key
from kbroker.transaction.state import STORED, TransactionState

logger = logging.getLogger(__name__)

MOST_ID_BYTES = 256 * 1024 * 1024
"""The most bytes of memory for all transactional ids and their open transactions.

At this limit, the broker refuses new ids, and new partitions in transactions.
"""
ID_OVERHEAD_BYTES = 640
"""An upper bound of the bytes of memory of an idle id, without its text.

The text counts twice: as the id, and as the key of its rows.
"""
TOMBSTONE_OVERHEAD_BYTES = 40
"""An upper bound of the bytes of a tombstone record without its key."""
HELD_MS = 5
"""The milliseconds for which a Complete row waits for another row, to share that row's write."""
HELD_RETRY_BACKOFF_MS = 100
MOST_TOGETHER_BYTES = 16384
"""The most bytes of a batch that has more than one row."""

cdef enum:
    KEPT_ROOM_BYTES = 65536     # a buffer that one large row made larger is not kept


cdef class StatePartition:
    """One partition of `__transaction_state`, with the transactional ids that belong to it.

    - `coordinator_epoch` is the leader epoch of the partition. Data partitions refuse markers with a lower epoch.
    - `is_lost` is true if the coordinator has stopped or the topic was deleted.
    - `open` is an index of the ids whose transaction is not complete.
    """

    def __init__(self, Partition partition not None):
        self.partition = partition
        self.coordinator_epoch = partition.leader_epoch
        self.is_loading = True
        self.transactions = {}
        self.open = {}
        self.held = RowBatch.__new__(RowBatch)

    cdef TransactionMetadata known(self, str transactional_id):
        """Return the metadata of an id. Raise INVALID_PRODUCER_ID_MAPPING if the id has never had a row in force."""
        cdef TransactionMetadata metadata = self.transactions.get(transactional_id)
        if metadata is None or not metadata.was_born():
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f'{transactional_id!r} is not known')
        return metadata


cdef class RowAppend(Completion):
    """A pending row that is being made durable. `then` completes when the row is adopted or abandoned."""

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        if self.owned.is_lost or self.metadata.pending is not self.row:
            return self.then.complete(KafkaError(ErrorCode.NOT_COORDINATOR), self.part, None)
        if error is not None:
            self.store.abandon(self.owned, self.metadata)
            return self.then.complete(error_for_client(self.owned.partition, error), self.part, None)
        self.store.adopt(self.owned, self.metadata)
        return self.then.complete(None, self.part, self.row)


cdef class Tombstones(Completion):
    """A batch of tombstones that is being made durable. Then the store forgets the ids."""

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        cdef TransactionMetadata metadata
        if error is not None:
            log_failure(self.owned.partition, error)
        for metadata in self.batch:
            if error is None:
                self.store.forget(self.owned, metadata)
            else:
                metadata.abandon()
        return 0


cdef class TransactionStore:
    """Finds transactions, and makes their pending rows durable.

    `row_version` is the version of the rows' values. `on_loaded` is called with each StatePartition after it is loaded.
    `most_together_bytes` is the most bytes of a batch that has more than one row.
    """

    def __init__(self, config, Clock clock, Timers timers, topics, on_loaded,
                 Py_ssize_t most_together_bytes=MOST_TOGETHER_BYTES):
        self._config = config
        self._clock = clock
        self._timers = timers
        self._topics = topics
        self._on_loaded = on_loaded
        self._owned = []
        self.sealed = {}
        self.stale_requests = StaleRequests(config)
        self.most_id_bytes = MOST_ID_BYTES
        self._most_together_bytes = most_together_bytes
        topics.on_topic_created.append(self._on_topic_created)
        topics.on_topic_deleted.append(self._on_topic_deleted)

    def start(self):
        """Load every state partition. The ids of a partition can be found when all rows read from it are durable."""
        topic = self._topics.topic(TRANSACTION_STATE)
        if topic is not None:
            self._on_topic_created(topic)

    def stop(self):
        """Forget all ids. A row that is not durable yet can no longer change the state in memory.

        Held Complete rows are forgotten, too. If the log works, the caller must call `append_held` first.
        """
        cdef StatePartition owned
        for state in STORED:
            self.dropped[<int>state] += self.count_in(state)
        for owned in self._owned:
            owned.is_lost = True
            owned.held.clear()
        self._owned = []
        self.sealed = {}
        self.id_bytes = 0
        if self._held_timer is not None:
            self._held_timer.cancel()
            self._held_timer = None

    @property
    def is_loading(self):
        return any(owned.is_loading for owned in self._owned)

    def ledger(self):
        return [
            Line('transactional ids and open transactions', 'bytes', lambda: self.id_bytes, lambda: self.most_id_bytes,
                 'transactional.id.expiration.ms makes room'),
            Line('transactions that a client keeps as prepared', '', lambda: self.kept_count,
                 lambda: self.most_id_bytes // ID_OVERHEAD_BYTES, 'one a transactional id'),
            Line('groups of transactional producers', '', lambda: self.stale_requests.groups_count,
                 lambda: self.stale_requests.most_groups, 'the least recently used is forgotten')]

    @property
    def kept_count(self):
        return len(self.sealed)

    # -- counts: a new id comes from the state DEAD, and a forgotten one goes there ---------------------------------

    @property
    def begun(self):
        """The number of transactions that have begun since the start of the broker."""
        return sum([self.count_steps(idle, STATUS_ONGOING)
                    for idle in (STATUS_EMPTY, STATUS_COMPLETE_COMMIT, STATUS_COMPLETE_ABORT)])

    @property
    def committed(self):
        """The number of transactions that the broker has durably decided to commit since its start."""
        return self.count_steps(STATUS_ONGOING, STATUS_PREPARE_COMMIT)

    @property
    def aborted(self):
        """The number of transactions that the broker has durably decided to abort since its start."""
        return self.count_steps(STATUS_ONGOING, STATUS_PREPARE_ABORT)

    @property
    def counts_by_state(self):
        """Maps each state that a row in the log may have to the number of transactional ids in it."""
        return {state: self.count_in(state) for state in TransactionState if state in STORED}

    @property
    def open_count(self):
        """The number of transactions that have begun or are decided, and are not complete."""
        return sum([len(owned.open) for owned in self._owned])

    cdef int64_t count_steps(self, int before, int after) noexcept:
        return self.steps[before][after]

    cdef int64_t count_in(self, int state) noexcept:
        cdef int64_t count = -self.dropped[state]
        cdef int other
        for other in range(<int>STATUSES):
            count += self.steps[other][state] - self.steps[state][other]
        return count

    def loaded(self):
        return [owned for owned in self._owned if not owned.is_loading]

    cpdef StatePartition owner(self, str transactional_id):
        """Return the state partition of an id.

        Raise INVALID_REQUEST for an empty id, NOT_COORDINATOR if `__transaction_state` does not exist, and
        COORDINATOR_LOAD_IN_PROGRESS until the partition is loaded.
        """
        cdef StatePartition owned
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, 'the transactional.id is empty')
        if not self._owned:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f'{TRANSACTION_STATE} does not exist')
        owned = self._owned[partition_for(transactional_id, len(self._owned))]
        if owned.is_loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return owned

    def find(self, str transactional_id):
        """Return (state partition, metadata) of an id. The metadata of an unknown id is None.

        Raise the errors that `owner` raises.
        """
        owned = self.owner(transactional_id)
        return owned, owned.transactions.get(transactional_id)

    def add_new(self, StatePartition owned not None, TransactionMetadata metadata not None):
        """Add a new id. Raise POLICY_VIOLATION if the memory of all ids would exceed MOST_ID_BYTES.

        Clients do not retry this error.
        """
        cdef int64_t more_bytes = memory_of_id(metadata.transactional_id)
        if self.id_bytes + more_bytes > self.most_id_bytes:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f'found transactional ids of {self.id_bytes} bytes, expected '
                             f'{self.most_id_bytes} at most: no further one is taken before some expire')
        self.keep(owned, metadata)

    cdef int count_added(self, StatePartition owned, TransactionMetadata metadata) except -1:
        """Count the memory of the partitions that a pending row adds.

        If it exceeds the limit, abandon the row and raise COORDINATOR_LOAD_IN_PROGRESS. Clients retry this error.
        """
        self.count(owned, metadata)
        if self.id_bytes > self.most_id_bytes:
            self.abandon(owned, metadata)
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                             f'found transactional ids and transactions of {self.id_bytes} bytes, expected '
                             f'{self.most_id_bytes} at most: the partitions fit once other transactions end')
        return 0

    cdef int count(self, StatePartition owned, TransactionMetadata metadata) except -1:
        """Update the counted memory of an id after the partitions in its current or its pending row have changed."""
        cdef int64_t held_bytes = metadata.current.partition_set.memory()
        if metadata.pending is not None and metadata.pending.partition_set is not metadata.current.partition_set:
            held_bytes += metadata.pending.partition_set.memory()
        if held_bytes != metadata.open_bytes:
            if not owned.is_lost:
                self.id_bytes += held_bytes - metadata.open_bytes
            metadata.open_bytes = held_bytes
        return 0

    cdef int abandon(self, StatePartition owned, TransactionMetadata metadata) except -1:
        metadata.abandon()
        return self.count(owned, metadata)

    cdef int adopt(self, StatePartition owned, TransactionMetadata metadata) except -1:
        """Adopt the pending row, and update the index of open transactions.

        If it is a Prepare row, make the Complete row pending in the same call, so that no other step of the id comes
        between them.
        """
        cdef int before = metadata.current.fields.state
        cdef bint was_idle = is_idle(before)
        metadata.adopt()
        self.steps[before][metadata.current.fields.state] += 1
        if is_prepared(metadata.current.fields.state):
            metadata.prepare_complete(self._clock.wall_ms())
        if metadata.open_bytes != metadata.current.partition_set.held_bytes:
            self.count(owned, metadata)
        if is_idle(metadata.current.fields.state) != was_idle:
            if was_idle:
                owned.open[metadata.transactional_id] = metadata
            else:
                del owned.open[metadata.transactional_id]
        return 0

    cdef int keep(self, StatePartition owned, TransactionMetadata metadata) except -1:
        owned.transactions[metadata.transactional_id] = metadata
        self.steps[<int>STATUS_DEAD][metadata.current.fields.state] += 1
        if not is_idle(metadata.current.fields.state):
            owned.open[metadata.transactional_id] = metadata
        self.id_bytes += memory_of_id(metadata.transactional_id)
        return self.count(owned, metadata)

    cdef int forget(self, StatePartition owned, TransactionMetadata metadata) except -1:
        del owned.transactions[metadata.transactional_id]
        self.stale_requests.forget_producer(metadata.current.fields.producer_id)
        if not owned.is_lost:
            self.id_bytes -= memory_of_id(metadata.transactional_id) + metadata.open_bytes
            self.steps[metadata.current.fields.state][<int>STATUS_DEAD] += 1
        return 0

    cdef int seal(self, TransactionRow kept) except -1:
        """Refuse further batches of a kept transaction from now on until the transaction is complete.

        The kept row is durable.

        The coordinator has fenced the former client. But in a partition where the transaction is open, the broker
        accepts batches without asking the coordinator. Without the seal, it would accept a late batch of the former
        client.
        """
        self.sealed[kept.fields.producer_id] = kept.fields.producer_epoch
        return 0

    cpdef int check_not_sealed(self, int64_t producer_id, int16_t producer_epoch) except -1:
        """Raise INVALID_PRODUCER_EPOCH if another client has kept the transaction to which a batch of this producer
        belongs.
        """
        if self.sealed and producer_epoch <= self.sealed.get(producer_id, NO_PRODUCER_EPOCH):
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, f'producer {producer_id} epoch {producer_epoch}: the '
                             'transaction is prepared, and another client has taken it over')
        return 0

    cdef int append(self, StatePartition owned, TransactionMetadata metadata, Completion then,
                    Py_ssize_t part) except -1:
        """Append the pending row of `metadata`.

        When the row is durable, adopt it, and complete `part` of `then` with it.

        If the row cannot be made durable, abandon it, and complete `then` with the error for the client. The error is
        NOT_COORDINATOR if the partition was lost before the row was durable.
        """
        cdef int64_t end_offset
        cdef RowAppend row_append = RowAppend.__new__(RowAppend)
        row_append.store = self
        row_append.owned = owned
        row_append.metadata = metadata
        row_append.row = metadata.pending
        row_append.then = then
        row_append.part = part
        try:
            end_offset = self.write(owned, metadata)
        except KafkaError as error:
            return row_append.complete(error, 0, None)
        return owned.partition.await_durable(end_offset, row_append, 0)

    cdef int hold_complete(self, StatePartition owned, TransactionMetadata metadata) except -1:
        """Adopt the pending Complete row now, and hold it until the next row of its partition is written.

        No reader, no reply and no later record may depend on a record that a crash could take away. The Complete row is
        adopted before it is durable, which is safe for two reasons:

        - A crash takes nothing away. Everything in the row follows from the Prepare row and the markers, which are
          durable. If a start does not find the row, it writes the markers again, which changes nothing, and derives the
          same row.
        - No later row is in the log without the Complete row. Every later row of the partition is appended after the
          held rows, or behind them in their batch.

        So the Complete row needs no separate write and no separate sync. It is written with the next row. If there is
        no next row, `append_held` writes it after HELD_MS, or at a clean stop.
        """
        assert metadata.pending.fields.state in (STATUS_COMPLETE_COMMIT, STATUS_COMPLETE_ABORT)
        try:
            self.add(owned, metadata)
        except KafkaError as error:         # from appending the rows held before this one
            log_failure(owned.partition, error)
            owned.held.add(metadata.key, metadata.pending, self.version_of(metadata.pending))
        if metadata.current.keeps():
            self.sealed.pop(metadata.current.fields.producer_id, None)
        self.adopt(owned, metadata)
        return self.append_held_later(HELD_MS)

    cdef int add(self, StatePartition owned, TransactionMetadata metadata) except -1:
        """Add the pending row to the held rows. If all of them are too large for one batch, append the held rows first.

        Raise KafkaError if that append fails, or if the row cannot be encoded.
        """
        if metadata.key is None:
            metadata.key = encode_key(metadata.transactional_id)
        owned.held.add(metadata.key, metadata.pending, self.version_of(metadata.pending))
        if owned.held.count > 1 and owned.held.size > self._most_together_bytes:
            owned.held.drop_last()
            self.append_rows(owned)
            owned.held.add(metadata.key, metadata.pending, self.version_of(metadata.pending))
        return 0

    cdef int version_of(self, TransactionRow row) noexcept:
        """Return the version of a row's value.

        A kept row needs version 1: only this version has fields for the client's pair.
        """
        return 1 if row.keeps() else self.row_version

    cdef int64_t write(self, StatePartition owned, TransactionMetadata metadata) except -1:
        """Append the held rows and, after them, the pending row. Return the offset after the pending row.

        If the append fails, raise KafkaError. The held rows then remain held.
        """
        self.add(owned, metadata)
        try:
            return self.append_rows(owned)
        except KafkaError:
            owned.held.drop_last()
            raise

    cdef int64_t append_rows(self, StatePartition owned) except -1:
        """Append the held rows as one batch. Return the offset after the batch.

        If the append fails, raise KafkaError. The held rows then remain held.
        """
        cdef RowBatch rows = owned.held
        cdef int64_t end_offset
        rows.seal(self._clock.wall_ms())
        # Use another batch for new held rows now, because a completion that the append calls may hold the next row.
        owned.held = RowBatch.__new__(RowBatch) if self._spare is None else self._spare
        self._spare = None
        try:
            end_offset = owned.partition.append_bytes(rows.start, rows.size, 0)
        except KafkaError:
            owned.held = rows
            raise
        rows.clear()
        self._spare = rows
        return end_offset

    cdef int append_held_later(self, int64_t delay_ms) except -1:
        if self._held_timer is None:
            self._held_timer = self._timers.after(delay_ms, self.append_held)
        return 0

    def append_held(self):
        """Append the Complete rows that were not written together with another row.

        After a failure, retry after a pause, because no request would retry it.
        """
        cdef StatePartition owned
        if self._held_timer is not None:
            self._held_timer.cancel()
            self._held_timer = None
        for owned in self._owned:
            if owned.held.count > 0:
                try:
                    self.append_rows(owned)
                except KafkaError as error:
                    log_failure(owned.partition, error)
                    self.append_held_later(HELD_RETRY_BACKOFF_MS)

    def remove(self, StatePartition owned not None, expired):
        """Append tombstones for the `expired` ids, which are idle. Forget each id when its tombstone is durable."""
        batch = []
        size_bytes = 0
        for metadata in expired:
            record_bytes = len(metadata.transactional_id.encode()) + TOMBSTONE_OVERHEAD_BYTES
            if batch and size_bytes + record_bytes > self._config.message_max_bytes:
                self._append_tombstones(owned, batch)
                batch, size_bytes = [], 0
            metadata.prepare_dead()
            batch.append(metadata)
            size_bytes += record_bytes
        if batch:
            self._append_tombstones(owned, batch)

    def _append_tombstones(self, StatePartition owned, list batch):
        """Append the held rows, then the tombstones of `batch`."""
        cdef Tombstones tombstones = Tombstones.__new__(Tombstones)
        cdef int64_t end_offset, now_ms = self._clock.wall_ms()
        cdef bytearray encoded = encode_batch(
            [(now_ms, *state_log.encode_tombstone(metadata.transactional_id)) for metadata in batch])
        tombstones.store = self
        tombstones.owned = owned
        tombstones.batch = batch
        try:
            if owned.held.count > 0:
                self.append_rows(owned)
            end_offset = owned.partition.append_bytes(<uint8_t *>PyByteArray_AS_STRING(encoded),
                                                       PyByteArray_GET_SIZE(encoded), 0)
        except KafkaError as error:
            tombstones.complete(error, 0, None)
        else:
            owned.partition.await_durable(end_offset, tombstones, 0)

    def _on_topic_created(self, topic):
        """Load the partitions of the new topic.

        Partitions that are added to the topic later are ignored until the next start, because they would move ids to
        other partitions.
        """
        if topic.name != TRANSACTION_STATE or self._owned:
            return
        self._owned = [StatePartition(partition) for partition in topic.partitions]
        for owned in self._owned:
            self._load(owned)

    def _on_topic_deleted(self, topic):
        if topic.name == TRANSACTION_STATE:
            self.stop()

    def _load(self, StatePartition owned):
        """Read the partition when all of it is durable.

        A crash can then take away none of the decisions that were read.
        """
        def read(error):
            if owned.is_lost:
                return
            if error is not None:
                logger.error('%s-%d cannot be loaded: %s', TRANSACTION_STATE, owned.partition.partition, error)
                return
            for transactional_id, row in state_log.read_all(owned.partition).items():
                metadata = TransactionMetadata(transactional_id, row)
                self.keep(owned, metadata)
                if is_prepared((<TransactionRow?>row).fields.state):
                    (<TransactionMetadata>metadata).prepare_complete(self._clock.wall_ms())
                if (<TransactionRow?>row).keeps():
                    self.seal(row)
            owned.is_loading = False
            self._on_loaded(owned)

        owned.partition.when_durable(owned.partition.log_end_offset, read)


cdef class RowBatch:
    """Rows that will be one batch of the log. Each row is a record.

    The log sets the offset and the leader epoch of the batch.
    """

    def __cinit__(self):
        self.size = HEADER_BYTES

    def __dealloc__(self):
        PyMem_Free(self.start)

    cdef int add(self, bytes key, TransactionRow row, int version) except -1:
        """Add a row as a record with these fields: length, attributes, timestamp delta, offset delta, key, value, count
        of headers.
        """
        cdef list topics = topics_of(row)
        cdef Py_ssize_t key_bytes = PyBytes_GET_SIZE(key), value_bytes, record_bytes
        cdef uint8_t *value
        cdef uint8_t *at
        self.make_room(RECORD_OVERHEAD_BYTES + key_bytes + value_room(topics))
        self.last = self.size
        at = self.start + self.size
        value = at + RECORD_OVERHEAD_BYTES + key_bytes
        value_bytes = put_value(value, row, topics, version) - value
        record_bytes = (2 + unsigned_varint_size(zigzag(self.count))
                        + unsigned_varint_size(zigzag(key_bytes)) + key_bytes
                        + unsigned_varint_size(zigzag(value_bytes)) + value_bytes + 1)
        at = put_unsigned_varint(at, zigzag(record_bytes))
        at[0] = at[1] = 0               # attributes, timestamp delta
        at = put_unsigned_varint(at + 2, zigzag(self.count))
        at = put_unsigned_varint(at, zigzag(key_bytes))
        memcpy(at, PyBytes_AS_STRING(key), key_bytes)
        at = put_unsigned_varint(at + key_bytes, zigzag(value_bytes))
        memmove(at, value, value_bytes)
        at[value_bytes] = 0             # headers
        self.size = at + value_bytes + 1 - self.start
        self.count += 1
        return 0

    cdef int make_room(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room = max(self.size + more, 2 * self.room)
        cdef uint8_t *start
        if self.size + more > self.room:
            start = <uint8_t *>PyMem_Realloc(self.start, room)
            if start == NULL:
                raise MemoryError
            self.start, self.room = start, room
        return 0

    cdef int seal(self, int64_t now_ms) except -1:
        """Write the header of the batch. The batch is then complete: the `size` bytes at `start`."""
        cdef BatchFields fields
        memset(&fields, 0, sizeof(fields))
        fields.base_timestamp_ms = fields.max_timestamp_ms = now_ms
        fields.partition_leader_epoch = fields.producer_epoch = fields.base_sequence = -1
        fields.producer_id = NO_PRODUCER_ID
        fields.last_offset_delta = self.count - 1
        fields.records_count = self.count
        return write_header(self.start, self.size, &fields)

    cdef void drop_last(self) noexcept:
        """Remove the row that was added last."""
        self.size = self.last
        self.count -= 1

    cdef void clear(self) noexcept:
        self.size = HEADER_BYTES
        self.count = 0
        if self.room > KEPT_ROOM_BYTES:
            PyMem_Free(self.start)
            self.start, self.room = NULL, 0


cdef object error_for_client(Partition partition, object error):
    """Return the KafkaError for the client if an append or the sync of its bytes has failed."""
    log_failure(partition, error)
    return KafkaError(APPEND_ERRORS.get(error.code, error.code), str(error))


cdef int log_failure(Partition partition, object error) except -1:
    logger.warning('appending to %s-%d failed: %s', TRANSACTION_STATE, partition.partition, error)
    return 0


cdef int64_t memory_of_id(str transactional_id) except -1:
    """Return the bytes of memory of an idle id: its text, the key of its rows with the UTF-8 form of the text, and a
    fixed overhead.
    """
    return ID_OVERHEAD_BYTES + memory_of(transactional_id) + utf8_length(transactional_id)
