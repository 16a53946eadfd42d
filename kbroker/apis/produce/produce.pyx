"""Produce (key 0), versions 3-13, advertised from 0.

For each partition, validates the batch (record/records), checks its producer and appends it (log). The answer depends
on acks:

- acks=-1: the answer is sent when the high watermark has passed the batch. After the request's timeout, it is sent with
  REQUEST_TIMED_OUT.
- acks=1: the answer is sent immediately. Fetches do not return the batch until it is on the disk.
- acks=0: no answer is sent. An error closes the connection, because this is all that the client can notice.

Versions 0-2, which cannot contain batches of magic 2, are not served. They are advertised because old versions of
librdkafka reject brokers that do not advertise them (KAFKA-18659).

Before a transactional batch is appended, the request asks the transaction coordinator (KIP-890). In versions 3-11, the
coordinator verifies that the client has added the partition to the transaction. From version 12 on, the coordinator
adds the partition. The request gets a verification guard from the partition before it asks. The partition checks the
guard at the append, and so notices a marker that was written after the verification began.

If another client has kept a transaction, batches of this transaction are refused (KIP-939). Without this check, a
partition in which the transaction is open would append them without asking the coordinator.

A long request does not hold the loop. When the tick has no time left, the remaining batches of the request are appended
as long work, one in each part. A batch that is large, or that expands to many bytes, is validated by a worker before
its append. The connection's next request waits until all batches are appended, to keep the order of each producer's
batches. The frame is kept until the last batch is appended.

A client needs the right to write to each topic. For a transactional batch, it also needs the right to write to the
transactional id: without this right, the whole request is refused.
"""
cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker.apis.produce.parts cimport MOST_PARTS, Part, ProduceParts, TopicPart
from kbroker.apis.serving.request cimport Api, Handler, Request
from kbroker.base.clock cimport Clock
from kbroker.log.append cimport (
    DUPLICATE, ORIGIN_CLIENT, WRITE_LATER, WRITE_LATER_BORROWED, WRITE_NOW, Append, WriteMode, begin_append,
)
from kbroker.log.newest_connection cimport ANY_CONNECTION
from kbroker.record.batch cimport (
    COMPRESSION_MASK, HEADER_READ, LOG_OVERHEAD_BYTES, MAGIC, MAGIC_AT, TRANSACTIONAL_BIT, batch_size_bytes,
    refuse_header,
)
from kbroker.record.produced cimport Validation, prepare, room_on_loop
from kbroker.record.produced_records cimport ProduceRules
from kbroker.topics.partition cimport Partition, Tick
from kbroker.topics.topic cimport Topic
from kbroker.transaction.coordinator cimport TransactionCoordinator
from kbroker.transaction.store cimport TransactionStore
from kbroker.wire.bytes cimport Cursor, read_int32

import logging
from functools import partial

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ProduceResponse
from kbroker.protocol.schema import first_version
from kbroker.record.batch import CorruptBatchError
from kbroker.record.compression import ExpansionError
from kbroker.record.records import MAX_DECOMPRESSED_BYTES
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.security.escape import shown
from kbroker.transaction.verification import PRODUCE_VERSION_THAT_ADDS

WITHOUT_LOG_START_OFFSET = frozenset({
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.KAFKA_STORAGE_ERROR})
"""The error codes with which Kafka's answer does not have the log start offset of the partition."""

cdef enum:
    ACKS_ALL = -1
    VERIFICATION = -1               # the part of a ProduceInFlight that is not the number of a partition
    ZSTD_VERSION = 7
    # A request counts as overdue this time before its timeout, or, if that is less, a quarter of its timeout before it.
    # So its answer is in time, although the flusher looks for overdue requests only once per EXPIRY_INTERVAL_MS.
    EARLY_MS = 100
    PARTS_INSPECTED_AT_ONCE = 256
    PARTS_INSPECTED_IN_A_SLICE = 16

MAX_REQUEST_DECOMPRESSED_BYTES = 10 * MAX_DECOMPRESSED_BYTES
"""The most bytes to which the batches of one request may expand together. A batch that would exceed this sum is
refused."""

logger = logging.getLogger('kbroker.apis')

cdef Py_ssize_t REQUEST_ROOM_BYTES = MAX_REQUEST_DECOMPRESSED_BYTES
cdef int TOPIC_ID_VERSION = first_version('ProduceRequest', 'topic_data.topic_id')
cdef int WRITE = Operation.WRITE
cdef int TOPIC = ResourceType.TOPIC
cdef int TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
cdef int IMPLICIT_ADD_VERSION = PRODUCE_VERSION_THAT_ADDS

TopicProduceResponse = ProduceResponse.TopicProduceResponse
PartitionProduceResponse = ProduceResponse.PartitionProduceResponse


@cython.final
cdef class Postponed:
    """The additional state of a request that is not finished within its connection's turn: the bytes of its batches,
    and the results of the worker and of the transaction coordinator."""
    cdef object frame               # what `Connection.keep_frame` returned
    cdef bytearray copies           # of the batches, if the frame cannot be kept
    cdef Validation validation      # of the next part, by a worker
    cdef object validation_error
    cdef object refusal             # KafkaError for all batches that the coordinator was asked about
    cdef dict refusals              # KafkaError for some of them, by (topic, partition)
    cdef object refusal_of_all      # KafkaError


@cython.final
cdef class ProduceInFlight(ProduceParts):
    """A Produce request that is being served."""
    cdef int64_t overdue_ms         # on the monotonic clock
    cdef Py_ssize_t unanswered
    cdef Py_ssize_t inspected_parts
    cdef bint must_ask              # the coordinator, before the append
    cdef Py_ssize_t next_part       # the first that is not appended yet
    cdef int64_t now_ms
    cdef WriteMode write_mode       # of appends whose answer waits for the disk
    cdef Py_ssize_t room_bytes      # the most bytes to which the batches left may expand
    cdef bytearray replacement      # for the next part: what to append instead of its bytes
    # `is_forbidden`: the client may not write to the topic that was checked last. The parts of this topic end before
    # part number `checked_parts`.
    cdef Py_ssize_t checked_topics
    cdef Py_ssize_t checked_parts
    cdef bint is_forbidden
    cdef Postponed postponed        # None during the turn of the connection, where most requests end

    # ---- work

    cdef int start(self) except -1:
        """Inspect each batch. Then append the batches, or first ask the transaction coordinator if it must be asked."""
        if self.parts_count > 1:
            self.drop_repeated()
        if self.request.access is not None and self.is_forbidden_transaction():
            return self.refuse_all()
        if self.inspect_some(PARTS_INSPECTED_AT_ONCE):
            return self.ask_or_append()
        self.keep_frame()
        self.request.start_work(self.inspect_in_slices(), self.inspected)
        return 0

    cdef bint is_forbidden_transaction(self) except -1:
        """Return whether the request has a transactional batch, but no transactional id to which the client may
        write."""
        cdef Py_ssize_t number
        for number in range(self.parts_count):
            if is_transactional(&self.parts[number]):
                return self.transactional_id is None or not self.request.may(
                    WRITE, TRANSACTIONAL_ID, self.transactional_id)
        return False

    cdef int refuse_all(self) except -1:
        cdef Py_ssize_t number
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        error = KafkaError(code, code.message)
        for number in range(self.parts_count):
            self.refuse(&self.parts[number], error)
        self.unanswered = 1
        return self.finish()

    cdef int check_right(self, Py_ssize_t number) except -1:
        """Raise KafkaError TOPIC_AUTHORIZATION_FAILED unless the client may write to the topic of part `number`.

        Parts must be checked in order. An unknown topic id raises no error here: the caller refuses it.
        """
        cdef TopicPart *topic
        while number >= self.checked_parts:
            topic = &self.topics[self.checked_topics]
            self.checked_topics += 1
            self.checked_parts = topic.end
            if number < topic.end:
                self.is_forbidden = (topic.topic != NULL or self.version < TOPIC_ID_VERSION) and not self.request.may(
                    WRITE, TOPIC, (<bytes>topic.name).decode() if topic.topic == NULL else (<Topic>topic.topic).name)
        if self.is_forbidden:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED.message)
        return 0

    def inspect_in_slices(self):
        """Inspect the remaining batches. A generator for LongWork."""
        while not self.inspect_some(PARTS_INSPECTED_IN_A_SLICE):
            yield

    def inspected(self, error, _result):
        if error is not None:
            self.give_up(error)
        else:
            self.ask_or_append()

    cdef bint inspect_some(self, Py_ssize_t count) except -1:
        """Inspect up to `count` further batches. Return whether all batches of the request are inspected."""
        cdef Py_ssize_t end = min(self.inspected_parts + count, self.parts_count)
        while self.inspected_parts < end:
            try:
                self.must_ask |= self.inspect(self.inspected_parts)
            except KafkaError as error:
                self.refuse(&self.parts[self.inspected_parts], error)
            self.inspected_parts += 1
        return end == self.parts_count

    cdef int ask_or_append(self) except -1:
        return self.ask_coordinator() if self.must_ask else self.append_all()

    cdef bint inspect(self, Py_ssize_t number) except -1:
        """Check a batch, and find its partition. Return whether the transaction coordinator must be asked before the
        append. Raise KafkaError if the batch is refused."""
        cdef Part *part = &self.parts[number]
        cdef Partition partition
        cdef Topic topic
        if self.request.access is not None:
            self.check_right(number)
        if part.topic == NULL:
            self.refuse_unknown()
        topic = <Topic>part.topic
        if not 0 <= part.index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 'the partition does not exist')
        check_only_batch(part)
        if not ACKS_ALL <= self.acks <= 1:
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f'acks is {self.acks}, expected -1, 0 or 1')
        if topic.is_internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION,
                             f'clients may not write to the internal topic {topic.name}')
        partition = topic.partitions[part.index]
        part.is_compressed = part.batch.attributes & COMPRESSION_MASK != 0
        if part.batch.attributes & TRANSACTIONAL_BIT:
            self.begin_verification(part, partition)
        Py_INCREF(partition)
        part.partition = <PyObject *>partition
        return part.guard != NULL

    cdef int refuse_unknown(self) except -1:
        # The message does not quote the topic name, because the name may be long, and the request may have many
        # partitions.
        if self.version >= TOPIC_ID_VERSION:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, 'no topic has this id')
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 'the topic does not exist')

    cdef int begin_verification(self, Part *part, Partition partition) except -1:
        cdef bint supports_epoch_bump = self.version >= IMPLICIT_ADD_VERSION
        if self.transactional_id is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                             'a transactional batch in a request without a transactional id')
        if not supports_epoch_bump and not self.request.node.config.transaction_partition_verification_enable:
            return 0
        part.is_guarded = True
        guard = partition.start_verification(
            part.batch.producer_id, part.batch.producer_epoch, part.batch.base_sequence, supports_epoch_bump,
            (<Clock?>self.request.node.clock).wall_ms())
        if guard is not None:
            Py_INCREF(guard)
            part.guard = <PyObject *>guard
        return 0

    cdef int ask_coordinator(self) except -1:
        """Let the transaction coordinator add the partitions to the transaction, or verify that they are added. The
        batches are appended when it has answered."""
        cdef Py_ssize_t number
        cdef Part *part
        cdef int64_t producer_id = -1
        cdef int16_t producer_epoch = -1
        cdef list partitions = []
        for number in range(self.parts_count):
            part = &self.parts[number]
            if part.partition == NULL or not part.batch.attributes & TRANSACTIONAL_BIT:
                continue
            if producer_id == -1:
                producer_id, producer_epoch = part.batch.producer_id, part.batch.producer_epoch
            elif producer_id != part.batch.producer_id or producer_epoch != part.batch.producer_epoch:
                self.keep_frame()
                self.postponed.refusal_of_all = KafkaError(
                    ErrorCode.INVALID_PRODUCER_ID_MAPPING, 'one producer expected in a transactional request, found '
                    f'{[(producer_id, producer_epoch), (part.batch.producer_id, part.batch.producer_epoch)]}')
                return self.append_all()
            if part.guard != NULL:
                partitions.append(<Partition>part.partition)
        self.keep_frame()
        (<TransactionCoordinator?>self.request.node.transactions).add_or_verify_partitions(
            self.transactional_id, producer_id, producer_epoch, partitions, self.version, self, VERIFICATION)
        return 0

    cdef int keep_frame(self) except -1:
        """Keep the bytes of the batches, because the request needs them after its connection's turn, when the frame is
        released."""
        if self.postponed is None:
            self.postponed = Postponed.__new__(Postponed)
            self.write_mode = WRITE_LATER
            # The connection has only the frame that it is passing on now, which is not that of a request held before.
            frame = self.postponed.frame = (
                self.request.connection.keep_frame() if self.request.steps is None else None)
            if frame is None or frame.buffer is None:
                self.copy_batches()
        return 0

    cdef int copy_batches(self) except -1:
        """Copy the batches that are not appended yet. They are in the buffer that all connections share."""
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
        """Continue with the transaction coordinator's answer, or count the result of part number `part`, which has
        waited for the disk."""
        if part == VERIFICATION:
            self.postponed.refusal, self.postponed.refusals = error, result
            return self.append_all()
        self.unanswered -= 1
        if error is not None:
            self.refuse(&self.parts[part], error)
        if self.unanswered == 0:
            self.answer()
        return 0

    cdef bint is_overdue(self, int64_t monotonic_ms) noexcept:
        return self.overdue_ms and monotonic_ms >= self.overdue_ms

    cdef int append_all(self) except -1:
        """Append every batch. When the tick has no time left, append the remaining batches as long work."""
        self.unanswered = 1
        self.now_ms = (<Clock?>self.request.node.clock).wall_ms()
        while self.next_part < self.parts_count:
            if self.is_costly() and not (<Tick?>self.request.node.tick).has_time():
                return self.append_later()
            if not self.append_next():
                return 0
        return self.finish()

    cdef bint is_costly(self) noexcept:
        """Return whether the next append may take much longer than that of a single small batch: because the request
        has several batches, the batch is compressed, or its log has no files yet."""
        cdef Part *part = &self.parts[0]
        return self.parts_count > 1 or part.is_compressed or (
            part.partition != NULL and not (<Partition>part.partition).is_made())

    cdef int append_later(self) except -1:
        self.keep_frame()
        self.request.start_work(self.append_in_slices(), self.appended)
        return 0

    def append_in_slices(self):
        """Append the remaining batches, one in each part. A generator for LongWork.

        It returns False if it has stopped because a worker must validate the next batch.
        """
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
        """Close the connection after an unexpected error, because some batches of the request may be in the log
        already."""
        logger.error('PRODUCE v%d from %s failed', self.version, shown(self.request.client_id), exc_info=error)
        self.request.connection.close('PRODUCE failed')
        return 0

    cdef int finish(self) except -1:
        """End the request after its last append. Send the reply unless it waits for the disk or the client wants
        none."""
        self.postponed = None
        self.unanswered -= 1
        if self.acks == 0:
            if self.failed:
                self.count_errors()
                self.request.connection.close('a produce with acks=0 failed, and closing is the only way to say so')
            self.request.send(None)
        elif self.unanswered == 0:
            self.answer()
        else:
            self.overdue_ms = (<Clock?>self.request.node.clock).monotonic_ms() + self.timeout_ms - min(
                self.timeout_ms // 4, EARLY_MS)
            # This request has made all its changes and only waits for the disk, so the connection's next request may be
            # served.
            self.request.let_next_pass()
        return 0

    cdef int answer(self) except -1:
        if self.failed:
            self.count_errors()
        return self.request.send(self.encoded())

    cdef int count_errors(self) except -1:
        cdef Py_ssize_t number
        for number in range(self.parts_count):
            if self.parts[number].error_code:
                self.request.count_error(self.parts[number].error_code)
        return 0

    cdef bint append_next(self) except -1:
        """Append the next batch, or refuse it. Return False, and do neither, if a worker must validate the batch
        first."""
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
        """Return the error with which the transaction coordinator refused the batch, or None."""
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
        append.is_guarded, append.guard = part.is_guarded, part.guard
        append.batch = part.batch
        if topic.produce_rules is None:
            topic.produce_rules = ProduceRules(topic.config)
        try:
            if append.batch.attributes & TRANSACTIONAL_BIT:
                self.begin_transactional(&append)
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
            if append.late_refusal.newest_id != ANY_CONNECTION:
                self.report_late(&append, partition)
            if error.code not in WITHOUT_LOG_START_OFFSET:
                part.log_start_offset = partition.start_offset()
            return True
        if append.outcome != DUPLICATE:
            partition.produced_records += append.batch.records_count
            partition.produced_bytes += part.size_bytes
        part.base_offset = append.base_offset
        part.log_append_time_ms = append.append_time_ms
        part.log_start_offset = append.log_start_offset
        if not awaits:
            partition.acknowledge(append.last_offset + 1)
        elif partition.high_watermark <= append.last_offset or partition.is_deleted:
            self.unanswered += 1
            partition.await_durable(append.last_offset + 1, self, number)
        return True

    cdef int begin_transactional(self, Append *append) except -1:
        """Raise KafkaError if the batch belongs to a transaction that another client has kept.

        If a producer's transactions share one epoch in this version, set the connection id, so that the log can refuse
        late batches of previous transactions.
        """
        cdef TransactionStore store = (<TransactionCoordinator?>self.request.node.transactions).store
        store.check_not_sealed(append.batch.producer_id, append.batch.producer_epoch)
        if self.version < IMPLICIT_ADD_VERSION and store.stale_requests.is_enabled:
            append.connection_id = self.request.connection.connection_id
        return 0

    cdef int report_late(self, const Append *append, Partition partition) except -1:
        cdef TransactionStore store = (<TransactionCoordinator?>self.request.node.transactions).store
        return store.stale_requests.report(
            f'a batch of {partition.topic}-{partition.partition}', self.transactional_id, self.request.connection,
            append.batch.producer_id, append.batch.producer_epoch, append.late_refusal)

    cdef bint validate(self, Append *append, ProduceRules rules) except -1:
        """Validate the next batch, and set `replacement`. If a worker must validate the batch, start the worker's job
        and return False."""
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
        """Let a worker validate the next batch. When the worker is done, the appends continue with this batch."""
        cdef Validation validation = Validation.__new__(Validation)
        cdef Part *part = &self.parts[self.next_part]
        self.keep_frame()
        validation.data = part.records
        validation.size_bytes = part.size_bytes
        validation.batch = part.batch
        validation.rules = rules
        validation.now_ms = self.now_ms
        validation.allow_zstd = self.version >= ZSTD_VERSION
        validation.room_bytes = min(self.room_bytes, rules.max_decompressed_bytes)
        self.room_bytes -= validation.room_bytes
        self.request.node.validate(validation, partial(self.validated, validation))
        return 0

    def validated(self, Validation validation, error):
        """Continue after a worker has validated the next batch. `error` is None, or the exception that the validation
        raised."""
        self.postponed.validation, self.postponed.validation_error = validation, error
        self.room_bytes += validation.room_bytes
        self.request.start_work(self.append_in_slices(), self.appended)

    cdef bint take_validation(self, Append *append) except -1:
        cdef Validation validation = self.postponed.validation
        error = self.postponed.validation_error
        self.postponed.validation = self.postponed.validation_error = None
        if error is not None:
            raise error
        append.batch = validation.batch
        self.replacement = validation.replacement
        return True

# ---- the bytes of a request


cdef bint is_transactional(const Part *part) noexcept:
    """Return whether a part begins with the header of a transactional batch."""
    return part.header_fault == HEADER_READ and part.batch.attributes & TRANSACTIONAL_BIT


cdef int check_only_batch(const Part *part) except -1:
    """Raise KafkaError INVALID_RECORD unless the part has exactly one batch, which is whole and has magic 2.

    Raise CorruptBatchError if the batch is whole, but its header is invalid.
    """
    if part.size_bytes <= 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, 'one batch expected, found no bytes')
    if part.header_fault != HEADER_READ:
        try:
            refuse_header(part.header_fault, &part.batch, part.size_bytes)
        except CorruptBatchError as error:
            is_cut = (part.size_bytes <= MAGIC_AT
                      or read_int32(part.records + 8) > part.size_bytes - LOG_OVERHEAD_BYTES)
            if is_cut or part.records[MAGIC_AT] < MAGIC:
                raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
            raise
    if batch_size_bytes(&part.batch) != part.size_bytes:
        raise KafkaError(ErrorCode.INVALID_RECORD, f'exactly one batch expected, of {batch_size_bytes(&part.batch)} '
                                                   f'bytes, found {part.size_bytes} bytes')
    return 0


# ---- the API


cdef class ProduceHandler(Handler):

    def __cinit__(self):
        self.may_follow_unwritten = True

    cdef int serve(self, Request request, Cursor *body) except -1:
        registry = request.node.topics
        cdef ProduceInFlight in_flight = ProduceInFlight.__new__(ProduceInFlight)
        in_flight.request = request
        in_flight.version = request.version
        in_flight.read(body, registry.by_id if request.version >= TOPIC_ID_VERSION else registry.by_encoded_name)
        in_flight.write_mode = WRITE_LATER_BORROWED
        in_flight.room_bytes = REQUEST_ROOM_BYTES
        return in_flight.start()


def error_response(body, code, message, version):
    """Return the response to a request that failed as a whole. Return None if acks is 0, to have the connection
    closed."""
    if body.acks == 0:
        return None
    return ProduceResponse(responses=[
        TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[
            PartitionProduceResponse(index=partition.index, error_code=int(code), base_offset=-1, error_message=message)
            for partition in topic.partition_data])
        for topic in body.topic_data])


API = Api(ApiKey.PRODUCE, 3, 13, ProduceHandler(), error_response, advertised_min_version=0, bounds={
    'topics': (MOST_PARTS, 'topic_data'), 'partitions': (MOST_PARTS, 'topic_data.partition_data')})
