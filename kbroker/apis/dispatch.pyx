"""From a frame to a handler, and from a response to the bytes that answer it.

A frame whose key or version nobody serves, or that does not parse, closes the connection with one log line: no
response could be addressed (Kafka does the same). ApiVersions is the exception: an unknown version of it is answered
in version 0, so that a newer client can step down.
"""
import functools
import importlib
import logging

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from kbroker.apis.context cimport Api, RequestContext
from kbroker.apis.frame_handler cimport Frame, FrameHandler
from kbroker.apis.requests cimport skip_tags
from kbroker.protocol.codec cimport decode_some
from kbroker.wire.bytes cimport Cursor, read_int16, read_int32, take
from kbroker.topics.gathering cimport Gathering
from kbroker.wire.frames cimport FrameServer

from kbroker.apis.context import NO_REPLY
from kbroker.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey, request_header_version, response_header_version
from kbroker.protocol.codec import decode_prefix, encode_segments

logger = logging.getLogger('kbroker.apis')

FILES = (
    'add_offsets_to_txn', 'add_partitions_to_txn', 'alter_configs', 'api_versions', 'create_partitions',
    'create_topics', 'delete_groups', 'delete_records', 'delete_topics', 'describe_cluster', 'describe_configs',
    'describe_groups', 'describe_log_dirs', 'describe_producers', 'describe_topic_partitions', 'describe_transactions',
    'elect_leaders', 'end_txn', 'fetch', 'find_coordinator', 'heartbeat', 'incremental_alter_configs',
    'init_producer_id', 'join_group', 'leave_group', 'list_config_resources', 'list_groups', 'list_offsets',
    'list_transactions', 'metadata', 'offset_commit', 'offset_delete', 'offset_fetch', 'offset_for_leader_epoch',
    'produce', 'sync_group', 'txn_offset_commit', 'write_txn_markers',
)
"""The files of this room that declare an Api."""

cdef enum:
    HEADER_BYTES = 10           # api key, api version, correlation id, length of the client id
    API_VERSIONS = 18
    MOST_API_KEYS = 128         # those above are of no API that a broker of this kind could serve


@functools.cache
def served_apis():
    """Every Api that a file of this room declares, by key."""
    return sorted((importlib.import_module(f'kbroker.apis.{name}').API for name in FILES), key=lambda api: api.key)


cdef class Served:
    """One Api with what dispatch needs at hand: message classes and the versions from which headers have tags."""
    cdef Api api
    cdef FrameHandler frame_handler     # None for most
    cdef object request_class
    cdef object response_class
    cdef int min_version
    cdef int max_version
    cdef int tags_from
    cdef int answer_tags_from

    def __init__(self, Api api not None):
        name = api.key.name.title().replace('_', '')
        self.api = api
        self.frame_handler = api.frame_handler
        self.request_class = getattr(messages, f'{name}Request')
        self.response_class = getattr(messages, f'{name}Response')
        self.min_version, self.max_version = api.min_version, api.max_version
        versions = range(self.min_version, self.max_version + 1)
        self.tags_from = next((version for version in versions if request_header_version(api.key, version) >= 2),
                              self.max_version + 1)
        self.answer_tags_from = next((version for version in versions
                                      if response_header_version(api.key, version) >= 1), self.max_version + 1)


cdef class Dispatcher(FrameServer):
    """Calls the handler of each frame. `broker` is what handlers see as `context.broker`; `gathering` is where its partitions
    gather what they write together."""
    cdef object _broker
    cdef Gathering _gathering
    cdef list _served               # Served by api key
    cdef bytes _client_id_bytes     # of the last request; its connection, and others of its kind, will say the same
    cdef object _client_id

    def __init__(self, broker, apis, Gathering gathering=None):
        self._broker = broker
        self._gathering = Gathering() if gathering is None else gathering
        self._served = [None] * MOST_API_KEYS
        self._client_id_bytes = b''
        self._client_id = ''
        for api in apis:
            self._served[api.key] = Served(api)

    def handle(self, connection, sequence, frame):
        """Handle one frame without its size prefix; `frame` is writable, and valid during the call only."""
        cdef Py_buffer view
        cdef Frame request
        PyObject_GetBuffer(frame, &view, PyBUF_WRITABLE)
        request.start, request.size = <uint8_t *>view.buf, view.len
        request.sequence = sequence
        try:
            self._handle(connection, frame, &request)
        except ProtocolError as error:
            connection.close(f'{describe_frame(request.start, request.size)}: {error}')
        finally:
            self.loan_ends()
            PyBuffer_Release(&view)

    cdef object serve(self, object connection, int64_t sequence, uint8_t *start, Py_ssize_t size, bint follows_unanswered):
        cdef Served served = None
        cdef Frame frame
        if size >= HEADER_BYTES:
            served = self._served_for(read_int16(start))
        if served is None or served.frame_handler is None:
            if follows_unanswered:
                self.settle()
            return NotImplemented
        if follows_unanswered and not served.frame_handler.may_follow_unwritten:
            self.settle()
        frame.start, frame.size = start, size
        frame.sequence = sequence
        try:
            self._check_version(served, connection, &frame)
            return self._serve(served, connection, self._take_client_id(served, &frame), &frame)
        except ProtocolError as error:
            connection.close(f'{describe_frame(start, size)}: {error}')
            return None

    cdef int settle(self) except -1:
        self._gathering.settle()
        return 0

    cdef int loan_ends(self) except -1:
        return self._gathering.loan_ends()

    cdef int _handle(self, connection, view, Frame *frame) except -1:
        cdef Served served
        if frame.size < HEADER_BYTES:
            raise ProtocolError(f'request header of at least {HEADER_BYTES} bytes expected, found {frame.size}')
        served = self._served_for(read_int16(frame.start))
        if served is None:
            raise ProtocolError(f'api key {read_int16(frame.start)} is not served')
        if not self._check_version(served, connection, frame):
            return 0
        client_id = self._take_client_id(served, frame)
        if served.frame_handler is None:
            return self._call(served, connection, client_id, view, frame)
        answer = self._serve(served, connection, client_id, frame)
        if answer is NotImplemented:
            return self._call(served, connection, client_id, view, frame)
        if answer is not None:
            connection.reply(frame.sequence, [answer])
        return 0

    cdef object _serve(self, Served served, connection, client_id, Frame *frame):
        try:
            return served.frame_handler.serve(self._broker, connection, client_id, frame)
        except ProtocolError:
            raise
        except Exception as error:
            request, _ = decode_prefix(served.request_class, (<char *>frame.start)[:frame.size], frame.version, frame.position)
            answer_failure(served, self._context(served, connection, client_id, frame), request, error)
            return None

    cdef Served _served_for(self, int16_t key):
        return self._served[key] if 0 <= key < MOST_API_KEYS else None

    cdef bint _check_version(self, Served served, connection, Frame *frame) except -1:
        """Read the version. False if it is a wrong one and that is answered."""
        frame.version = read_int16(frame.start + 2)
        frame.correlation_id = read_int32(frame.start + 4)
        if served.min_version <= frame.version <= served.max_version:
            return True
        if served.api.key != API_VERSIONS:
            raise ProtocolError(f'version {frame.version} is not served, only {served.min_version}-{served.max_version}')
        reply_unsupported_api_versions(connection, frame.sequence, served, frame.correlation_id)
        return False

    cdef object _take_client_id(self, Served served, Frame *frame):
        """Read the rest of the header."""
        cdef Cursor cursor
        cdef const uint8_t *text
        cdef int16_t length = read_int16(frame.start + 8)
        cursor.at, cursor.end = frame.start + HEADER_BYTES, frame.start + frame.size
        if length > cursor.end - cursor.at:
            raise ProtocolError(f'client id: {length} bytes expected, {cursor.end - cursor.at} left')
        text = take(&cursor, max(length, <int16_t>0))
        if frame.version >= served.tags_from:     # they carry nothing that a broker reads
            skip_tags(&cursor)
        frame.position = cursor.at - frame.start
        return None if length < 0 else self._client_id_of(text, length)

    cdef object _client_id_of(self, const uint8_t *text, int16_t length):
        if (length != PyBytes_GET_SIZE(self._client_id_bytes)
                or memcmp(text, PyBytes_AS_STRING(self._client_id_bytes), length) != 0):
            found = PyBytes_FromStringAndSize(<const char *>text, length)
            try:
                self._client_id = found.decode()
            except UnicodeDecodeError as error:
                raise ProtocolError(f'client id is not UTF-8: {error}') from None
            self._client_id_bytes = found
        return self._client_id

    cdef int _call(self, Served served, connection, client_id, view, Frame *frame) except -1:
        """Decode, handle, and answer unless the handler has parked the request."""
        cdef RequestContext context
        cdef Py_ssize_t end
        # Kafka ignores bytes behind a request, and librdkafka puts three there when it asks for all topics.
        request = decode_some(served.request_class, view, frame.version, frame.position, False, &end)
        context = self._context(served, connection, client_id, frame)
        try:
            response = served.api.handle(context, request)
        except ProtocolError:
            raise
        except Exception as error:
            answer_failure(served, context, request, error)
            return 0
        if response is NO_REPLY:
            connection.reply(frame.sequence, None)
        elif response is not None:
            context.reply(response)
        return 0

    cdef RequestContext _context(self, Served served, connection, client_id, Frame *frame):
        cdef RequestContext context = RequestContext.__new__(RequestContext)
        context.broker = self._broker
        context.api_key = served.api.key
        context.version = frame.version
        context.correlation_id = frame.correlation_id
        context.client_id = client_id
        context.connection = connection
        context.sequence = frame.sequence
        context.answer_has_tags = frame.version >= served.answer_tags_from
        return context


cdef int reply_unsupported_api_versions(connection, sequence, Served served, int32_t correlation_id) except -1:
    # KIP-511: a broker that does not know the version answers in version 0 with the range that it serves.
    code = ErrorCode.UNSUPPORTED_VERSION
    response = served.api.error_response(None, code, code.message, 0)
    connection.reply(sequence, encode_segments(response, 0, (<object>correlation_id).to_bytes(4, 'big', signed=True)))
    return 0


cdef int answer_failure(Served served, context, request, error) except -1:
    """Answer what a handler raised: a refusal as such, anything else logged whole and as an unknown error."""
    if isinstance(error, KafkaError):
        code, message = error.code, str(error)
    else:
        logger.error('%s v%d from %s failed', served.api.key.name, context.version, context.client_id, exc_info=error)
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        message = code.message
    response = error_response(served, request, code, message, context.version)
    if response is None:
        context.close(f'{served.api.key.name} failed, and closing is the only way to say so: {message}')
    else:
        context.reply(response)
    return 0


cdef object error_response(Served served, request, code, message, int version):
    """The answer to a request that failed as a whole: the Api's own, or a response with a top-level error code."""
    if served.api.error_response is not None:
        return served.api.error_response(request, code, message, version)
    response = served.response_class(error_code=int(code))
    if hasattr(response, 'error_message'):
        response.error_message = message
    return response


cdef str describe_frame(const uint8_t *start, Py_ssize_t frame_bytes):
    """Key, version and client of a frame, for the log line of a connection that is closed for it."""
    if frame_bytes < HEADER_BYTES:
        return f'frame of {frame_bytes} bytes'
    key, version = read_int16(start), read_int16(start + 2)
    name = ApiKey(key).name if key in ApiKey.__members__.values() else f'api key {key}'
    return f'{name} v{version}, {frame_bytes} bytes'
