"""Passes each frame to the handler of its API and version.

The dispatcher reads the request header. If the frame does not parse, or has a key or version that is not served, it
closes the connection and logs one line, as Kafka does: the client could not read a response. The exception is an
ApiVersions request with an unknown version. It is answered in version 0, so that a newer client can choose a lower
version.

If the login of a client is not complete, or its session can expire, `authentication` decides which of its frames are
served.
"""
from collections.abc import Generator
from logging import INFO, getLogger

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int64_t, uint8_t
from libc.string cimport memcmp

from kbroker.apis.serving.request cimport (
    MOST_API_KEYS, Api, Handler, Request, RequestCounts, RequestSteps, fail_undecoded,
)
from kbroker.apis.serving.request_bytes cimport skip_tags
from kbroker.base.clock cimport now_us
from kbroker.base.completion cimport Steps
from kbroker.base.time_counts cimport count_time
from kbroker.base.turn_watch cimport TurnWatch
from kbroker.protocol.codec cimport decode_bytes
from kbroker.security.session cimport LOGGED_IN, Session
from kbroker.topics.partition cimport Tick
from kbroker.wire.bytes cimport Cursor, read_int16, read_int32, take
from kbroker.wire.frames cimport FrameServer

from kbroker.apis.serving.authentication import Verdict
from kbroker.base.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.base.long_work import run_to_end
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.mechanism import LARGEST_TOKEN_BYTES
from kbroker.security.principal import ANONYMOUS

SERVE, CLOSE = Verdict.SERVE, Verdict.CLOSE

logger = getLogger(__name__)

cdef Py_ssize_t MOST_TOKEN_BYTES = LARGEST_TOKEN_BYTES

cdef enum:
    HEADER_BYTES = 10           # api key, api version, correlation id, length of the client id
    API_VERSIONS = 18
    LONGEST_KEPT_TEXT = 1024        # bytes of a client id that requests keep as a string, while they wait, too
    MOST_REFUSED_BYTES = 64 * 1024  # decoded for an answer with an error


cdef class Dispatcher(FrameServer):
    """Serves all frames. `node` becomes the `request.node` of handlers, and gets the `request_counts`. `steps` hold
    requests and replies, if a test controls the broker. `tick` writes
    the appends that were deferred to the end of a tick."""
    cdef object _node
    cdef Tick _tick
    cdef TurnWatch _watch
    cdef RequestCounts _counts
    cdef list _apis                 # Api by key
    cdef bytes _client_id_bytes     # of the last request: most connections of a client send the same id
    cdef object _client_id          # as a request keeps it
    cdef object _quotas             # ClientQuotas; None while no client has a quota
    cdef Steps _steps               # None unless a test controls the broker

    def __init__(self, node, apis, Tick tick=None, TurnWatch watch=None, Steps steps=None):
        self._node = node
        self._counts = node.request_counts = RequestCounts()
        self._tick = Tick() if tick is None else tick
        self._watch = TurnWatch() if watch is None else watch
        self._apis = [None] * MOST_API_KEYS
        self._steps = steps
        self._client_id_bytes = b''
        self._client_id = ''
        for api in apis:
            self._apis[api.key] = api

    def apply_quotas(self, quotas):
        """Apply these ClientQuotas to all requests from now on. With None, requests are not measured."""
        self._quotas = quotas

    def handle(self, connection, sequence, frame):
        """Serve one frame, which is in a writable buffer. This is `serve` for callers in Python."""
        cdef Py_buffer view
        PyObject_GetBuffer(frame, &view, PyBUF_WRITABLE)
        self._watch.restart()
        try:
            answer = self.serve(connection, connection.session, sequence, <uint8_t *>view.buf, view.len, False)
            if answer is not None:
                connection.reply(sequence, answer)
        finally:
            self.end_loan()
            PyBuffer_Release(&view)

    cdef object serve(self, object connection, object session, int64_t sequence, uint8_t *frame,
                      Py_ssize_t frame_bytes, bint follows_unanswered):
        cdef Request request = Request.__new__(Request)
        cdef Cursor body
        request.node = self._node
        request.connection = connection
        request.sequence = sequence
        request.is_being_served = True
        body.at, body.end = frame, frame + frame_bytes
        try:
            if session is not None and (<Session?>session).is_guarded:
                self._serve_guarded(request, session, &body, follows_unanswered)
            elif self._read_header(request, &body):
                if session is not None:
                    request.access = (<Session>session).access
                self._serve_request(request, session, &body, frame_bytes, follows_unanswered)
        except ProtocolError as error:
            connection.close(f'{describe_frame(frame, frame_bytes)}: {error}')
        request.is_being_served = False
        if request.is_timed:
            request.end_part()
            if request.answer is not None and request.began_us:
                request.end_timing()
        self._watch.lap(request)
        answer = request.answer
        request.answer = None
        if request.steps is not None and answer is not None and request.holds_reply(answer):
            return None
        return answer

    cdef int _serve_request(self, Request request, Session session, Cursor *body, Py_ssize_t frame_bytes,
                            bint follows_unanswered) except -1:
        cdef Handler handler = request.api.handlers[request.version - request.api.min_version]
        if self._steps is not None and request.steps is None and self._holds(
                request, session, body, frame_bytes, follows_unanswered):
            return 0
        if self.arrived_us:
            self._begin_timing(request)
        if self._quotas is not None:
            self._begin_metering(request, session, frame_bytes)
        if follows_unanswered and not handler.may_follow_unwritten:
            self.write_deferred()
        return serve(handler, request, body[0])

    cdef bint _holds(self, Request request, Session session, Cursor *body, Py_ssize_t frame_bytes,
                     bint follows_unanswered) except -1:
        """Return whether the request must wait at its point, or is not served at all."""
        cdef HeldRequest held = HeldRequest.__new__(HeldRequest)
        held.dispatcher = self
        held.request = request
        held.session = session
        held.body = bytearray(body.at[:body.end - body.at])
        held.frame_bytes = frame_bytes
        held.follows_unanswered = follows_unanswered
        held.arrived_us = self.arrived_us
        request.steps = steps_of(self._steps, request, held.body)
        return request.steps.reach('request', request, held)

    cdef int _begin_timing(self, Request request) except -1:
        request.is_timed = True
        request.began_us = request.timed_since_us = now_us()
        count_time(&self._counts.times_of(request.api.key).queue, max(<int64_t>0, request.began_us - self.arrived_us))
        return 0

    cdef int _serve_guarded(self, Request request, Session session, Cursor *body, bint follows_unanswered) except -1:
        """Serve a frame of a client whose login is not complete, or whose session can expire. An error closes only this
        connection."""
        cdef const uint8_t *frame = body.at
        cdef Py_ssize_t frame_bytes = body.end - body.at
        cdef bint is_token = session.takes_bare_tokens
        try:
            return self._serve_by_state(request, session, body, follows_unanswered)
        except ProtocolError:
            raise
        except Exception as error:
            what = f'token of {frame_bytes} bytes' if is_token else describe_frame(frame, frame_bytes)
            logger.error('%r: %s failed during a login', request.connection, what, exc_info=error)
            request.answer = None
            request.connection.close(f'{what}: failed during a login')
        return 0

    cdef int _serve_by_state(self, Request request, Session session, Cursor *body, bint follows_unanswered) except -1:
        authentication = self._node.authentication
        cdef const uint8_t *frame = body.at
        cdef Py_ssize_t frame_bytes = body.end - body.at
        if session.takes_bare_tokens:
            # Copy at most one byte more than the longest token has. This suffices to refuse a longer token, and a frame
            # of a re-authentication may have 100 MiB.
            answer = authentication.take_bare_token(request, PyBytes_FromStringAndSize(
                <char *>frame, min(frame_bytes, <Py_ssize_t>(MOST_TOKEN_BYTES + 1))))
            if answer is not None:
                request.send(answer)
            return 0
        verdict = authentication.verdict(
            request.connection, session, read_int16(frame) if frame_bytes >= HEADER_BYTES else -1)
        if verdict == CLOSE:
            request.connection.close(f'{describe_frame(frame, frame_bytes)}: not before a login', INFO)
        elif self._read_header(request, body):
            if verdict == SERVE:
                request.access = session.access
                return self._serve_request(request, session, body, frame_bytes, follows_unanswered)
            refuse_among_tokens(authentication, request, body)
        elif verdict != SERVE:
            request.connection.close_after_flush()      # after the versions of ApiVersions that are served
        return 0

    cdef int _begin_metering(self, Request request, Session session, Py_ssize_t frame_bytes) except -1:
        """Measure the request if its client has a quota. Requests before a login are not measured."""
        if session is not None and session.state < LOGGED_IN:
            return 0
        principal = ANONYMOUS if session is None else session.principal
        meter = self._quotas.meter(principal.name, request.name_of_client() or '')
        if meter is not None:
            request.begin_metering(meter, frame_bytes)
        return 0

    cdef int write_deferred(self) except -1:
        self._tick.write()
        return 0

    cdef int end_loan(self) except -1:
        return self._tick.end_loan()

    cdef bint _read_header(self, Request request, Cursor *cursor) except -1:
        """Read the header into `request`, and advance the cursor to the body. Return False if the request has been
        answered."""
        cdef Py_ssize_t left = cursor.end - cursor.at
        cdef const uint8_t *fields
        cdef int16_t key, client_id_bytes
        if left < HEADER_BYTES:
            raise ProtocolError(f'request header of at least {HEADER_BYTES} bytes expected, found {left}')
        fields = take(cursor, HEADER_BYTES)
        key = read_int16(fields)
        request.api = self._apis[key] if 0 <= key < MOST_API_KEYS else None
        if request.api is None:
            raise ProtocolError(f'api key {key} is not served')
        request.version = read_int16(fields + 2)
        request.correlation_id = read_int32(fields + 4)
        if not request.api.min_version <= request.version <= request.api.max_version:
            self._refuse_version(request)
            return False
        self._counts.served[key][request.version] += 1
        if left > request.api.max_frame_bytes:
            raise ProtocolError(f'a frame of at most {request.api.max_frame_bytes} bytes expected')
        client_id_bytes = read_int16(fields + 8)
        left -= HEADER_BYTES
        if client_id_bytes > left:
            raise ProtocolError(f'client id: {client_id_bytes} bytes expected, {left} left')
        if client_id_bytes >= 0:
            request.client_id_text = self._client_id_of(take(cursor, client_id_bytes), client_id_bytes)
        if request.version >= request.api.tags_from:
            skip_tags(cursor)       # no known tag concerns a broker
        return True

    cdef int _refuse_version(self, Request request) except -1:
        """If the request is ApiVersions, answer it in version 0, with the versions that are served (KIP-511). Otherwise
        raise ProtocolError."""
        cdef Api api = request.api
        if api.key != API_VERSIONS:
            raise ProtocolError(f'version {request.version} is not served, only {api.min_version}-{api.max_version}')
        request.version = 0
        self._counts.served[API_VERSIONS][0] += 1
        code = ErrorCode.UNSUPPORTED_VERSION
        request.reply(api.failure(None, code, code.message, 0))
        return 0

    cdef object _client_id_of(self, const uint8_t *text, int16_t length):
        if (length != PyBytes_GET_SIZE(self._client_id_bytes)
                or memcmp(text, PyBytes_AS_STRING(self._client_id_bytes), length) != 0):
            found = PyBytes_FromStringAndSize(<const char *>text, length)
            try:
                name = found.decode()
            except UnicodeDecodeError as error:
                raise ProtocolError(f'client id is not UTF-8: {error}') from None
            self._client_id_bytes = found
            self._client_id = name if length <= LONGEST_KEPT_TEXT else found
        return self._client_id


@cython.final
cdef class HeldRequest:
    """A request at its point, before its effect, with a copy of its body. Call it to serve the request.

    Instead, `fail` answers it with an error, and `drop` closes its connection. If the connection has closed meanwhile,
    a call drops the request.
    """
    cdef Dispatcher dispatcher
    cdef Request request
    cdef Session session
    cdef bytearray body
    cdef Py_ssize_t frame_bytes
    cdef bint follows_unanswered
    cdef int64_t arrived_us

    @property
    def connection_id(self):
        return self.request.connection_id

    def __call__(self):
        cdef Dispatcher dispatcher = self.dispatcher
        cdef Cursor body = self._cursor()
        if not self.request.is_wanted():
            return
        dispatcher.arrived_us = self.arrived_us
        dispatcher._watch.restart()
        try:
            dispatcher._serve_request(self.request, self.session, &body, self.frame_bytes, self.follows_unanswered)
        except ProtocolError as error:
            self._close(error)
        finally:
            dispatcher.end_loan()
        self.request.end_part()
        dispatcher._watch.lap(self.request)

    def fail(self, code, str message):
        """Answer the request with an error, before it has any effect."""
        cdef Cursor body = self._cursor()
        try:
            fail_undecoded(self.request, &body, KafkaError(code, message))
        except ProtocolError as error:
            self._close(error)

    def drop(self, reason):
        self.request.connection.close(reason)

    cdef Cursor _cursor(self):
        cdef Cursor body
        body.at = <uint8_t *>PyByteArray_AS_STRING(self.body)
        body.end = body.at + PyByteArray_GET_SIZE(self.body)
        return body

    cdef int _close(self, error) except -1:
        self.request.connection.close(f'{self.request.api.key.name} v{self.request.version}, '
                                      f'{self.frame_bytes} bytes: {error}')
        return 0


cdef RequestSteps steps_of(Steps steps, Request request, bytearray body):
    """Return the steps of a request, with what it names. A body that does not decode names nothing."""
    cdef RequestSteps found = RequestSteps.__new__(RequestSteps)
    cdef Cursor cursor
    from kbroker.protocol.targets import named_in       # only needed under control

    registry = request.node.topics

    def name_of(topic_id):
        topic = registry.topic_by_id(topic_id)
        return None if topic is None else topic.name

    found.steps = steps
    found.facts = {'api': request.api.name, 'version': request.version, 'client_id': request.name_of_client(),
                   'correlation_id': request.correlation_id}
    cursor.at = <uint8_t *>PyByteArray_AS_STRING(body)
    cursor.end = cursor.at + PyByteArray_GET_SIZE(body)
    try:
        found.facts.update(named_in(decode_bytes(request.api.request_class, &cursor, request.version), name_of))
    except ProtocolError:
        pass        # the handler closes the connection
    return found


cdef int serve(Handler handler, Request request, Cursor body) except -1:
    """Call the handler. If it raises an error, decode the body, which the error response needs, and send that
    response."""
    cdef Cursor left = body
    try:
        return handler.serve(request, &left)
    except ProtocolError:
        raise
    except Exception as error:
        return fail_undecoded(request, &body, error)


cdef int refuse_among_tokens(authentication, Request request, Cursor *body) except -1:
    """Answer a request that is not allowed during the exchange of tokens. Use the error response of its API."""
    if body.end - body.at > MOST_REFUSED_BYTES:
        raise ProtocolError('not among the tokens of a login')
    code = ErrorCode.ILLEGAL_SASL_STATE
    message = decode_bytes(request.api.request_class, body, request.version)
    response = request.api.failure(message, code, code.message, request.version)
    authentication.refuse(request, run_to_end(response) if isinstance(response, Generator) else response)
    return 0


cdef str describe_frame(const uint8_t *start, Py_ssize_t frame_bytes):
    """Return a text with the API, version and size of a frame, for the log line about the connection that the frame
    closes."""
    if frame_bytes < HEADER_BYTES:
        return f'frame of {frame_bytes} bytes'
    key, version = read_int16(start), read_int16(start + 2)
    name = ApiKey(key).name if key in ApiKey.__members__.values() else f'api key {key}'
    return f'{name} v{version}, {frame_bytes} bytes'
