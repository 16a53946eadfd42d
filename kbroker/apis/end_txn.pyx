"""EndTxn (key 26), versions 0-5: commit or abort. Answered when the decision is durable; the markers follow.

Version 5 is TV2 (KIP-890): each ending bumps the epoch, the answer carries the producer id and epoch to go on with,
and a repeated request whose first answer was lost gets them again. PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before 2.
Version 4 says that the client knows TRANSACTION_ABORTABLE.

The request is read, and the answer written, by hand, as Produce does it: each transaction ends with one.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker.apis.answers cimport put_no_tags
from kbroker.apis.frame_handler cimport Frame, FrameHandler
from kbroker.apis.requests cimport take_string
from kbroker.transaction.coordinator cimport Asker, TransactionCoordinator
from kbroker.transaction.state cimport EPOCH_BUMPS_FROM
from kbroker.wire.bytes cimport Cursor, read_int16, read_int64, take, write_int16, write_int32, write_int64

from kbroker.apis.context import Api
from kbroker.apis.producer_fencing import told_to_producer
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import EndTxnResponse

cdef enum:
    VERSION_WITH_FENCED = 2
    FLEXIBLE_VERSION = 3
    VERSION_WITH_BUMP = 5
    MOST_ANSWER_BYTES = 32

cdef object NONE = ErrorCode.NONE


cdef struct Request:
    int64_t producer_id
    int16_t producer_epoch
    bint committed


@cython.final
cdef class EndTxnUnderWay(Asker):
    """Where the answer goes: back to the caller while `is_being_served`, later to the connection."""
    cdef bint is_being_served
    cdef bytes answer
    cdef object connection
    cdef int64_t sequence
    cdef int version
    cdef int32_t correlation_id

    cdef int answered(self, object error, int64_t producer_id, int16_t producer_epoch) except -1:
        cdef int16_t code = 0 if error is NONE else told_to_producer(error, self.version, VERSION_WITH_FENCED)
        self.answer = encoded(self.version, self.correlation_id, code, producer_id, producer_epoch)
        if not self.is_being_served:
            self.connection.reply(self.sequence, [self.answer])
        return 0


cdef str read_request(Cursor *cursor, int version, Request *request):
    """The fields into `request`; returns the transactional.id. Raises ProtocolError."""
    cdef const uint8_t *text
    cdef Py_ssize_t length = take_string(cursor, version >= FLEXIBLE_VERSION, False, &text)
    request.producer_id = read_int64(take(cursor, 8))
    request.producer_epoch = read_int16(take(cursor, 2))
    request.committed = take(cursor, 1)[0] != 0
    return PyUnicode_DecodeUTF8(<const char *>text, length, NULL)


cdef bytes encoded(int version, int32_t correlation_id, int16_t code, int64_t producer_id, int16_t producer_epoch):
    """The answer, its header included."""
    cdef uint8_t answer[MOST_ANSWER_BYTES]
    cdef uint8_t *at = answer
    write_int32(at, correlation_id)
    at = put_no_tags(at + 4, version >= FLEXIBLE_VERSION)
    write_int32(at, 0)              # throttle_time_ms
    write_int16(at + 4, code)
    at += 6
    if version >= VERSION_WITH_BUMP:
        write_int64(at, producer_id)
        write_int16(at + 8, producer_epoch)
        at += 10
    at = put_no_tags(at, version >= FLEXIBLE_VERSION)
    return PyBytes_FromStringAndSize(<char *>answer, at - answer)


cdef class EndTxnHandler(FrameHandler):

    cdef object serve(self, object broker, object connection, object client_id, const Frame *frame):
        """Tagged fields behind the body say nothing that is known."""
        cdef TransactionCoordinator coordinator = broker.transactions
        cdef EndTxnUnderWay under_way = EndTxnUnderWay.__new__(EndTxnUnderWay)
        cdef Cursor cursor
        cdef Request request
        cursor.at = frame.start + frame.position
        cursor.end = frame.start + frame.size
        transactional_id = read_request(&cursor, frame.version, &request)
        under_way.is_being_served = True
        under_way.connection = connection
        under_way.sequence = frame.sequence
        under_way.version = frame.version
        under_way.correlation_id = frame.correlation_id
        coordinator.end_txn(transactional_id, request.producer_id, request.producer_epoch, request.committed,
                            EPOCH_BUMPS_FROM if frame.version >= VERSION_WITH_BUMP else 0, under_way)
        under_way.is_being_served = False
        return under_way.answer


def error_response(request, code, message, int version):
    """The answer to a request that failed as a whole, which is for what nobody expected."""
    return EndTxnResponse(error_code=told_to_producer(code, version, VERSION_WITH_FENCED))


API = Api(ApiKey.END_TXN, 0, 5, None, error_response, frame_handler=EndTxnHandler())
