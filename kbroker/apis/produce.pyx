"""Produce (key 0), versions 3-13, advertised from 0.

Per partition: validate the one batch (record/records), check the producer and append (log), then answer: acks=-1 when
the high watermark has passed the batch, or with REQUEST_TIMED_OUT after the request's timeout; acks=1 at once; acks=0
never (a fault closes the connection, which is all that such a client can notice). Versions below 3 cannot carry
batches of magic 2; they are advertised because old librdkafka decides by the lowest version whether the broker is
usable (KAFKA-18659).

Transactional batches go through the coordinator first (KIP-890): from version 12 on it adds the partition to the
transaction, below it verifies that the client has. The verification guard that the partition gave out before is
checked again at the append, so that a marker written in between is noticed.

A request that takes long does not hold the loop. Once a tick has no time left, its batches are appended by long work,
one after the other. A batch that is large, or that expands to many bytes, is validated by a worker first. Meanwhile the
connection waits, so the order of a producer and that of a partition stay what they are. The frame is kept until the
last batch is appended.

Of several batches for one partition, the last counts, and the partition is answered once, as in Kafka.

The request is read, and the answer written, by hand: a message of objects would cost more than the append. The tables
of kbroker/protocol say what the bytes are, and a test holds the two against each other. Of an answer's tagged fields
(KIP-951: who leads instead) none is ever due, for there is no other broker.
"""
cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from kbroker.apis.answer_bytes cimport put_count, put_no_tags
from kbroker.apis.request cimport Api, Handler, Request
from kbroker.apis.request_bytes cimport LONGEST_STRING_BYTES, skip_tags, take_count, take_length, take_string
from kbroker.clock cimport Clock
from kbroker.completion cimport Completion
from kbroker.log.append cimport (
    ORIGIN_CLIENT, WRITE_LATER, WRITE_LATER_BORROWED, WRITE_NOW, Append, WriteMode, begin_append,
)
from kbroker.long_work cimport LongWork
from kbroker.record.batch cimport (
    COMPRESSION_MASK, HEADER_READ, LOG_OVERHEAD_BYTES, MAGIC, MAGIC_AT, TRANSACTIONAL_BIT, BatchFields,
    batch_size_bytes, parse_header, refuse_header,
)
from kbroker.record.records cimport ProduceRules, Validation, prepare, room_on_loop
from kbroker.topics.partition cimport Partition, Tick
from kbroker.topics.topic cimport Topic
from kbroker.transaction.coordinator cimport TransactionCoordinator
from kbroker.wire.bytes cimport (
    Cursor, put_unsigned_varint, read_int16, read_int32, take, unsigned_varint_size, write_int16, write_int32,
    write_int64,
)

import logging
import os
from functools import partial

from kbroker.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ProduceResponse
from kbroker.protocol.schema import first_version, flexible_from
from kbroker.record.batch import CorruptBatchError
from kbroker.record.compression import ExpansionError
from kbroker.record.records import MAX_DECOMPRESSED_BYTES
from kbroker.transaction.verification import PRODUCE_VERSION_THAT_ADDS

ADMIN_CLIENT_ID = '__admin_client'
WITHOUT_LOG_START_OFFSET = frozenset({
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.KAFKA_STORAGE_ERROR})
"""The codes of refused appends that Kafka answers without the log start offset."""

cdef enum:
    ACKS_ALL = -1
    VERIFICATION = -1               # the part of a ProduceUnderWay that is not the number of a partition
    ZSTD_VERSION = 7
    TOPIC_ID_BYTES = 16
    FEWEST_PARTS = 8
    # Requests that wait for the disk are looked at every EXPIRY_INTERVAL_MS of topics/flusher. A request counts as
    # overdue that much earlier, so that its answer arrives within its timeout.
    EARLY_MS = 100
    # Bounds of one request. A batch takes at least 70 bytes: with the default of socket.request.max.bytes an honest
    # client meets none of them before its requests are as large as that.
    MOST_PARTS = 50_000             # topics and partitions, each
    MOST_NAME_BYTES = 8388608       # of all topics
    PARTS_INSPECTED_AT_ONCE = 256
    PARTS_INSPECTED_IN_A_SLICE = 16

MAX_PARTITIONS = MOST_PARTS
MAX_REQUEST_DECOMPRESSED_BYTES = 10 * MAX_DECOMPRESSED_BYTES
"""The most bytes to which the batches of one request may expand together; the batch that has more is refused."""

logger = logging.getLogger('kbroker.apis')

cdef Py_ssize_t REQUEST_ROOM_BYTES = MAX_REQUEST_DECOMPRESSED_BYTES
cdef uint64_t HASH_FACTOR = int.from_bytes(os.urandom(8), 'big') | 1
cdef int FLEXIBLE_VERSION = flexible_from('ProduceRequest')
cdef int LOG_START_OFFSET_VERSION = first_version('ProduceResponse', 'responses.partition_responses.log_start_offset')
cdef int ERROR_MESSAGE_VERSION = first_version('ProduceResponse', 'responses.partition_responses.error_message')
cdef int TOPIC_ID_VERSION = first_version('ProduceRequest', 'topic_data.topic_id')
cdef int IMPLICIT_ADD_VERSION = PRODUCE_VERSION_THAT_ADDS

TopicProduceResponse = ProduceResponse.TopicProduceResponse
PartitionProduceResponse = ProduceResponse.PartitionProduceResponse


cdef struct TopicPart:
    PyObject *topic             # Topic, owned; NULL: there is none
    PyObject *name              # bytes, owned: the encoded name, or the id
    Py_ssize_t end              # of its partitions among all


cdef struct Part:
    int32_t index
    bint is_repeated            # the request has a later batch for this partition
    bint is_compressed
    int16_t error_code
    Py_ssize_t size_bytes       # of records; -1: null
    uint8_t *records            # in the frame, or in what was kept of it
    PyObject *topic             # Topic, owned by its TopicPart
    PyObject *partition         # Partition, owned; NULL: refused already
    PyObject *guard             # of the verification, owned; NULL: none
    PyObject *told              # bytes, owned: record errors and message of a refusal as they are sent; NULL: none
    int64_t base_offset
    int64_t log_append_time_ms
    int64_t log_start_offset


@cython.final
cdef class Postponed:
    """The batches of a request that outlives the turn of its connection, and what others found out about them."""
    cdef object frame               # what `Connection.keep_frame` returned
    cdef bytearray copies           # of the batches, if the frame cannot be kept
    cdef Validation validation      # of the next part, by a worker
    cdef object validation_error
    cdef object refusal             # KafkaError for all batches that the coordinator was asked about
    cdef dict refusals              # KafkaError for some of them, by (topic, partition)
    cdef object refusal_of_all      # KafkaError


@cython.final
cdef class ProduceUnderWay(Completion):
    """One request: its partitions, how many results are still awaited, and what the answer says so far."""
    cdef Request request
    cdef int version
    cdef str transactional_id
    cdef int16_t acks
    cdef int32_t timeout_ms
    cdef int64_t overdue_ms         # on the monotonic clock
    cdef bint failed
    cdef Py_ssize_t unanswered
    cdef Py_ssize_t next_part       # the first that is not appended yet
    cdef int64_t now_ms
    cdef WriteMode write_mode       # of appends whose answer waits for the disk
    cdef Py_ssize_t room_bytes      # the most bytes to which the batches left may expand
    cdef Py_ssize_t names_bytes
    cdef bytearray replacement      # for the next part: what to append instead of its bytes
    cdef Postponed postponed        # None during the turn of the connection, where most requests end
    cdef Py_ssize_t topics_count
    cdef Py_ssize_t parts_count
    cdef Py_ssize_t parts_room
    cdef TopicPart *topics
    cdef Part *parts
    cdef TopicPart only_topic       # nearly every request has one topic and one partition
    cdef Part only_part

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.topics_count):
            Py_XDECREF(self.topics[i].topic)
            Py_XDECREF(self.topics[i].name)
        for i in range(self.parts_count):
            Py_XDECREF(self.parts[i].partition)
            Py_XDECREF(self.parts[i].guard)
            Py_XDECREF(self.parts[i].told)
        if self.topics != &self.only_topic:
            PyMem_Free(self.topics)
        if self.parts != &self.only_part:
            PyMem_Free(self.parts)

    # ---- read

    cdef int read(self, Cursor *cursor, dict topics) except -1:
        """The body of the request. `topics`: Topic by encoded name or, from version 13 on, by id."""
        cdef bint flexible = self.version >= FLEXIBLE_VERSION
        cdef Py_ssize_t i, length, fewest_bytes
        cdef const uint8_t *text = NULL
        length = take_string(cursor, flexible, True, &text)
        if length != -1:
            self.transactional_id = PyUnicode_DecodeUTF8(<const char *>text, length, NULL)
        self.acks = read_int16(take(cursor, 2))
        self.timeout_ms = read_int32(take(cursor, 4))
        fewest_bytes = TOPIC_ID_BYTES + 2 if self.version >= TOPIC_ID_VERSION else 3 if flexible else 6
        self.make_topics(take_count(cursor, flexible, fewest_bytes))
        for i in range(self.topics_count):
            self.read_topic(cursor, topics, &self.topics[i])
        if flexible:
            skip_tags(cursor)
        return 0

    cdef int make_topics(self, Py_ssize_t count) except -1:
        if count > MOST_PARTS:
            raise ProtocolError(f'found {count} topics, expected {MOST_PARTS} at most')
        self.parts = &self.only_part
        self.parts_room = 1
        self.topics = &self.only_topic
        if count > 1:
            self.topics = <TopicPart *>PyMem_Malloc(count * sizeof(TopicPart))
            if self.topics == NULL:
                raise MemoryError
        memset(self.topics, 0, count * sizeof(TopicPart))
        self.topics_count = count
        return 0

    cdef int read_topic(self, Cursor *cursor, dict topics, TopicPart *topic) except -1:
        cdef bint flexible = self.version >= FLEXIBLE_VERSION
        cdef Py_ssize_t count, length = TOPIC_ID_BYTES
        cdef const uint8_t *text = NULL
        cdef bytes name
        if self.version >= TOPIC_ID_VERSION:
            text = take(cursor, TOPIC_ID_BYTES)
        else:
            length = take_string(cursor, flexible, False, &text)
        self.names_bytes += length
        if self.names_bytes > MOST_NAME_BYTES:
            raise ProtocolError(f'found more than {MOST_NAME_BYTES} bytes of topic names')
        name = PyBytes_FromStringAndSize(<const char *>text, length)
        Py_INCREF(name)
        topic.name = <PyObject *>name
        found = topics.get(name)
        if found is not None:
            Py_INCREF(found)
            topic.topic = <PyObject *>found
        count = take_count(cursor, flexible, 6 if flexible else 8)
        if count > MOST_PARTS - self.parts_count:
            raise ProtocolError(f'found {self.parts_count + count} partitions, expected {MOST_PARTS} at most')
        if self.parts_count + count > self.parts_room:
            self.grow(self.parts_count + count)
        for count in range(count):
            self.read_part(cursor, topic.topic)
        topic.end = self.parts_count
        if flexible:
            skip_tags(cursor)
        return 0

    cdef int read_part(self, Cursor *cursor, PyObject *topic) except -1:
        cdef bint flexible = self.version >= FLEXIBLE_VERSION
        cdef Part *part
        part = &self.parts[self.parts_count]
        memset(part, 0, sizeof(Part))
        part.topic = topic
        part.base_offset = part.log_append_time_ms = part.log_start_offset = -1
        part.index = read_int32(take(cursor, 4))
        part.size_bytes = take_length(cursor, flexible, False)
        if part.size_bytes != -1:
            part.records = <uint8_t *>take(cursor, part.size_bytes)
        if flexible:
            skip_tags(cursor)
        self.parts_count += 1
        return 0

    cdef int grow(self, Py_ssize_t needed) except -1:
        """Make room for at least `needed` partitions, which the frame has brought."""
        cdef Py_ssize_t room = max(max(needed, <Py_ssize_t>FEWEST_PARTS), 2 * self.parts_room)
        cdef Part *parts = NULL if self.parts == &self.only_part else self.parts
        cdef Part *more = <Part *>PyMem_Realloc(parts, room * sizeof(Part))
        if more == NULL:
            raise MemoryError
        if parts == NULL:
            more[0] = self.only_part
        self.parts = more
        self.parts_room = room
        return 0

    # ---- partitions that are named several times

    cdef int drop_repeated(self) except -1:
        """Leave only the last batch of each partition. Kafka collects them in a map."""
        cdef int32_t *topic_numbers = <int32_t *>PyMem_Malloc(self.parts_count * sizeof(int32_t))
        cdef Py_ssize_t room = 16
        cdef int32_t *slots
        while room < 2 * self.parts_count:
            room *= 2
        slots = <int32_t *>PyMem_Calloc(room, sizeof(int32_t))
        try:
            if topic_numbers == NULL or slots == NULL:
                raise MemoryError
            self.number_topics(topic_numbers)
            if self.mark_repeated(topic_numbers, slots, room - 1):
                self.remove_repeated()
        finally:
            PyMem_Free(slots)
            PyMem_Free(topic_numbers)
        return 0

    cdef int number_topics(self, int32_t *numbers) except -1:
        """Give each part a number for its topic, which a request may name several times, too."""
        cdef dict known = {}
        cdef Py_ssize_t i, part = 0
        cdef int32_t number = 0
        for i in range(self.topics_count):
            if self.topics_count > 1:
                number = known.setdefault(<bytes>self.topics[i].name, i)
            while part < self.topics[i].end:
                numbers[part] = number
                part += 1
        return 0

    cdef bint mark_repeated(self, const int32_t *topic_numbers, int32_t *slots, uint64_t mask) noexcept:
        """Mark the parts that have a later one for their partition; return whether there are any.

        `slots` is a hash table of part numbers plus one. A client cannot know which partitions collide.
        """
        cdef Py_ssize_t number, other
        cdef uint64_t slot
        cdef bint found = False
        for number in range(self.parts_count - 1, -1, -1):
            slot = (((<uint64_t>topic_numbers[number] << 32 | <uint64_t>(self.parts[number].index & 0xffffffff))
                     * HASH_FACTOR) >> 32) & mask
            while slots[slot]:
                other = slots[slot] - 1
                if (self.parts[other].index == self.parts[number].index
                        and topic_numbers[other] == topic_numbers[number]):
                    self.parts[number].is_repeated = found = True
                    break
                slot = (slot + 1) & mask
            else:
                slots[slot] = <int32_t>number + 1
        return found

    cdef int remove_repeated(self) noexcept:
        """Move the parts together, and the topics that have any left."""
        cdef Py_ssize_t i, number = 0, parts_count = 0, topics_count = 0, before
        for i in range(self.topics_count):
            before = parts_count
            while number < self.topics[i].end:
                if not self.parts[number].is_repeated:
                    self.parts[parts_count] = self.parts[number]
                    parts_count += 1
                number += 1
            if parts_count == before:
                Py_XDECREF(self.topics[i].topic)
                Py_XDECREF(self.topics[i].name)
                continue
            self.topics[topics_count] = self.topics[i]
            self.topics[topics_count].end = parts_count
            topics_count += 1
        self.topics_count = topics_count
        self.parts_count = parts_count
        return 0

    # ---- work

    cdef int start(self) except -1:
        """Resolve and inspect every batch; append at once unless the transaction coordinator must be asked."""
        cdef Py_ssize_t number
        cdef bint must_ask = False
        if self.parts_count > 1:
            self.drop_repeated()
        if self.parts_count > PARTS_INSPECTED_AT_ONCE:
            self.keep_frame()
            (<LongWork?>self.request.node.long_work).start(self.inspect_in_slices(), self.inspected)
            return 0
        for number in range(self.parts_count):
            must_ask |= self.inspect_or_refuse(number)
        if must_ask:
            return self.ask_coordinator()
        return self.append_all()

    def inspect_in_slices(self):
        """Inspect every batch. A generator for LongWork; its value tells whether the coordinator must be asked."""
        cdef Py_ssize_t number
        cdef bint must_ask = False
        for number in range(self.parts_count):
            must_ask |= self.inspect_or_refuse(number)
            if number % PARTS_INSPECTED_IN_A_SLICE == 0:
                yield
        return must_ask

    def inspected(self, error, must_ask):
        if error is not None:
            self.give_up(error)
        elif must_ask:
            self.ask_coordinator()
        else:
            self.append_all()

    cdef bint inspect_or_refuse(self, Py_ssize_t number) except -1:
        try:
            return self.inspect(number)
        except KafkaError as error:
            self.refuse(&self.parts[number], error)
        return False

    cdef bint inspect(self, Py_ssize_t number) except -1:
        """Find the partition and whether the coordinator must be asked about this batch first."""
        cdef Part *part = &self.parts[number]
        cdef BatchFields batch
        cdef Partition partition
        cdef Topic topic
        if part.topic == NULL:
            self.refuse_unknown()
        topic = <Topic>part.topic
        if not 0 <= part.index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 'the partition does not exist')
        read_only_batch(part, &batch)
        if not ACKS_ALL <= self.acks <= 1:
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f'acks is {self.acks}, expected -1, 0 or 1')
        if topic.is_internal and self.request.client_id != ADMIN_CLIENT_ID:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION,
                             f'clients may not write to the internal topic {topic.name}')
        partition = topic.partitions[part.index]
        part.is_compressed = batch.attributes & COMPRESSION_MASK != 0
        if batch.attributes & TRANSACTIONAL_BIT:
            self.begin_verification(part, partition, &batch)
        Py_INCREF(partition)
        part.partition = <PyObject *>partition
        return part.guard != NULL

    cdef int refuse_unknown(self) except -1:
        # The name is left out: it may be long, and a request may have many partitions.
        if self.version >= TOPIC_ID_VERSION:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, 'no topic has this id')
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 'the topic does not exist')

    cdef int begin_verification(self, Part *part, Partition partition, const BatchFields *batch) except -1:
        cdef bint supports_epoch_bump = self.version >= IMPLICIT_ADD_VERSION
        if self.transactional_id is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                             'a transactional batch in a request without a transactional id')
        if not supports_epoch_bump and not self.request.node.config.transaction_partition_verification_enable:
            return 0
        guard = partition.start_verification(
            batch.producer_id, batch.producer_epoch, batch.base_sequence, supports_epoch_bump,
            (<Clock?>self.request.node.clock).wall_ms())
        if guard is not None:
            Py_INCREF(guard)
            part.guard = <PyObject *>guard
        return 0

    cdef int ask_coordinator(self) except -1:
        """Let the coordinator add the partitions to the transaction, or verify them, then append."""
        cdef Py_ssize_t number
        cdef Part *part
        cdef BatchFields batch
        cdef int64_t producer_id = -1
        cdef int16_t producer_epoch = -1
        cdef list partitions = []
        for number in range(self.parts_count):
            part = &self.parts[number]
            if part.partition == NULL:
                continue
            if parse_header(part.records, part.size_bytes, &batch) != HEADER_READ:
                continue
            if not batch.attributes & TRANSACTIONAL_BIT:
                continue
            if producer_id == -1:
                producer_id, producer_epoch = batch.producer_id, batch.producer_epoch
            elif producer_id != batch.producer_id or producer_epoch != batch.producer_epoch:
                self.keep_frame()
                self.postponed.refusal_of_all = KafkaError(
                    ErrorCode.INVALID_PRODUCER_ID_MAPPING, 'one producer expected in a transactional request, found '
                    f'{[(producer_id, producer_epoch), (batch.producer_id, batch.producer_epoch)]}')
                return self.append_all()
            if part.guard != NULL:
                partitions.append(<Partition>part.partition)
        self.keep_frame()
        (<TransactionCoordinator?>self.request.node.transactions).add_or_verify_partitions(
            self.transactional_id, producer_id, producer_epoch, partitions, self.version, self, VERIFICATION)
        return 0

    cdef int keep_frame(self) except -1:
        """Make the batches outlive the turn of the connection, to which the frame belongs."""
        if self.postponed is None:
            self.postponed = Postponed.__new__(Postponed)
            self.write_mode = WRITE_LATER
            frame = self.postponed.frame = self.request.connection.keep_frame()
            if frame is None or frame.buffer is None:
                self.copy_batches()
        return 0

    cdef int copy_batches(self) except -1:
        """Copy the batches that are not appended yet. The frame lies in the buffer that all connections share."""
        cdef Py_ssize_t number, size_bytes = 0
        cdef Part *part
        cdef uint8_t *at
        for number in range(self.next_part, self.parts_count):
            size_bytes += max(<Py_ssize_t>0, self.parts[number].size_bytes)
        self.postponed.copies = PyByteArray_FromStringAndSize(NULL, size_bytes)
        at = <uint8_t *>PyByteArray_AS_STRING(self.postponed.copies)
        for number in range(self.next_part, self.parts_count):
            part = &self.parts[number]
            if part.size_bytes > 0:
                memcpy(at, part.records, part.size_bytes)
                part.records = at
                at += part.size_bytes
        return 0

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        """Take the coordinator's answer, or the end of the wait for the partition with the number `part`."""
        if part == VERIFICATION:
            self.postponed.refusal, self.postponed.refusals = error, result
            return self.append_all()
        self.unanswered -= 1
        if error is not None:
            self.refuse(&self.parts[part], error)
        if self.unanswered == 0:
            self.request.send(self.encoded())
        return 0

    cdef bint is_overdue(self, int64_t monotonic_ms) noexcept:
        return self.overdue_ms and monotonic_ms >= self.overdue_ms

    cdef int append_all(self) except -1:
        """Append every batch: now as far as the tick has time, the rest as long work."""
        self.unanswered = 1
        self.now_ms = (<Clock?>self.request.node.clock).wall_ms()
        while self.next_part < self.parts_count:
            if self.is_costly() and not (<Tick?>self.request.node.tick).has_time():
                return self.append_later()
            if not self.append_next():
                return 0
        return self.finish()

    cdef bint is_costly(self) noexcept:
        """Return whether the next batch may cost much more than a small append: it is not the request's only one, or
        it is compressed, or its log has no files yet."""
        cdef Part *part = &self.parts[0]
        return self.parts_count > 1 or part.is_compressed or (
            part.partition != NULL and not (<Partition>part.partition).is_made())

    cdef int append_later(self) except -1:
        self.keep_frame()
        (<LongWork?>self.request.node.long_work).start(self.append_in_slices(), self.appended)
        return 0

    def append_in_slices(self):
        """Append the batches that are left. A generator for LongWork; its value is False if a worker has to validate
        one of them first."""
        yield
        while self.next_part < self.parts_count:
            self.now_ms = (<Clock?>self.request.node.clock).wall_ms()
            if not self.append_next():
                return False
            yield
        return True

    def appended(self, error, bint is_end):
        if error is not None:
            self.give_up(error)
        elif is_end:
            self.finish()

    cdef int give_up(self, error) except -1:
        """Close the connection: the request has met a bug, and some of its batches may be in the log."""
        logger.error('PRODUCE v%d from %s failed', self.version, self.request.client_id, exc_info=error)
        self.request.connection.close('PRODUCE failed')
        return 0

    cdef int finish(self) except -1:
        """Send the reply, unless it waits for the disk or the client wants none: all batches are appended."""
        self.postponed = None
        self.unanswered -= 1
        if self.acks == 0:
            if self.failed:
                self.request.connection.close('a produce with acks=0 failed, and closing is the only way to say so')
            self.request.send(None)
        elif self.unanswered == 0:
            self.request.send(self.encoded())
        else:
            self.overdue_ms = (<Clock?>self.request.node.clock).monotonic_ms() + self.timeout_ms - min(
                self.timeout_ms // 4, EARLY_MS)
            # Everything this request does is done, and in order. It only waits for the disk, so the next one may pass.
            self.request.let_next_pass()
        return 0

    cdef bint append_next(self) except -1:
        """Append the next batch, or refuse it. Return False if a worker has to validate it first."""
        cdef Py_ssize_t number = self.next_part
        cdef Part *part = &self.parts[number]
        if part.partition != NULL:
            error = None if self.postponed is None else self.refusal_for(part)
            if error is not None:
                self.refuse(part, error)
            elif not self.append(number):
                return False
        self.next_part = number + 1
        return True

    cdef object refusal_for(self, const Part *part):
        """Return the error with which the coordinator refused the batch, or None."""
        cdef Postponed postponed = self.postponed
        if postponed.refusal_of_all is not None or part.guard == NULL:
            return postponed.refusal_of_all
        if postponed.refusals:
            return postponed.refusals.get(((<Topic>part.topic).name, part.index))
        return postponed.refusal

    cdef bint append(self, Py_ssize_t number) except -1:
        cdef Part *part = &self.parts[number]
        cdef Topic topic = <Topic>part.topic
        cdef Partition partition = <Partition>part.partition
        cdef Append append
        cdef bytearray replacement
        cdef bint awaits = self.acks == ACKS_ALL or (self.acks == 1 and partition.answers_from_page_cache())
        begin_append(&append, part.records, part.size_bytes, ORIGIN_CLIENT, self.write_mode if awaits else WRITE_NOW)
        append.guard = part.guard
        parse_header(append.data, append.size, &append.batch)
        if topic.produce_rules is None:
            topic.produce_rules = ProduceRules(topic.config)
        try:
            if self.postponed is not None and partition.is_deleted:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 'the partition was deleted')
            if not self.validate(&append, <ProduceRules>topic.produce_rules):
                return False
            replacement = self.replacement
            if replacement is not None:
                append.data = <uint8_t *>PyByteArray_AS_STRING(replacement)
                append.size = PyByteArray_GET_SIZE(replacement)
                append.write_mode = WRITE_LATER if awaits else WRITE_NOW
            partition.append(&append)
        except KafkaError as error:
            self.refuse(part, error)
            if error.code not in WITHOUT_LOG_START_OFFSET:
                part.log_start_offset = partition.start_offset()
            return True
        part.base_offset = append.base_offset
        part.log_append_time_ms = append.append_time_ms
        part.log_start_offset = append.log_start_offset
        if awaits and (partition.high_watermark <= append.last_offset or partition.is_deleted):
            self.unanswered += 1
            partition.await_durable(append.last_offset + 1, self, number)
        return True

    cdef bint validate(self, Append *append, ProduceRules rules) except -1:
        """Validate the next batch, and set `replacement`. Return False if a worker does it, which begins now."""
        cdef Py_ssize_t room, left
        if self.postponed is not None and self.postponed.validation is not None:
            return self.take_validation(append)
        room = left = min(self.room_bytes, room_on_loop(&append.batch, rules))
        if room >= 0:
            try:
                self.replacement = prepare(append.data, append.size, False, &append.batch, rules, self.now_ms,
                                           self.version >= ZSTD_VERSION, &left)
                self.room_bytes -= room - left
                return True
            except ExpansionError:
                pass
        self.ask_worker(rules)
        return False

    cdef int ask_worker(self, ProduceRules rules) except -1:
        """Let a worker validate the next batch; then the batches are appended from it on."""
        cdef Validation validation = Validation.__new__(Validation)
        cdef Part *part = &self.parts[self.next_part]
        self.keep_frame()
        validation.data = part.records
        validation.size_bytes = part.size_bytes
        parse_header(part.records, part.size_bytes, &validation.batch)
        validation.rules = rules
        validation.now_ms = self.now_ms
        validation.allow_zstd = self.version >= ZSTD_VERSION
        validation.room_bytes = min(self.room_bytes, rules.max_decompressed_bytes)
        self.room_bytes -= validation.room_bytes
        self.request.node.validate(validation, partial(self.validated, validation))
        return 0

    def validated(self, Validation validation, error):
        """Take what a worker found: None, or the exception that the validation raised."""
        self.postponed.validation, self.postponed.validation_error = validation, error
        self.room_bytes += validation.room_bytes
        (<LongWork?>self.request.node.long_work).start(self.append_in_slices(), self.appended)

    cdef bint take_validation(self, Append *append) except -1:
        cdef Validation validation = self.postponed.validation
        error = self.postponed.validation_error
        self.postponed.validation = self.postponed.validation_error = None
        if error is not None:
            raise error
        append.batch = validation.batch
        self.replacement = validation.replacement
        return True

    cdef int refuse(self, Part *part, error) except -1:
        cdef bytes told
        self.failed = True
        part.error_code = error.code
        part.base_offset = -1
        Py_XDECREF(part.partition)
        part.partition = NULL
        if self.version >= ERROR_MESSAGE_VERSION:
            told = told_of(error, self.version >= FLEXIBLE_VERSION)
            Py_INCREF(told)
            Py_XDECREF(part.told)
            part.told = <PyObject *>told
        return 0

    # ---- answer

    cdef Py_ssize_t encoded_bytes(self) except -1:
        cdef bint flexible = self.version >= FLEXIBLE_VERSION
        cdef Py_ssize_t i, of_part, begin = 0
        cdef Py_ssize_t size = self.request.header_bytes() + 4 + flexible + count_bytes(self.topics_count, flexible)
        of_part = 4 + 2 + 8 + 8 + flexible
        if self.version >= LOG_START_OFFSET_VERSION:
            of_part += 8
        for i in range(self.topics_count):
            size += PyBytes_GET_SIZE(<bytes>self.topics[i].name) + flexible
            if flexible and self.version < TOPIC_ID_VERSION:
                size += unsigned_varint_size(PyBytes_GET_SIZE(<bytes>self.topics[i].name) + 1)
            elif not flexible:
                size += 2
            size += count_bytes(self.topics[i].end - begin, flexible)
            begin = self.topics[i].end
        size += of_part * self.parts_count
        if self.version >= ERROR_MESSAGE_VERSION:
            for i in range(self.parts_count):
                if self.parts[i].told != NULL:
                    size += PyBytes_GET_SIZE(<bytes>self.parts[i].told)
                else:
                    size += 2 if flexible else 6
        return size

    cdef bytes encoded(self):
        """Return the reply with its header."""
        cdef bint flexible = self.version >= FLEXIBLE_VERSION
        cdef Py_ssize_t size = self.encoded_bytes(), i, number = 0
        cdef bytes answer = PyBytes_FromStringAndSize(NULL, size)
        cdef bytes name
        cdef uint8_t *at = self.request.put_header(<uint8_t *>PyBytes_AS_STRING(answer))
        at = put_count(at, self.topics_count, flexible)
        for i in range(self.topics_count):
            name = <bytes>self.topics[i].name
            if not flexible:
                write_int16(at, <int16_t>PyBytes_GET_SIZE(name))
                at += 2
            elif self.version < TOPIC_ID_VERSION:
                at = put_unsigned_varint(at, PyBytes_GET_SIZE(name) + 1)
            memcpy(at, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
            at = put_count(at + PyBytes_GET_SIZE(name), self.topics[i].end - number, flexible)
            while number < self.topics[i].end:
                at = self.put_part(at, &self.parts[number])
                number += 1
            if flexible:
                at = put_no_tags(at, True)
        write_int32(at, 0)          # throttle_time_ms
        at += 4
        if flexible:
            at = put_no_tags(at, True)
        if at != <uint8_t *>PyBytes_AS_STRING(answer) + size:
            raise AssertionError(f'an answer of {size} bytes was announced')
        return answer

    cdef uint8_t *put_part(self, uint8_t *at, const Part *part) noexcept:
        write_int32(at, part.index)
        write_int16(at + 4, part.error_code)
        write_int64(at + 6, part.base_offset)
        write_int64(at + 14, part.log_append_time_ms)
        at += 22
        if self.version >= LOG_START_OFFSET_VERSION:
            write_int64(at, part.log_start_offset)
            at += 8
        if self.version >= ERROR_MESSAGE_VERSION:
            if part.told != NULL:
                memcpy(at, PyBytes_AS_STRING(<bytes>part.told), PyBytes_GET_SIZE(<bytes>part.told))
                at += PyBytes_GET_SIZE(<bytes>part.told)
            elif self.version >= FLEXIBLE_VERSION:
                at[0] = 1           # an empty array
                at[1] = 0           # null
                at += 2
            else:
                write_int32(at, 0)
                write_int16(at + 4, -1)
                at += 6
        if self.version >= FLEXIBLE_VERSION:
            at = put_no_tags(at, True)
        return at


# ---- the bytes of a request


cdef int read_only_batch(const Part *part, BatchFields *batch) except -1:
    """The header of the one batch. KafkaError INVALID_RECORD if none is there whole or it is of an old format."""
    if part.size_bytes <= 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, 'one batch expected, found no bytes')
    fault = parse_header(part.records, part.size_bytes, batch)
    if fault != HEADER_READ:
        try:
            refuse_header(fault, batch, part.size_bytes)
        except CorruptBatchError as error:
            is_cut = (part.size_bytes <= MAGIC_AT
                      or read_int32(part.records + 8) > part.size_bytes - LOG_OVERHEAD_BYTES)
            if is_cut or part.records[MAGIC_AT] < MAGIC:
                raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
            raise
    if batch_size_bytes(batch) != part.size_bytes:
        raise KafkaError(ErrorCode.INVALID_RECORD, f'exactly one batch expected, of {batch_size_bytes(batch)} bytes, '
                                                   f'found {part.size_bytes} bytes')
    return 0


# ---- the bytes of an answer


cdef inline Py_ssize_t count_bytes(Py_ssize_t count, bint flexible) noexcept:
    return unsigned_varint_size(count + 1) if flexible else 4


cdef bytes told_of(error, bint flexible):
    """Record errors and error message of a refusal, as an answer carries them."""
    record_errors = getattr(error, 'record_errors', ())
    pieces = [length_of(len(record_errors), flexible, 4)]
    for index, message in record_errors:
        pieces += [index.to_bytes(4, 'big'), text_of(message, flexible)]
        if flexible:
            pieces.append(b'\0')
    pieces.append(text_of(str(error), flexible))
    return b''.join(pieces)


cdef bytes text_of(str text, bint flexible):
    """A string, cut where it is longer than a string may be: it may quote a name that long."""
    encoded = text.encode('utf-8', 'replace')
    if len(encoded) > LONGEST_STRING_BYTES:
        encoded = encoded[:LONGEST_STRING_BYTES].decode('utf-8', 'ignore').encode()
    return length_of(len(encoded), flexible, 2) + encoded


cdef bytes length_of(Py_ssize_t length, bint flexible, int plain_bytes):
    cdef uint8_t varint[10]
    if not flexible:
        return length.to_bytes(plain_bytes, 'big')
    return (<char *>varint)[:put_unsigned_varint(varint, length + 1) - varint]


# ---- the doors


cdef ProduceUnderWay read_request(Request request, Cursor *cursor, dict topics):
    """Read the body. `topics`: Topic by encoded name or, from version 13 on, by id. Raises ProtocolError."""
    cdef ProduceUnderWay under_way = ProduceUnderWay.__new__(ProduceUnderWay)
    cdef const uint8_t *start = cursor.at
    under_way.request = request
    under_way.version = request.version
    try:
        under_way.read(cursor, topics)
    except ProtocolError as error:
        raise ProtocolError(
            f'ProduceRequest version {request.version}, near byte {cursor.at - start}: {error}') from None
    return under_way


cdef class ProduceHandler(Handler):

    def __cinit__(self):
        self.may_follow_unwritten = True

    cdef int serve(self, Request request, Cursor *body) except -1:
        registry = request.node.topics
        cdef ProduceUnderWay under_way = read_request(
            request, body, registry.by_id if request.version >= TOPIC_ID_VERSION else registry.by_encoded_name)
        under_way.write_mode = WRITE_LATER_BORROWED
        under_way.room_bytes = REQUEST_ROOM_BYTES
        return under_way.start()


def error_response(body, code, message, version):
    """Return the response to a request that failed as a whole. None if it wants no answer: the connection is closed."""
    if body.acks == 0:
        return None
    return ProduceResponse(responses=[
        TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[
            PartitionProduceResponse(index=partition.index, error_code=int(code), base_offset=-1, error_message=message)
            for partition in topic.partition_data])
        for topic in body.topic_data])


API = Api(ApiKey.PRODUCE, 3, 13, ProduceHandler(), error_response, advertised_min_version=0)


# ---- for judges


cdef ProduceUnderWay read_frame(frame, int version, Py_ssize_t position):
    cdef Request request = Request.__new__(Request)
    cdef const uint8_t[::1] view = frame
    cdef Cursor cursor
    request.api = API
    request.version = version
    cursor.at = (&view[0] if len(view) else NULL) + position
    cursor.end = cursor.at + len(view) - position
    return read_request(request, &cursor, {})


def as_read(frame, int version, Py_ssize_t position=0):
    """Return the fields that the reader finds: (transactional id, acks, [(name or id, [(index, records)])])."""
    cdef ProduceUnderWay request = read_frame(frame, version, position)
    cdef Py_ssize_t i, number = 0
    cdef Part *part
    topics = []
    for i in range(request.topics_count):
        parts = []
        while number < request.topics[i].end:
            part = &request.parts[number]
            parts.append((part.index, None if part.size_bytes < 0 else (<char *>part.records)[:part.size_bytes]))
            number += 1
        topics.append((<bytes>request.topics[i].name, parts))
    return request.transactional_id, request.acks, topics


def as_written(frame, int version, int32_t correlation_id, answers, Py_ssize_t position=0):
    """Return the reply to the request in `frame` if its partitions, in order, get these `answers`.

    An answer is a KafkaError, or (base offset, log append time in ms, log start offset).
    """
    cdef ProduceUnderWay request = read_frame(frame, version, position)
    cdef Py_ssize_t number
    cdef Part *part
    request.request.correlation_id = correlation_id
    for number, answer in enumerate(answers):
        part = &request.parts[number]
        if isinstance(answer, KafkaError):
            request.refuse(part, answer)
        else:
            part.base_offset, part.log_append_time_ms, part.log_start_offset = answer
    return request.encoded()
