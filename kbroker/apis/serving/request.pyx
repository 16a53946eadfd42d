"""Requests that the broker serves, and the declarations of their APIs.

Each module of `kbroker.apis` that serves an API declares the API in a variable `API`. The declaration says which
versions are served and by which handler. A handler is a Python function that gets the decoded message, or a `Handler`
in C that reads the bytes itself.

Requests that take long share the loop as long work (`long_work`). Each of them holds a decoded message and a growing
response in memory, so few of them may run at a time:

- A request whose body has at most SMALL_BYTES is decoded immediately, and the first part of its handler runs
  immediately. If the handler has further parts, they wait for one of four places.
- A longer body is decoded immediately, too, unless it has more than AT_ONCE_BYTES or its handler is a generator
  function. In these cases it waits for one of two places before it is decoded.
- A body of more than MEDIUM_BYTES waits for the single place that these bodies share.
- If the API `is_slow`, a body of more than SMALL_BYTES waits for the single place of slow requests. Such a request may
  occupy this place for seconds, while a worker reads files.
"""
import functools
import logging
from collections.abc import Generator
from functools import partial
from inspect import isgeneratorfunction
from types import GeneratorType

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport INT32_MAX, int64_t, uint8_t

from kbroker.base.clock cimport now_us
from kbroker.base.completion cimport Steps
from kbroker.base.long_work cimport Line, LongWork
from kbroker.base.time_counts cimport count_time, described_times
from kbroker.protocol.codec cimport decode_bytes
from kbroker.protocol.slices cimport Encoding, begin_encoding
from kbroker.wire.bytes cimport Cursor

from kbroker.apis.serving.audited_changes import CHANGES, with_audit
from kbroker.apis.serving.long_answers import call_handler
from kbroker.apis.serving.request_fields import fields_of
from kbroker.base.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.base.long_work import charge_nothing
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey, request_header_version, response_header_version
from kbroker.protocol.codec import EncodeError
from kbroker.protocol.slices import decode_in_slices, free_in_slices
from kbroker.security.escape import shown
from kbroker.security.principal import ANONYMOUS

cdef enum:
    PRODUCE = 0
    WRITE_TXN_MARKERS = 27
    SMALL_BYTES = 4 * 1024
    # The largest body that is decoded in one part. It takes about 3 ms if the body has only the smallest elements.
    AT_ONCE_BYTES = 64 * 1024
    MEDIUM_BYTES = 1024 * 1024
    # The largest accepted frame of every API but Produce. Kafka accepts up to socket.request.max.bytes, but copying a
    # larger frame would hold the loop. Clients send less: 100,000 partitions in one request take 2 to 5 MB.
    LARGEST_BYTES = 8 * 1024 * 1024

LONGEST_FRAME_BYTES = LARGEST_BYTES

logger = logging.getLogger('kbroker.apis')


@cython.final
cdef class RequestCounts:
    """The counters of the requests of a broker: by API, version and error, and their times.

    `errors` counts each error code in each response, as Apache Kafka does: a response with errors of three partitions
    counts three times. The times are those of requests with `FrameServer.arrived_us`.
    """

    def __init__(self):
        self.errors = {}

    def __dealloc__(self):
        cdef int key
        for key in range(MOST_API_KEYS):
            PyMem_Free(self.times[key])

    cdef int count_error(self, int key, int version, int code, int64_t count) except -1:
        place = key, version, code
        self.errors[place] = self.errors.get(place, 0) + count
        return 0

    cdef RequestTimes *times_of(self, int key) except NULL:
        if self.times[key] == NULL:
            self.times[key] = <RequestTimes *>PyMem_Calloc(1, sizeof(RequestTimes))
            if self.times[key] == NULL:
                raise MemoryError
        return self.times[key]

    def requests(self):
        """Return a list of (API key, version, number of requests)."""
        cdef int key, version
        return [(key, version, self.served[key][version]) for key in range(MOST_API_KEYS)
                for version in range(MOST_VERSIONS) if self.served[key][version]]

    def timed(self):
        """Return a list of (API key, times in the queue, times of work, times of waiting). Each of the times is
        (bounds in seconds, counts, sum in seconds)."""
        cdef int key
        return [(key, described_times(&self.times[key].queue), described_times(&self.times[key].work),
                 described_times(&self.times[key].wait)) for key in range(MOST_API_KEYS) if self.times[key] != NULL]


@cython.final
cdef class RequestSteps:
    """The points that a request passes, and what it names. Only the requests of a controlled broker have this."""

    cdef bint reach(self, str point, Request request, proceed) except -1:
        return self.steps.reach(point, dict(self.facts), proceed)


@cython.final
cdef class HeldReply:
    """A reply at its point. Call it to send the reply, or call `drop` to close the connection instead."""
    cdef Request request
    cdef object segments

    @property
    def connection_id(self):
        return self.request.connection_id

    def __call__(self):
        segments, self.segments = self.segments, None
        self.request.connection.reply(self.request.sequence, segments)

    def drop(self, reason):
        self.segments = None
        self.request.connection.close(reason)


@cython.final
@cython.freelist(64)
cdef class Request:
    """One request of a connection, from its header to its reply.

    A handler calls `reply` (or, in C, `send`) once, while it serves the request or later. Until then, the connection's
    next request waits, because Kafka's clients rely on the order. If all effects of a request are visible and the
    handler only waits for the disk, it calls `let_next_pass`, and the next request is served. The replies are sent in
    the order of the requests nevertheless.
    """

    def __repr__(self):
        key = 'a request' if self.api is None else f'{self.api.key.name} v{self.version}'
        return f'{key} of client {shown(self.client_id)} at {self.client_host}'

    @property
    def client_id(self):
        """The client id in the request header, or None."""
        return self.name_of_client()

    cdef object name_of_client(self):
        return self.client_id_text.decode() if type(self.client_id_text) is bytes else self.client_id_text

    @property
    def client_host(self):
        return self.connection.client_host

    @property
    def connection_id(self):
        return self.connection.connection_id

    @property
    def principal(self):
        """The Principal as which the client has logged in."""
        session = self.connection.session
        return ANONYMOUS if session is None else session.principal

    @property
    def advertised_address(self):
        """The host and port to which clients of the connection's listener connect."""
        return self.node.advertised_address(self.connection.listener_name)

    cpdef bint may(self, int operation, int resource_type, str name, bint quiet=False) except -1:
        """Return whether the client may do an operation with a resource. `security/acl_codes` has the codes of
        operations and resource types.

        With `quiet`, a denial is not audited: the result only determines which resources the client sees.
        """
        return self.access is None or self.access.may(operation, resource_type, name, self, quiet)

    cpdef reply(self, response):
        """Encode the first part of a response immediately and the other parts as long work, then send the response.

        If the connection has closed, the reply is dropped.
        """
        cdef Encoding encoding = self.begin_reply(response)
        if not self.write_part(encoding):
            self.start_work(finish_reply(self, encoding, response))

    cdef Encoding begin_reply(self, response):
        cdef uint8_t header[5]
        cdef uint8_t *end = self.put_header(header)
        if self.audit_answer is not None:
            self.audit_answer(response)
        if self.throttle_ms and hasattr(response, 'throttle_time_ms'):
            response.throttle_time_ms = self.throttle_ms
        return begin_encoding(response, self.version, PyBytes_FromStringAndSize(<char *>header, end - header))

    cdef bint write_part(self, Encoding encoding) except -1:
        """Encode the next part of a reply. After the last part, send the reply. Return False if parts are left."""
        try:
            if not encoding.write_part():
                return False
        except EncodeError:
            logger.exception('the answer to %s v%d cannot be encoded', self.api.key.name, self.version)
            self.connection.close('its answer cannot be encoded')
        else:
            if encoding.out.errors is not None:
                for code, count in encoding.out.errors.items():
                    (<RequestCounts?>self.node.request_counts).count_error(self.api.key, self.version, code, count)
            self.send(encoding.segments)
            encoding.segments = None
        return True

    def reply_bare(self, bytes token not None):
        """Send a login token without a response header."""
        self.send(token)

    # ---- quotas

    cdef int begin_metering(self, object meter, Py_ssize_t frame_bytes) except -1:
        """Begin to measure the cost of the request. Record the size of a Produce request immediately, so that an
        exceeded quota delays the connection's next request."""
        self.meter = meter
        if self.api.key == PRODUCE:
            self.throttle(meter.record_produced(frame_bytes))
        if meter.measures_time and self.api.key != WRITE_TXN_MARKERS:
            self.is_timed = self.charges_time = True
            self.network_us = self.connection.take_network_us()     # of this request, and of the answer before it
            self.begin_part()
        return 0

    cdef int begin_part(self) noexcept:
        """Start the stopwatch, because the loop begins to work on this request."""
        if self.is_timed and self.timed_since_us == 0:
            self.timed_since_us = now_us()
        return 0

    cdef int end_part(self) noexcept:
        """Stop the stopwatch until the next part of this request begins."""
        if self.timed_since_us:
            self.timed_us += now_us() - self.timed_since_us
            self.timed_since_us = 0
        return 0

    cdef int settle(self) except -1:
        """Record the cost of the request. The caller is about to write the answer, which has the throttle time."""
        self.record_time()
        if self.mutations is not None:
            self.throttle(self.mutations.throttle_ms)
        self.meter = None
        return 0

    cdef int record_time(self) except -1:
        if self.charges_time:
            self.charges_time = False
            self.end_part()
            self.throttle(self.meter.record_time(self.timed_us + self.network_us))
            self.is_timed = self.began_us != 0
            self.begin_part()
        return 0

    cdef int throttle(self, int64_t throttle_ms) except -1:
        """Put the throttle time into the answer, and do not read from the connection until this time has passed
        (KIP-219)."""
        if throttle_ms > self.throttle_ms:
            self.throttle_ms = <int32_t>min(throttle_ms, <int64_t>INT32_MAX)
            self.connection.mute(self.throttle_ms)
        return 0

    @property
    def most_fetched_bytes(self):
        """The most bytes of fetched records that the client's quota allows in all its windows together, or None without
        a quota."""
        return None if self.meter is None else self.meter.most_fetched_bytes

    def charge_fetched(self, int64_t size_bytes):
        """Record the bytes of an answer that is sent even if it exceeds the quota. If it does, throttle the client
        afterwards."""
        if self.meter is not None:
            self.throttle(self.meter.record_fetched(size_bytes))

    def charge_mutations(self, int strict_since):
        """Return a function that counts created or deleted partitions for the client's quota. Its argument is a number
        of partitions.

        From version `strict_since` on, the function raises KafkaError THROTTLING_QUOTA_EXCEEDED if the quota is used
        up.
        """
        if self.meter is None:
            return charge_nothing
        self.mutations = self.meter.mutations(is_strict=self.version >= strict_since)
        return self.mutations.charge

    # ---- replies

    def is_wanted(self):
        """Return whether the client still waits for the reply. A request that is no longer wanted is dropped if its
        work has not begun."""
        return not getattr(self.connection, 'is_closed', False)

    cdef int send(self, object segments) except -1:
        """Send an encoded reply with its header. `segments` is bytes or a list of segments, or None if the request gets
        no reply."""
        if self.is_being_served and segments is not None:
            if self.answer is not None:
                raise ValueError(f'{self.api.key.name} v{self.version} is answered already')
            self.answer = segments
            return 0
        if self.began_us:
            self.end_timing()
        if self.steps is not None and segments is not None and self.holds_reply(segments):
            return 0
        self.connection.reply(self.sequence, segments)
        return 0

    cdef bint holds_reply(self, object segments) except -1:
        """Return whether the reply of a request with `steps` must wait at its point, or is not sent at all."""
        cdef HeldReply held = HeldReply.__new__(HeldReply)
        held.request = self
        held.segments = segments
        return self.steps.reach('reply', self, held)

    cdef int end_timing(self) except -1:
        """Count the times of the request, because it is answered.

        The time of work is that of its parts, and the rest since its beginning is the time of waiting.
        """
        cdef RequestCounts counts = self.node.request_counts
        cdef RequestTimes *times = counts.times_of(self.api.key)
        self.end_part()
        count_time(&times.work, self.timed_us)
        count_time(&times.wait, max(<int64_t>0, now_us() - self.began_us - self.timed_us))
        self.began_us = 0
        return 0

    cdef int count_error(self, int code) except -1:
        """Count an error code in a response that a handler in C writes. The codec counts those that it writes."""
        return (<RequestCounts?>self.node.request_counts).count_error(self.api.key, self.version, code, 1)

    def start_work(self, steps, done=None):
        """Run a generator as long work for this request; `LongWork.start` describes `done`."""
        (<LongWork?>self.node.long_work).start(timed(self, steps) if self.is_timed else steps, done)

    cpdef let_next_pass(self):
        """Allow the connection's next request to be handled before this one is answered."""
        self.connection.let_next_pass(self.sequence)

    cdef int fail(self, object body, object error) except -1:
        """Answer with the error that the handler raised."""
        self.start_work(failing(self, body, error))
        return 0

    cdef tuple cause_of(self, object error):
        """Return the error code and the message for an exception that the handler raised. Log an exception that shows a
        bug."""
        if isinstance(error, KafkaError):
            return error.code, str(error)
        logger.error('%s v%d from %s failed', self.api.key.name, self.version, shown(self.client_id), exc_info=error)
        return ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR.message


def timed(Request request not None, steps):
    """Run the generator of a request, and add the time of its parts to the measured time of the request."""
    while True:
        request.begin_part()
        try:
            value = next(steps)
        except StopIteration as stop:
            return stop.value
        finally:
            request.end_part()
        yield value


cdef class Handler:
    """A handler of some versions of an API, which reads the bytes of the request.

    `may_follow_unwritten` is True if the handler does not read files. Then the appends of the connection's previous
    requests, which may be deferred to the end of the tick, need not be written first.
    """

    cdef int serve(self, Request request, Cursor *body) except -1:
        """Read the body and serve the request. Answer with `request.send`, before or after returning.

        The bytes of the body may be overwritten. They stay valid until the server's `end_loan`. If the body does not
        parse, raise ProtocolError before the request has any effect.
        """
        raise NotImplementedError


cdef class DecodingHandler(Handler):
    """A handler that decodes the body with the codec and calls `handle(request, body)`.

    `handle` returns the response, or None if it calls `request.reply` itself. If it is a generator function, the
    generator runs as long work and returns the response.
    """

    def __init__(self, handle, request_name):
        self.handle = handle
        self.is_long = isgeneratorfunction(handle)
        self.request_name = request_name

    cdef int serve(self, Request request, Cursor *body) except -1:
        """Decode a short body in one part and call `handle` immediately. Let a longer body be decoded in parts, as long
        work.

        The single part exists for speed: decoding a commit of one offset takes 6,300 instructions in one part, but
        11,500 in parts.
        """
        cdef Py_ssize_t body_bytes = body.end - body.at
        if self.request_class is None:      # most APIs of a broker are never used: a start does not build their classes
            self.request_class = getattr(messages, self.request_name)
        if body_bytes > AT_ONCE_BYTES or (self.is_long and body_bytes > SMALL_BYTES):
            wait_in_line(request, body_bytes, serve_in_slices(
                request, self.request_class, self.handle, PyBytes_FromStringAndSize(<char *>body.at, body_bytes)))
            return 0
        # Bytes after the message are ignored, as in Kafka: librdkafka sends three such bytes when it asks for all
        # topics.
        message = decode_bytes(self.request_class, body, request.version)
        try:
            response = self.handle(request, message)
        except ProtocolError:
            raise
        except Exception as error:
            return request.fail(message, error)
        if isinstance(response, GeneratorType):
            steps = answering(request, message, response)
            (<LongWork?>request.node.long_work).small_requests.begin(
                timed(request, steps) if request.is_timed else steps, request.is_wanted)
        elif response is not None:
            request.reply(response)
        return 0


cdef int wait_in_line(Request request, Py_ssize_t body_bytes, steps) except -1:
    """Run the steps of a request once one of the places for requests of its size is free."""
    cdef LongWork long_work = request.node.long_work
    cdef Line line = (long_work.slow_requests if request.api.is_slow
                      else long_work.large_requests if body_bytes > MEDIUM_BYTES else long_work.medium_requests)
    line.start(timed(request, steps) if request.is_timed else steps, request.is_wanted)
    return 0


def serve_in_slices(Request request not None, request_class, handle, data):
    """Decode a long body in parts, call the handler and send its response. A generator."""
    try:
        message = yield from decode_in_slices(request_class, data, request.version)
    except ProtocolError as error:
        request.connection.close(f'{request.api.key.name} v{request.version}, {len(data)} bytes: {error}')
        return
    data = None
    yield from answering(request, message, call_handler(handle, request, message))


def answering(Request request not None, message, steps):
    """Run `steps`, the generator of the handler, and send the response to `message` that it returns. If it returns
    None, the handler sends the reply itself."""
    try:
        response = yield from steps
    except ProtocolError as error:
        request.connection.close(f'{request.api.key.name} v{request.version}: {error}')
        return
    except Exception as error:
        steps = failing(request, message, error)
    else:
        if response is None:        # the handler still needs the message, for a reply that it sends later
            return
        steps, response = finish_reply(request, request.begin_reply(response), response), None
    yield from steps
    yield from free_in_slices(message)


def failing(Request request not None, message, error):
    """Send the response to a request whose handler raised this error. Close the connection instead if the API has no
    response for errors. A generator."""
    code, text = request.cause_of(error)
    error = request.answer = None
    response = request.api.failure(message, code, text, request.version)
    if isinstance(response, Generator):
        response = yield from response
    if response is None:
        request.connection.close(f'{request.api.key.name} failed, and closing is the only way to say so: {text}')
    else:
        yield from finish_reply(request, request.begin_reply(response), response)


def finish_reply(Request request not None, Encoding encoding not None, response):
    """Encode the remaining parts of a response, send the response and free it. A generator."""
    while not request.write_part(encoding):
        yield
    yield from free_in_slices(response)


cdef int fail_undecoded(Request request, Cursor *body, object error) except -1:
    """Answer a request whose handler in C raised this error. Decode the body first, because the error response is
    created from it."""
    cdef Py_ssize_t body_bytes = body.end - body.at
    cdef DecodingHandler failing_handler
    if body_bytes > LARGEST_BYTES:
        logger.error('%r failed with %d bytes', request, body_bytes, exc_info=error)
        request.connection.close(f'{request.api.key.name} of {body_bytes} bytes failed: {error}')
        return 0
    failing_handler = DecodingHandler(partial(raise_again, error), f'{request.api.name}Request')
    return failing_handler.serve(request, body)


def raise_again(error, _request, _message):
    """Raise `error`. This is the handler of a request that is decoded only because its handler in C raised `error`."""
    raise error


cdef class Api:
    """The declaration of a served API. The answer to ApiVersions is created from all declarations.

    - `handle` is a function for DecodingHandler, a Handler, or {(first version, last version): function or Handler}.
    - `error_response(body, code, message, version)` returns the reply to a request that failed as a whole, or None if
      the failure can only be reported by closing the connection. It is a generator function if the reply can be long.
      It may be omitted if the response class has a top-level error code.
    - `advertised_min_version` is the lowest version that ApiVersions names, if it differs from the lowest version
      served.
    - `with_setting` is (the name of a setting, the last version that is served if the setting is on).
    - `is_slow` is True if a worker may have to read files for seconds until the response is complete.
    - `bounds` has the most elements of the arrays that a handler in C pulls, as `RequestFields.set_bounds` takes them.
    """

    def __init__(self, key, int min_version, int max_version, handle, error_response=None, advertised_min_version=None,
                 with_setting=None, *, bint is_slow=False, bounds=None):
        name = key.name.title().replace('_', '')
        versions = range(min_version, max_version + 1)
        self.key = key
        self.min_version = min_version
        self.max_version = max_version
        self.max_frame_bytes = INT32_MAX if key is ApiKey.PRODUCE else LARGEST_BYTES
        self.advertised_min_version = advertised_min_version
        self.error_response = error_response
        self.with_setting = with_setting
        self.is_slow = is_slow
        self.handle = handle
        self.name = name
        if bounds is not None:
            fields_of(f'{name}Request').set_bounds(bounds)
        self.tags_from = next(
            (version for version in versions if request_header_version(key, version) >= 2), max_version + 1)
        self.answer_tags_from = next(
            (version for version in versions if response_header_version(key, version) >= 1), max_version + 1)
        table = handle if isinstance(handle, dict) else {(min_version, max_version): handle}
        if max_version >= MOST_VERSIONS:
            raise ValueError(f'{key.name}: versions below {MOST_VERSIONS} expected, found {max_version}')
        if sorted(version for first, last in table for version in range(first, last + 1)) != list(versions):
            raise ValueError(f'{key.name}: handlers for versions {min_version}-{max_version} expected, found '
                             f'{list(table)}')
        self.handlers = tuple(
            self._handler(next(found for (first, last), found in table.items() if first <= version <= last))
            for version in versions)

    def _handler(self, handle):
        if isinstance(handle, Handler):
            return handle
        if self.key in CHANGES:
            handle = with_audit(handle)
        return DecodingHandler(handle, f'{self.name}Request')

    def under(self, config):
        """Return the declaration with the versions that are served under these settings."""
        if self.with_setting is None:
            return self
        name, max_version = self.with_setting
        if not getattr(config, name.replace('.', '_')):
            return self
        return up_to(self, max_version)

    @property
    def request_class(self):
        """The class of the request's message."""
        return getattr(messages, f'{self.name}Request')

    def failure(self, body, code, message, int version):
        """Return the response to a request that failed as a whole. Return None if the API has no response for errors,
        or a generator that returns the response if it may be long."""
        if self.error_response is not None:
            return self.error_response(body, code, message, version)
        response = getattr(messages, f'{self.name}Response')(error_code=int(code))
        if hasattr(response, 'error_message'):
            response.error_message = message
        return response


@functools.cache
def up_to(Api api not None, int max_version):
    """Return a copy of the declaration whose last version is `max_version`. The copy is cached, because each
    ApiVersions request needs it."""
    return Api(api.key, api.min_version, max_version, api.handle, api.error_response, api.advertised_min_version,
               is_slow=api.is_slow)
