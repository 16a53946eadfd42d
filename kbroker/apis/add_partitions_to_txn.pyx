"""AddPartitionsToTxn (key 24), versions 0-5: add partitions to a transaction before they are written to.

Producers send versions 0-3, whose requests name one transaction each. In versions 0 and 1, a fenced producer gets
INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED.

Brokers send versions 4 and 5 to each other. Their requests can name many transactions, and can verify partitions
without adding them (KIP-890). They may name internal topics. Requests of producers may not, because producers use
AddOffsetsToTxn to add the partition of `__consumer_offsets`.

If the previous transaction of a producer is not complete yet, the request waits briefly for its completion before it
fails with CONCURRENT_TRANSACTIONS. If one partition of a transaction is refused, no partition is added, and all other
partitions get OPERATION_NOT_ATTEMPTED.

Requests of versions 0-3 are read and answered without message objects, for speed: each transaction of a client from
before TV2 begins with one.
"""
import logging
from functools import partial

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker.apis.serving.answer_bytes cimport put_count, put_no_tags
from kbroker.apis.serving.request cimport Api, Handler, Request
from kbroker.apis.serving.request_fields cimport (
    FieldReader, RequestFields, end_struct, fields_of, pull_count, pull_int16, pull_int64, pull_string,
)
from kbroker.base.completion cimport Callback, Completion
from kbroker.base.long_work cimport ELEMENTS_OF_A_PART, LongWork
from kbroker.transaction.coordinator cimport TransactionCoordinator
from kbroker.wire.bytes cimport Cursor, put_unsigned_varint, read_int32, take, write_int16, write_int32

from kbroker.apis.serving.authorization import refusal, require
from kbroker.apis.serving.long_answers import Pace, each_topic
from kbroker.apis.serving.producer_fencing import fencing_code
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import INTERNAL_TOPICS
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import AddPartitionsToTxnResponse
from kbroker.protocol.schema import first_version, flexible_from
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.transaction.state import EPOCH_BUMPS_FROM

logger = logging.getLogger('kbroker.apis')

TransactionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult

FIRST_VERSION_WITH_FENCED = 2

cdef enum:
    LEAST_ANSWER_BYTES = 16         # more than a response takes without its topics
    PARTITION_ANSWER_BYTES = 3      # of a partition, besides its bytes in the request
    # The most topics and partitions, counted together, in a request of versions 0-3. A transaction may have 10,000
    # partitions.
    MOST_NAMED = 20_000
    MOST_OF_A_TRANSACTION = 10_000  # of each transaction in versions 4 and 5
    TRANSACTION_COST = 4            # the elements that a transaction counts for

cdef RequestFields REQUEST = fields_of('AddPartitionsToTxnRequest')
cdef Py_ssize_t TRANSACTIONAL_ID = REQUEST.field('v3_and_below_transactional_id', 'string')
cdef Py_ssize_t PRODUCER_ID = REQUEST.field('v3_and_below_producer_id', 'int64')
cdef Py_ssize_t PRODUCER_EPOCH = REQUEST.field('v3_and_below_producer_epoch', 'int16')
cdef Py_ssize_t TOPICS = REQUEST.field('v3_and_below_topics', '[]struct')
cdef Py_ssize_t NAME = REQUEST.field('v3_and_below_topics.name', 'string')
cdef Py_ssize_t PARTITIONS = REQUEST.field('v3_and_below_topics.partitions', '[]int32')

cdef int FLEXIBLE_VERSION = flexible_from('AddPartitionsToTxnResponse')
cdef int FIRST_BATCHED = first_version('AddPartitionsToTxnRequest', 'transactions')
cdef object NONE = ErrorCode.NONE
cdef int WRITE = Operation.WRITE
cdef int TOPIC = ResourceType.TOPIC
cdef int TRANSACTIONAL_ID_RESOURCE = ResourceType.TRANSACTIONAL_ID


# ---- versions 0-3


@cython.final
cdef class AddingInFlight(Completion):
    """An AddPartitionsToTxn request that is answered when its partitions are in the transaction.

    The reply repeats the topics, with a code for each partition.
    """
    cdef Request request
    cdef bytes topics               # as they came
    cdef FieldReader reader         # of the request at its topics
    cdef list wanted                # (topic, partition) of each partition
    cdef str transactional_id
    cdef int64_t producer_id
    cdef int16_t producer_epoch
    cdef list partitions            # the Partition objects
    cdef dict refused               # the error codes of those that the producer may not add

    cdef int read_topics(self, FieldReader *reader) except -1:
        cdef const uint8_t *start = reader.cursor.at
        cdef const uint8_t *text = NULL
        cdef Py_ssize_t length, topics
        self.reader = reader[0]
        self.wanted = []
        topics = pull_count(reader, TOPICS)
        for _ in range(topics):
            length = pull_string(reader, NAME, &text)
            topic = PyUnicode_DecodeUTF8(<const char *>text, length, NULL)
            for _ in range(pull_count(reader, PARTITIONS)):
                self.wanted.append((topic, read_int32(take(&reader.cursor, 4))))
            end_struct(reader, TOPICS)
        self.topics = PyBytes_FromStringAndSize(<const char *>start, reader.cursor.at - start)
        return 0

    cdef int resolve(self, Py_ssize_t first, Py_ssize_t end) except -1:
        """Find the requested partitions number `first` to `end` - 1, and refuse those that the producer may not add."""
        cdef Request request = self.request
        cdef object topic = None
        cdef bint is_forbidden = False
        cdef Py_ssize_t number
        topics = request.node.topics
        for number in range(first, end):
            topic_partition = self.wanted[number]
            if (<tuple>topic_partition)[0] is not topic:
                topic = (<tuple>topic_partition)[0]
                is_forbidden = topic in INTERNAL_TOPICS or not request.may(WRITE, TOPIC, topic)
            found = topics.find(*topic_partition)
            if is_forbidden:
                self.refused[topic_partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif found is None:
                self.refused[topic_partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                self.partitions.append(found)
        return 0

    def resolve_in_parts(self):
        """Find all requested partitions. A generator: it yields after each part."""
        cdef Py_ssize_t first, count = len(self.wanted)
        for first in range(0, count, ELEMENTS_OF_A_PART):
            self.resolve(first, min(first + ELEMENTS_OF_A_PART, count))
            yield

    def resolved(self, error, _result):
        if error is not None:
            logger.error('%r failed', self.request, exc_info=error)
            self.reply(ErrorCode.UNKNOWN_SERVER_ERROR, None)
            return
        try:
            self.add()
        except KafkaError as refused:
            self.reply(refused.code, None)

    cdef int add(self) except -1:
        """Add the partitions if none of them was refused."""
        cdef TransactionCoordinator coordinator = self.request.node.transactions
        if not self.transactional_id:
            return self.reply(ErrorCode.INVALID_REQUEST, None)
        if self.refused:
            return self.reply(NONE, all_or_nothing(self.wanted, self.refused))
        coordinator.add_partitions_in_turn(self.transactional_id, self.producer_id, self.producer_epoch,
                                           coordinator.set_of_partitions(self.partitions), self.request.connection,
                                           self)
        return 0

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        return self.reply(NONE if error is None else error.code, None)

    cdef int reply(self, object code, dict results) except -1:
        """Reply with `code` for each partition, or with the codes in `results` unless that is None."""
        return self.request.send(self.encoded(code, results))

    cdef bytes encoded(self, object code, dict results):
        """Return the encoded reply with its header."""
        cdef uint8_t *start = <uint8_t *>malloc(LEAST_ANSWER_BYTES + PyBytes_GET_SIZE(self.topics)
                                                + PARTITION_ANSWER_BYTES * len(self.wanted))
        cdef uint8_t *end
        if start == NULL:
            raise MemoryError
        try:
            end = self.put(start, code, results)
            return PyBytes_FromStringAndSize(<const char *>start, end - start)
        finally:
            free(start)

    cdef uint8_t *put(self, uint8_t *at, object code, dict results) except NULL:
        cdef bint flexible = self.request.version >= FLEXIBLE_VERSION
        cdef int16_t sent = 0 if code is NONE else self.code_to_send(code)
        cdef const uint8_t *text = NULL
        cdef Py_ssize_t length, topics, partitions, number = 0
        cdef int16_t code_of_part
        cdef FieldReader reader = self.reader
        reader.cursor.at = <const uint8_t *>PyBytes_AS_STRING(self.topics)
        reader.cursor.end = reader.cursor.at + PyBytes_GET_SIZE(self.topics)
        at = self.request.put_header(at)
        write_int32(at, self.request.throttle_ms)
        topics = pull_count(&reader, TOPICS)
        at = put_count(at + 4, topics, flexible)
        for _ in range(topics):
            length = pull_string(&reader, NAME, &text)
            if flexible:
                at = put_unsigned_varint(at, length + 1)
            else:
                write_int16(at, <int16_t>length)
                at += 2
            memcpy(at, text, length)
            partitions = pull_count(&reader, PARTITIONS)
            at = put_count(at + length, partitions, flexible)
            for _ in range(partitions):
                memcpy(at, take(&reader.cursor, 4), 4)
                code_of_part = sent if results is None else self.code_to_send(results[self.wanted[number]])
                if code_of_part:
                    self.request.count_error(code_of_part)
                write_int16(at + 4, code_of_part)
                at = put_no_tags(at + 6, flexible)
                number += 1
            end_struct(&reader, TOPICS)
            at = put_no_tags(at, flexible)
        return put_no_tags(at, flexible)

    cdef int16_t code_to_send(self, object code) except? -2:
        return fencing_code(code, self.request.version, FIRST_VERSION_WITH_FENCED)


cdef class AddPartitionsHandler(Handler):

    cdef int serve(self, Request request, Cursor *body) except -1:
        """Add the partitions."""
        cdef AddingInFlight in_flight = AddingInFlight.__new__(AddingInFlight)
        cdef FieldReader reader
        cdef const uint8_t *text = NULL
        cdef Py_ssize_t length
        in_flight.request = request
        in_flight.partitions = []
        in_flight.refused = {}
        REQUEST.begin(&reader, body, request.version)
        length = pull_string(&reader, TRANSACTIONAL_ID, &text)
        in_flight.producer_id = pull_int64(&reader, PRODUCER_ID)
        in_flight.producer_epoch = pull_int16(&reader, PRODUCER_EPOCH)
        in_flight.read_topics(&reader)
        end_struct(&reader, 0)
        in_flight.transactional_id = PyUnicode_DecodeUTF8(<const char *>text, length, NULL)
        if request.access is not None and not request.may(WRITE, TRANSACTIONAL_ID_RESOURCE, in_flight.transactional_id):
            raise refusal(TRANSACTIONAL_ID_RESOURCE)
        if len(in_flight.wanted) > ELEMENTS_OF_A_PART:
            (<LongWork?>request.node.long_work).start(in_flight.resolve_in_parts(), in_flight.resolved)
            return 0
        in_flight.resolve(0, len(in_flight.wanted))
        return in_flight.add()


# ---- versions 4 and 5


def handle_batched(request, body):
    """Add the partitions of many transactions, or verify them, as the request says. A generator does the work in
    parts."""
    require(request, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    request.start_work(add_in_parts(request, body), partial(end_batched, request, body))


def end_batched(Request request not None, body, error, _result):
    if error is not None:
        request.fail(body, error)


def add_in_parts(request, body):
    """Add or verify the partitions of one transaction after the other. The last result sends the reply. A generator."""
    pace = Pace()
    for transaction in body.transactions:
        yield from check_transaction(transaction, pace)
    results = BatchedResults(request)
    for transaction in body.transactions:
        results.unanswered += 1
        add_or_verify(request, transaction, partial(results.add, transaction))
        if pace.spend(TRANSACTION_COST + sum(len(topic.partitions) for topic in transaction.topics)):
            yield
    results.count_answer()


class BatchedResults:
    """The results of all transactions of one request.

    A closure instead of this class would form a reference cycle with the generator, and the garbage collector, which
    would free such cycles, does not run.
    """

    def __init__(self, request):
        self.unanswered = 1
        self._request = request
        self._response = AddPartitionsToTxnResponse(results_by_transaction=[])

    def add(self, transaction, results):
        self._response.results_by_transaction.append(TransactionResult(
            transactional_id=transaction.transactional_id,
            topic_results=topic_results(transaction.topics, results, self._request.version)))
        self.count_answer()

    def count_answer(self):
        self.unanswered -= 1
        if self.unanswered == 0:
            self._request.reply(self._response)


def check_transaction(transaction, pace):
    """Raise KafkaError INVALID_REQUEST if the request names more topics and partitions than a transaction may have. A
    generator."""
    count = 0
    for topic in transaction.topics:
        count += 1 + len(topic.partitions)
        if count > MOST_OF_A_TRANSACTION:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'found {count} topics and partitions of a transaction or '
                             f'more, expected {MOST_OF_A_TRANSACTION} at most')
        if pace.spend():
            yield
    if pace.spend():
        yield


def add_or_verify(request, transaction, done):
    wanted = partitions_of(transaction.topics)
    refused = refuse_missing(request, wanted)
    coordinator = request.node.transactions
    who = transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
    if refused:
        done(all_or_nothing(wanted, refused))
    elif transaction.verify_only:
        done(coordinator.verify_partitions(*who, wanted))
    else:
        coordinator.add_partitions(*who, wanted, EPOCH_BUMPS_FROM, Callback(
            lambda error, _: done(with_code(wanted, NONE if error is None else error.code))))


def partitions_of(topics):
    return [(topic.name, partition) for topic in topics for partition in topic.partitions]


def refuse_missing(request, wanted):
    return {partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for partition in wanted
            if request.node.topics.find(*partition) is None}


def with_code(wanted, code):
    return dict.fromkeys(wanted, code)


def all_or_nothing(wanted, refused):
    return with_code(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused


def topic_results(topics, results, version):
    return [TopicResult(name=topic.name, results_by_partition=[
        PartitionResult(partition_index=partition, partition_error_code=fencing_code(
            results[topic.name, partition], version, FIRST_VERSION_WITH_FENCED))
        for partition in topic.partitions]) for topic in topics]


def error_response(body, code, _message, version):
    if version >= FIRST_BATCHED:
        return AddPartitionsToTxnResponse(error_code=int(code), results_by_transaction=[])
    sent = fencing_code(code, version, FIRST_VERSION_WITH_FENCED)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=(yield from each_topic(
        body.v3_and_below_topics, 'partitions',
        lambda index: PartitionResult(partition_index=index, partition_error_code=sent),
        lambda topic, results: TopicResult(name=topic.name, results_by_partition=results), Pace())))


API = Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5,
          {(0, FIRST_BATCHED - 1): AddPartitionsHandler(), (FIRST_BATCHED, 5): handle_batched}, error_response,
          bounds={'topics and partitions': (MOST_NAMED, 'v3_and_below_topics', 'v3_and_below_topics.partitions')})
