"""Telling every partition of a decided transaction how it ended, for as long as it takes.

Markers are what WriteTxnMarkers carries between Kafka's brokers; with one broker they are appended directly, under the
same rules. A marker that is sent twice does no harm (a restart sends all of them again); one that is never sent leaves
the partition's last stable offset stuck, so whatever is not known to be final is tried again.
"""
import enum
import logging

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from kbroker.clock cimport Clock, Timers
from kbroker.record.batch cimport (
    ATTRIBUTES_AT, BASE_TIMESTAMP_AT, CRC_AT, HEADER_BYTES, MAX_TIMESTAMP_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT,
)
from kbroker.topics.partition cimport DurableWaiter
from kbroker.transaction.appends cimport append_batch, await_durable
from kbroker.transaction.state cimport STATUS_PREPARE_COMMIT, TransactionRow
from kbroker.transaction.store cimport Step
from kbroker.wire.bytes cimport write_int16, write_int32, write_int64
from kbroker.wire.crc32c cimport crc32c_update

from kbroker.errors import ErrorCode, KafkaError
from kbroker.record.control import encode_end_txn_marker

logger = logging.getLogger(__name__)

RETRY_BACKOFF_MS = 100

cdef enum:
    # Behind the header of a marker's batch, a record of single bytes but for these: length, attributes, timestamp delta,
    # offset delta, length of the key, key (version, type), length of the value, value (version, coordinator epoch).
    CONTROL_TYPE_AT = HEADER_BYTES + 7
    COORDINATOR_EPOCH_AT = HEADER_BYTES + 12
    MARKER_BYTES = HEADER_BYTES + 17
    ABORT = 0
    COMMIT = 1


class Reaction(enum.Enum):
    """What the failure of one partition's marker leads to.

    GIVE_UP: someone else decided about this producer, and the transaction stays prepared until the next load.
    """

    RETRY = 'retry'
    GIVE_UP = 'give up'
    DONE = 'done'


REACTIONS = {
    ErrorCode.INVALID_PRODUCER_EPOCH: Reaction.GIVE_UP,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: Reaction.GIVE_UP,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Reaction.DONE,
    ErrorCode.UNSUPPORTED_VERSION: Reaction.DONE,
}
"""Every other error is retried. Kafka drops the marker on an error that it does not list, until the next restart."""

cdef bytes A_MARKER = bytes(encode_end_txn_marker(commit=True, producer_id=0, producer_epoch=0, coordinator_epoch=0,
                                                  timestamp_ms=0))
assert len(A_MARKER) == MARKER_BYTES


cdef class MarkerSender:
    """Sends the markers of prepared transactions and keeps track of those under way."""

    def __init__(self, topics, Clock clock, Timers timers):
        self.topics = topics
        self.clock = clock
        self.timers = timers
        self.sendings = set()
        self.found = {}
        topics.on_topic_deleted.append(self._on_topic_deleted)

    cdef int send(self, Step ending, TransactionRow prepared) except -1:
        """Append the marker of `prepared`, which is durable, to each of its partitions; `ending.markers_durable` once all are.

        A partition that does not exist any more needs none.
        """
        cdef Sending sending = Sending.__new__(Sending)
        sending.sender = self
        sending.ending = ending
        sending.prepared = prepared
        sending.partitions = prepared.partition_set.in_order()
        sending.unsettled = len(sending.partitions)
        sending.is_settled = PyByteArray_FromStringAndSize(NULL, sending.unsettled)
        memset(PyByteArray_AS_STRING(sending.is_settled), 0, sending.unsettled)
        self.sendings.add(sending)
        return sending.attempt(None)

    def stop(self):
        """Leave everything as it is; nobody is told any more."""
        cdef Sending sending
        for sending in self.sendings:
            sending.is_over = True
        self.sendings.clear()

    cdef object partition(self, tuple topic_partition):
        """None where there is none. It is looked for once: it stays the same until a topic is deleted."""
        partition = self.found.get(topic_partition)
        if partition is None:
            partition = self.topics.find(*topic_partition)
            if partition is not None:
                self.found[topic_partition] = partition
        return partition

    def _on_topic_deleted(self, topic):
        self.found.clear()
        for sending in list(self.sendings):
            (<Sending>sending).drop_topic(topic.name)


cdef class Sending(DurableWaiter):
    """The markers of one transaction. Its partitions are known by their number in `partitions`."""
    cdef MarkerSender sender
    cdef Step ending
    cdef TransactionRow prepared
    cdef bint is_over               # told, or stopped
    cdef tuple partitions           # of (topic, partition)
    cdef bytearray is_settled       # 0 or 1, by number
    cdef Py_ssize_t unsettled
    cdef list to_retry

    cdef int attempt(self, list numbers) except -1:
        """Send to all, or to those with these `numbers`, that need it still.

        Append to all first and wait afterwards, so that the markers share a flush.
        """
        cdef list waits = None
        cdef Py_ssize_t i, number, count = len(self.partitions) if numbers is None else len(numbers)
        cdef int64_t end_offset
        cdef uint8_t marker[MARKER_BYTES]
        for i in range(count):
            number = i if numbers is None else numbers[i]
            if self.is_settled[number]:
                continue
            partition = self.sender.partition(self.partitions[number])
            if partition is None:
                self.settle(number)
                continue
            try:
                self.write_marker(marker)
                end_offset = append_batch(partition, marker, MARKER_BYTES, self.prepared.client_transaction_version)
            except KafkaError as error:
                self.durable(number, error)
                continue
            if count == 1:
                return await_durable(partition, end_offset, self, number)
            if waits is None:
                waits = []
            waits.append((number, partition, end_offset))
        if waits is not None:
            for number, partition, end_offset in waits:
                await_durable(partition, end_offset, self, number)
        return self.finish_if_settled()

    cdef int drop_topic(self, str topic) except -1:
        """A partition that is gone has no transaction to end."""
        cdef Py_ssize_t number
        for number in range(len(self.partitions)):
            if self.partitions[number][0] == topic:
                self.settle(number)
        return self.finish_if_settled()

    cdef int settle(self, Py_ssize_t number) except -1:
        if not self.is_settled[number]:
            self.is_settled[number] = 1
            self.unsettled -= 1
        return 0

    cdef int write_marker(self, uint8_t *at) except -1:
        """What `encode_end_txn_marker` makes, from one that it has made."""
        cdef int64_t now_ms = self.sender.clock.wall_ms()
        memcpy(at, PyBytes_AS_STRING(A_MARKER), MARKER_BYTES)
        write_int64(at + BASE_TIMESTAMP_AT, now_ms)
        write_int64(at + MAX_TIMESTAMP_AT, now_ms)
        write_int64(at + PRODUCER_ID_AT, self.prepared.producer_id)
        write_int16(at + PRODUCER_EPOCH_AT, self.prepared.producer_epoch)
        write_int16(at + CONTROL_TYPE_AT, COMMIT if self.prepared.status == STATUS_PREPARE_COMMIT else ABORT)
        write_int32(at + COORDINATOR_EPOCH_AT, self.ending.owned.coordinator_epoch)
        write_int32(at + CRC_AT, <int32_t>crc32c_update(0, at + ATTRIBUTES_AT, MARKER_BYTES - ATTRIBUTES_AT))
        return 0

    cdef int durable(self, Py_ssize_t number, object error) except -1:
        if self.is_over or self.is_settled[number]:
            return 0
        if error is not None:
            reaction = REACTIONS.get(error.code, Reaction.RETRY)
        if error is None or reaction is Reaction.DONE:
            self.settle(number)
            return self.finish_if_settled()
        topic, partition = self.partitions[number]
        logger.warning('%s: the %s marker of producer %d epoch %d failed on %s-%d: %s; will %s',
                       self.ending.metadata.transactional_id,
                       self.prepared.state.title, self.prepared.producer_id, self.prepared.producer_epoch, topic,
                       partition, error, reaction.value)
        if reaction is Reaction.RETRY:
            if not self.to_retry:
                self.to_retry = []
                self.sender.timers.after(RETRY_BACKOFF_MS, self.retry)
            self.to_retry.append(number)
        return 0

    def retry(self):
        if not self.is_over:
            numbers, self.to_retry = self.to_retry, None
            self.attempt(numbers)

    cdef int finish_if_settled(self) except -1:
        if self.unsettled == 0 and not self.is_over:
            self.is_over = True
            self.sender.sendings.discard(self)
            return self.ending.markers_durable()
        return 0
