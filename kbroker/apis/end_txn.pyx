"""EndTxn (key 26), versions 0-5: commit or abort a transaction. The answer is sent when the decision is durable. The
markers are written afterwards. Version 5 is TV2 (KIP-890): each EndTxn bumps the epoch, and the answer has the producer
id and epoch for the next transaction. If the client did not receive the answer and repeats its request, the second
answer has the same producer id and epoch.

In versions 0 and 1, a fenced producer gets INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED. A client that sends
version 4 knows the error code TRANSACTION_ABORTABLE.

The answer is written without the codec, for speed, because each transaction ends with an EndTxn.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int64_t, uint8_t

from kbroker.apis.serving.answer_bytes cimport put_no_tags
from kbroker.apis.serving.request cimport Api, Handler, Request
from kbroker.apis.serving.request_fields cimport (
    FieldReader, RequestFields, end_struct, fields_of, pull_bool, pull_int16, pull_int64, pull_string,
)
from kbroker.base.completion cimport Completion
from kbroker.transaction.coordinator cimport TransactionCoordinator
from kbroker.transaction.state cimport EPOCH_BUMPS_FROM, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionRow
from kbroker.wire.bytes cimport Cursor, write_int16, write_int32, write_int64

from kbroker.apis.serving.authorization import refusal
from kbroker.apis.serving.producer_fencing import fencing_code
from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import EndTxnResponse
from kbroker.protocol.schema import first_version, flexible_from
from kbroker.security.acl_codes import Operation, ResourceType

cdef enum:
    VERSION_WITH_FENCED = 2
    MOST_ANSWER_BYTES = 32

cdef RequestFields REQUEST = fields_of('EndTxnRequest')
cdef Py_ssize_t TRANSACTIONAL_ID = REQUEST.field('transactional_id', 'string')
cdef Py_ssize_t PRODUCER_ID = REQUEST.field('producer_id', 'int64')
cdef Py_ssize_t PRODUCER_EPOCH = REQUEST.field('producer_epoch', 'int16')
cdef Py_ssize_t COMMITTED = REQUEST.field('committed', 'bool')

cdef int FLEXIBLE_VERSION = flexible_from('EndTxnResponse')
cdef int WRITE = Operation.WRITE
cdef int TRANSACTIONAL_ID_RESOURCE = ResourceType.TRANSACTIONAL_ID
cdef int VERSION_WITH_BUMP = first_version('EndTxnResponse', 'producer_epoch')


cdef struct EndTxnFields:
    int64_t producer_id
    int16_t producer_epoch
    bint committed


@cython.final
cdef class EndTxnInFlight(Completion):
    """An EndTxn request that is answered when the decision is durable."""
    cdef Request request

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        cdef TransactionRow row
        if error is not None:
            return self.request.send(encoded(
                self.request, fencing_code(error.code, self.request.version, VERSION_WITH_FENCED),
                NO_PRODUCER_ID, NO_PRODUCER_EPOCH))
        row = result
        return self.request.send(encoded(self.request, 0, row.fields.producer_id, row.fields.producer_epoch))


cdef str read_request(const Cursor *body, int version, EndTxnFields *fields):
    """Read the body into `fields`. Return the transactional.id. Raise ProtocolError if the body does not parse."""
    cdef FieldReader reader
    cdef const uint8_t *text = NULL
    cdef Py_ssize_t length
    REQUEST.begin(&reader, body, version)
    length = pull_string(&reader, TRANSACTIONAL_ID, &text)
    fields.producer_id = pull_int64(&reader, PRODUCER_ID)
    fields.producer_epoch = pull_int16(&reader, PRODUCER_EPOCH)
    fields.committed = pull_bool(&reader, COMMITTED)
    end_struct(&reader, 0)
    return PyUnicode_DecodeUTF8(<const char *>text, length, NULL)


cdef bytes encoded(Request request, int16_t code, int64_t producer_id, int16_t producer_epoch):
    """Return the encoded reply with its header."""
    cdef uint8_t answer[MOST_ANSWER_BYTES]
    cdef uint8_t *at = request.put_header(answer)
    if code:
        request.count_error(code)
    write_int32(at, request.throttle_ms)
    write_int16(at + 4, code)
    at += 6
    if request.version >= VERSION_WITH_BUMP:
        write_int64(at, producer_id)
        write_int16(at + 8, producer_epoch)
        at += 10
    at = put_no_tags(at, request.version >= FLEXIBLE_VERSION)
    return PyBytes_FromStringAndSize(<char *>answer, at - answer)


cdef class EndTxnHandler(Handler):

    cdef int serve(self, Request request, Cursor *body) except -1:
        """End the transaction."""
        cdef TransactionCoordinator coordinator = request.node.transactions
        cdef EndTxnInFlight in_flight = EndTxnInFlight.__new__(EndTxnInFlight)
        cdef EndTxnFields fields
        transactional_id = read_request(body, request.version, &fields)
        if request.access is not None and not request.may(WRITE, TRANSACTIONAL_ID_RESOURCE, transactional_id):
            raise refusal(TRANSACTIONAL_ID_RESOURCE)
        in_flight.request = request
        coordinator.ender.end_txn(transactional_id, fields.producer_id, fields.producer_epoch, fields.committed,
                                  EPOCH_BUMPS_FROM if request.version >= VERSION_WITH_BUMP else 0, request.connection,
                                  in_flight)
        return 0


def error_response(body, code, message, int version):
    """Return the answer to a request whose handler raised this error."""
    return EndTxnResponse(error_code=fencing_code(code, version, VERSION_WITH_FENCED))


API = Api(ApiKey.END_TXN, 0, 5, EndTxnHandler(), error_response)
