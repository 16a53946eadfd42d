"""The transactional.ids in memory, by the partition of `__transaction_state` that each belongs to.

Memory is the replay of the partitions: they are read once, when the broker starts or the topic is created, and from
then on a row is adopted when it is durable.
"""
import logging

from libc.stdint cimport int64_t

from kbroker.clock cimport Clock
from kbroker.topics.partition cimport DurableWaiter
from kbroker.topics.partitioner cimport partition_for
from kbroker.transaction.appends cimport append_batch, await_durable
from kbroker.transaction.row_encoder cimport encode_row_batch
from kbroker.transaction.state cimport (
    STATUS_COMPLETE_ABORT, STATUS_COMPLETE_COMMIT, TransactionMetadata, TransactionRow,
)

from kbroker.errors import ErrorCode, KafkaError
from kbroker.record.batch import encode_batch
from kbroker.topics.append_errors import APPEND_ERRORS
from kbroker.transaction import state_log
from kbroker.transaction.row_encoder import encode_key

logger = logging.getLogger(__name__)

TOMBSTONE_OVERHEAD_BYTES = 40
"""More than what a record without a value needs beside its key."""

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

    def __init__(self, config, Clock clock, topics, on_loaded):
        self._config = config
        self._clock = clock
        self._topics = topics
        self._on_loaded = on_loaded
        self._owned = []
        topics.on_topic_created.append(self._on_topic_created)
        topics.on_topic_deleted.append(self._on_topic_deleted)

    def start(self):
        """Load every state partition: ids are found from when all that was read of their partition is durable."""
        topic = self._topics.topic(state_log.TOPIC)
        if topic is not None:
            self._on_topic_created(topic)

    def stop(self):
        """Forget everything: what is still on its way to the disk has no effect here any more."""
        cdef StatePartition owned
        for owned in self._owned:
            owned.is_lost = True
        self._owned = []

    @property
    def is_loading(self):
        return any(owned.is_loading for owned in self._owned)

    def loaded(self):
        return [owned for owned in self._owned if not owned.is_loading]

    cpdef StatePartition owner(self, str transactional_id):
        """The partition of an id. Raises NOT_COORDINATOR without one, COORDINATOR_LOAD_IN_PROGRESS until it is read."""
        cdef StatePartition owned
        if not self._owned:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f'{state_log.TOPIC} does not exist')
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

    cdef bint settle(self, StatePartition owned, TransactionMetadata metadata) except -1:
        """Append the pending Complete row and adopt it at once; False, and the row abandoned, if it cannot be appended.

        It is the one row that is adopted before it is durable, because it says nothing new: it follows from the Prepare
        row and the markers, all of which are. A start that finds it missing sends the markers again, which changes
        nothing, and comes to the same row. What is built on it is appended behind it, to the same log, so that none of
        that can be durable without it.
        """
        assert metadata.pending.status in (STATUS_COMPLETE_COMMIT, STATUS_COMPLETE_ABORT)
        try:
            self.write(owned, metadata)
        except KafkaError as error:
            told(owned.partition, error)
            metadata.abandon()
            return False
        metadata.complete()
        return True

    cdef int64_t write(self, StatePartition owned, TransactionMetadata metadata) except -1:
        """Append the pending row, and return the offset behind it: durable it is later. Raises KafkaError."""
        if metadata.key is None:
            metadata.key = encode_key(metadata.transactional_id)
        return append_batch(owned.partition, encode_row_batch(metadata.key, metadata.pending, self.row_version,
                                                              self._clock.wall_ms()), 0)

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
        cdef Tombstones tombstones = Tombstones.__new__(Tombstones)
        cdef int64_t end_offset, now_ms = self._clock.wall_ms()
        tombstones.owned = owned
        tombstones.batch = batch
        try:
            end_offset = append_batch(owned.partition, encode_batch(
                [(now_ms, *state_log.encode_tombstone(metadata.transactional_id)) for metadata in batch]), 0)
        except KafkaError as error:
            tombstones.durable(0, error)
        else:
            await_durable(owned.partition, end_offset, tombstones, 0)

    def _on_topic_created(self, topic):
        """Partitions that are added later change nothing until the next start: ids would belong elsewhere at once."""
        if topic.name != state_log.TOPIC or self._owned:
            return
        self._owned = [StatePartition(partition) for partition in topic.partitions]
        for owned in self._owned:
            self._load(owned)

    def _on_topic_deleted(self, topic):
        if topic.name == state_log.TOPIC:
            self.stop()

    def _load(self, StatePartition owned):
        """Read the partition once all of it is durable: a decision may not be acted on before it cannot be lost."""
        def read(error):
            if owned.is_lost:
                return
            if error is not None:
                logger.error('%s-%d cannot be loaded: %s', state_log.TOPIC, owned.partition.partition, error)
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
    logger.warning('appending to %s-%d failed: %s', state_log.TOPIC, partition.partition, error)
    return APPEND_ERRORS.get(error.code, error.code)
