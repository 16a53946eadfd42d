"""The transactional.ids in memory, by the partition of `__transaction_state` that each belongs to.

Memory is the replay of the partitions: they are read once, when the broker starts or the topic is created, and from
then on a row is adopted when it is durable.
"""
import logging

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from libc.stdint cimport int64_t, uint8_t

from kbroker.clock cimport Clock, Timer, Timers
from kbroker.topics.partition cimport DurableWaiter
from kbroker.topics.partitioner cimport partition_for
from kbroker.transaction.appends cimport append_batch, await_durable
from kbroker.transaction.row_encoder cimport RowBatch
from kbroker.transaction.state cimport (
    STATUS_COMPLETE_ABORT, STATUS_COMPLETE_COMMIT, TransactionMetadata, TransactionRow,
)

from kbroker.errors import ErrorCode, KafkaError
from kbroker.internal_topics import TRANSACTION_STATE
from kbroker.record.batch import encode_batch
from kbroker.topics.append_errors import APPEND_ERRORS
from kbroker.transaction import state_log
from kbroker.transaction.row_encoder import encode_key

logger = logging.getLogger(__name__)

TOMBSTONE_OVERHEAD_BYTES = 40
"""More than what a record without a value needs beside its key."""
HELD_MS = 5
"""How long a Complete row waits for another row to go into the log with."""
HELD_RETRY_BACKOFF_MS = 100
MOST_TOGETHER_BYTES = 16384
"""A batch of more than one row is not larger, nor than a segment."""

cdef object NONE = ErrorCode.NONE


cdef class StatePartition:
    """One partition of `__transaction_state` that this broker leads.

    `coordinator_epoch` is its leader epoch: data partitions refuse markers of a lower one. `is_lost`: it is not this
    coordinator's any more.
    """

    def __init__(self, partition):
        self.partition = partition
        self.coordinator_epoch = partition.leader_epoch
        self.is_loading = True
        self.transactions = {}
        self.held = RowBatch.__new__(RowBatch)


cdef class Step(DurableWaiter):
    """The pending row of an id on its way to the log. Subclasses say in `appended` what follows."""

    cdef int durable(self, Py_ssize_t part, object error) except -1:
        return self.finish(told(self.owned.partition, error))

    cdef int finish(self, object code) except -1:
        if self.owned.is_lost or self.metadata.pending is not self.row:
            return self.appended(ErrorCode.NOT_COORDINATOR)
        if code is NONE:
            self.metadata.complete()
        else:
            self.metadata.abandon()
        return self.appended(code)

    cdef int appended(self, object code) except -1:
        """The row is durable and adopted: NONE. Or it is abandoned, or lost: the error for the client."""
        raise NotImplementedError

    cdef int markers_durable(self) except -1:
        """Of an ending whose markers were sent: every partition knows."""
        raise NotImplementedError


cdef class Tombstones(DurableWaiter):
    """Ids that are forgotten once their tombstones are durable."""
    cdef StatePartition owned
    cdef list batch                 # TransactionMetadata

    cdef int durable(self, Py_ssize_t part, object error) except -1:
        cdef TransactionMetadata metadata
        told(self.owned.partition, error)
        for metadata in self.batch:
            if error is None:
                del self.owned.transactions[metadata.transactional_id]
            else:
                metadata.abandon()
        return 0


cdef class TransactionStore:
    """Finds transactions, and makes their pending rows durable. `row_version` is the version of the rows' values."""

    def __init__(self, config, Clock clock, Timers timers, topics, on_loaded):
        self._config = config
        self._clock = clock
        self._timers = timers
        self._topics = topics
        self._on_loaded = on_loaded
        self._owned = []
        self._most_together_bytes = min(MOST_TOGETHER_BYTES, config.transaction_state_log_segment_bytes)
        topics.on_topic_created.append(self._on_topic_created)
        topics.on_topic_deleted.append(self._on_topic_deleted)

    def start(self):
        """Load every state partition: ids are found from when all that was read of their partition is durable."""
        topic = self._topics.topic(TRANSACTION_STATE)
        if topic is not None:
            self._on_topic_created(topic)

    def stop(self):
        """Forget everything: what is still on its way to the disk has no effect here any more.

        Complete rows that are held are forgotten, too; `append_held` comes before if the log is still sound.
        """
        cdef StatePartition owned
        for owned in self._owned:
            owned.is_lost = True
            owned.held.clear()
        self._owned = []
        if self._held_timer is not None:
            self._held_timer.cancel()
            self._held_timer = None

    @property
    def is_loading(self):
        return any(owned.is_loading for owned in self._owned)

    def loaded(self):
        return [owned for owned in self._owned if not owned.is_loading]

    cpdef StatePartition owner(self, str transactional_id):
        """The partition of an id. Raises NOT_COORDINATOR without one, COORDINATOR_LOAD_IN_PROGRESS until it is read."""
        cdef StatePartition owned
        if not self._owned:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f'{TRANSACTION_STATE} does not exist')
        owned = self._owned[partition_for(transactional_id, len(self._owned))]
        if owned.is_loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return owned

    def find(self, str transactional_id):
        """The partition of an id and what it knows of it, None if nothing. Raises as `owner`."""
        owned = self.owner(transactional_id)
        return owned, owned.transactions.get(transactional_id)

    cdef int append(self, StatePartition owned, TransactionMetadata metadata, Step step) except -1:
        """Append the pending row of `metadata`. Once it is durable it is adopted, then `step.appended(NONE)`.

        If it cannot be made durable it is abandoned, then `step.appended` with the error for the client.
        NOT_COORDINATOR if the partition was lost meanwhile; then nothing changes here.
        """
        cdef int64_t end_offset
        step.store = self
        step.owned = owned
        step.metadata = metadata
        step.row = metadata.pending
        try:
            end_offset = self.write(owned, metadata)
        except KafkaError as error:
            return step.durable(0, error)
        return await_durable(owned.partition, end_offset, step, 0)

    cdef int settle(self, StatePartition owned, TransactionMetadata metadata) except -1:
        """Adopt the pending Complete row at once, and hold it for the next row of its partition to take into the log.

        It is the one row that is adopted before it is durable, because it says nothing new: it follows from the Prepare
        row and the markers, all of which are. A start that finds it missing sends the markers again, which changes
        nothing, and comes to the same row. What is built on it goes into the same log with it or behind it, so that none
        of that can be there without it. Nobody else needs it in the log, so it need not have a write, or a sync, of its
        own: the next row takes it along, within the same batch, and a timer appends it if none comes.
        """
        assert metadata.pending.status in (STATUS_COMPLETE_COMMIT, STATUS_COMPLETE_ABORT)
        try:
            self.add(owned, metadata)
        except KafkaError as error:         # of those that were held before it
            told(owned.partition, error)
            owned.held.add(metadata.key, metadata.pending, self.row_version)
        metadata.complete()
        return self.append_held_later(HELD_MS)

    cdef int add(self, StatePartition owned, TransactionMetadata metadata) except -1:
        """Put the pending row behind what is held. Where both are too much for one batch, what is held goes first.

        Raises KafkaError if that fails, or for a row that cannot be.
        """
        if metadata.key is None:
            metadata.key = encode_key(metadata.transactional_id)
        owned.held.add(metadata.key, metadata.pending, self.row_version)
        if owned.held.count > 1 and owned.held.size > self._most_together_bytes:
            owned.held.drop_last()
            self.append_rows(owned)
            owned.held.add(metadata.key, metadata.pending, self.row_version)
        return 0

    cdef int64_t write(self, StatePartition owned, TransactionMetadata metadata) except -1:
        """Append the pending row and what is held, and return the offset behind it: durable it is later.

        Raises KafkaError; what is held stays so.
        """
        self.add(owned, metadata)
        try:
            return self.append_rows(owned)
        except KafkaError:
            owned.held.drop_last()
            raise

    cdef int64_t append_rows(self, StatePartition owned) except -1:
        """Append what is held as one batch, and return the offset behind it. Raises KafkaError; it is still held then."""
        cdef RowBatch rows = owned.held
        cdef int64_t end_offset
        rows.seal(self._clock.wall_ms())
        # Whoever hears of it within the append may have the next row to hold.
        owned.held = RowBatch.__new__(RowBatch) if self._spare is None else self._spare
        self._spare = None
        try:
            end_offset = append_batch(owned.partition, rows.start, rows.size, 0)
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
        """Append the Complete rows that no other row took along; what fails is tried again, as no request would do it."""
        cdef StatePartition owned
        if self._held_timer is not None:
            self._held_timer.cancel()
            self._held_timer = None
        for owned in self._owned:
            if owned.held.count > 0:
                try:
                    self.append_rows(owned)
                except KafkaError as error:
                    told(owned.partition, error)
                    self.append_held_later(HELD_RETRY_BACKOFF_MS)

    def remove(self, StatePartition owned not None, expired):
        """Append tombstones for `expired`, all of them idle, and forget each id once its tombstone is durable."""
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
        """What is held is of ids that are forgotten now, or of others: it goes first."""
        cdef Tombstones tombstones = Tombstones.__new__(Tombstones)
        cdef int64_t end_offset, now_ms = self._clock.wall_ms()
        cdef bytearray encoded = encode_batch(
            [(now_ms, *state_log.encode_tombstone(metadata.transactional_id)) for metadata in batch])
        tombstones.owned = owned
        tombstones.batch = batch
        try:
            if owned.held.count > 0:
                self.append_rows(owned)
            end_offset = append_batch(owned.partition, <uint8_t *>PyByteArray_AS_STRING(encoded),
                                      PyByteArray_GET_SIZE(encoded), 0)
        except KafkaError as error:
            tombstones.durable(0, error)
        else:
            await_durable(owned.partition, end_offset, tombstones, 0)

    def _on_topic_created(self, topic):
        """Partitions that are added later change nothing until the next start: ids would belong elsewhere at once."""
        if topic.name != TRANSACTION_STATE or self._owned:
            return
        self._owned = [StatePartition(partition) for partition in topic.partitions]
        for owned in self._owned:
            self._load(owned)

    def _on_topic_deleted(self, topic):
        if topic.name == TRANSACTION_STATE:
            self.stop()

    def _load(self, StatePartition owned):
        """Read the partition once all of it is durable: a decision may not be acted on before it cannot be lost."""
        def read(error):
            if owned.is_lost:
                return
            if error is not None:
                logger.error('%s-%d cannot be loaded: %s', TRANSACTION_STATE, owned.partition.partition, error)
                return
            for transactional_id, row in state_log.read_all(owned.partition).items():
                owned.transactions[transactional_id] = TransactionMetadata(transactional_id, row)
            owned.is_loading = False
            self._on_loaded(owned)

        owned.partition.when_durable(owned.partition.log_end_offset, read)


cdef object told(object partition, object error):
    """What a client is told when an append, or its way to the disk, has failed; NONE where `error` is None."""
    if error is None:
        return NONE
    logger.warning('appending to %s-%d failed: %s', TRANSACTION_STATE, partition.partition, error)
    return APPEND_ERRORS.get(error.code, error.code)
