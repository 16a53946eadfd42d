"""A request on its way through the broker, and the declaration of the API that serves it.

Each file of this room that serves an API declares it as `API`. The declaration says which versions are served and by
which handler: a Python function that gets the decoded message, or a `Handler` in C that reads the bytes itself.
"""
import logging
from functools import partial
from types import GeneratorType

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t

from kbroker.long_work cimport LongWork
from kbroker.protocol.codec cimport decode_bytes, encode_segments_behind
from kbroker.wire.bytes cimport Cursor

from kbroker.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.protocol import messages
from kbroker.protocol.api_keys import request_header_version, response_header_version
from kbroker.protocol.codec import EncodeError

logger = logging.getLogger('kbroker.apis')


@cython.final
@cython.freelist(64)
cdef class Request:
    """One request of a connection, from its header to its reply.

    A handler calls `reply` (or, in C, `send`) once, at once or later. Until then the connection's next request waits:
    Kafka's clients rely on that. A handler that has made all effects of its request visible and only waits for the disk
    calls `let_next_pass`. Replies leave in the order of the requests in any case.
    """

    def __repr__(self):
        key = 'a request' if self.api is None else f'{self.api.key.name} v{self.version}'
        return f'{key} of client {self.client_id!r} at {self.client_host}'

    @property
    def client_host(self):
        return self.connection.client_host

    @property
    def connection_id(self):
        return self.connection.connection_id

    @property
    def advertised_address(self):
        """Host and port that clients of this listener connect to."""
        return self.node.advertised_address(self.connection.listener_name)

    cpdef reply(self, response):
        """Encode a response and send it. If the connection has closed, the reply is dropped."""
        cdef uint8_t header[5]
        cdef uint8_t *end = self.put_header(header)
        try:
            segments = encode_segments_behind(
                response, self.version, PyBytes_FromStringAndSize(<char *>header, end - header))
        except EncodeError:
            logger.exception('the answer to %s v%d cannot be encoded', self.api.key.name, self.version)
            self.connection.close('its answer cannot be encoded')
        else:
            self.send(segments)

    cdef int send(self, object segments) except -1:
        """Send the encoded reply with its header: bytes, or a list of segments. None if the request gets no reply."""
        if self.is_being_served and segments is not None:
            if self.answer is not None:
                raise ValueError(f'{self.api.key.name} v{self.version} is answered already')
            self.answer = segments
        else:
            self.connection.reply(self.sequence, segments)
        return 0

    cpdef let_next_pass(self):
        """Allow the connection's next request to be handled before this one is answered."""
        self.connection.let_next_pass(self.sequence)

    cdef int fail(self, object body, object error) except -1:
        """Answer with the error that the handler raised. An error other than KafkaError is logged as a bug."""
        if isinstance(error, KafkaError):
            code, message = error.code, str(error)
        else:
            logger.error('%s v%d from %s failed', self.api.key.name, self.version, self.client_id, exc_info=error)
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            message = code.message
        self.answer = None
        response = self.api.failure(body, code, message, self.version)
        if response is None:
            self.connection.close(
                f'{self.api.key.name} failed, and closing is the only way to say so: {message}')
        else:
            self.reply(response)
        return 0


cdef class Handler:
    """Serves some versions of an API from the bytes of the request.

    `may_follow_unwritten`: serving needs no file contents that earlier requests of this connection have deferred to the
    end of the tick.
    """

    cdef int serve(self, Request request, Cursor *body) except -1:
        """Read the body and answer with `request.send`, at once or later.

        The bytes may be written to. They stay valid until the server's `end_loan`. Raises ProtocolError for a body that
        does not parse; nothing has happened then.
        """
        raise NotImplementedError


cdef class DecodingHandler(Handler):
    """Decodes the body with the generic codec and calls `handle(request, body)`.

    The function returns the response, or None if it calls `request.reply` itself. If it is a generator function, it
    runs as long work, and the value that it returns is the response.
    """

    def __init__(self, handle, request_class):
        self.handle = handle
        self.request_class = request_class

    cdef int serve(self, Request request, Cursor *body) except -1:
        # Kafka ignores bytes behind a request, and librdkafka puts three there when it asks for all topics.
        message = decode_bytes(self.request_class, body, request.version)
        try:
            response = self.handle(request, message)
        except ProtocolError:
            raise
        except Exception as error:
            return request.fail(message, error)
        if isinstance(response, GeneratorType):
            (<LongWork?>request.node.long_work).start(response, partial(answer_later, request, message))
        elif response is not None:
            request.reply(response)
        return 0


def answer_later(Request request not None, message, error, response):
    """Answer a request whose handler ran as long work."""
    if isinstance(error, ProtocolError):
        request.connection.close(f'{request.api.key.name} v{request.version}: {error}')
    elif error is not None:
        request.fail(message, error)
    elif response is not None:
        request.reply(response)


cdef class Api:
    """The declaration of a served API. `ApiVersions` is derived from these.

    `handle` is a function for DecodingHandler, a Handler, or a table of both: {(first version, last version): handler}.
    `error_response(body, code, message, version)` builds the reply to a request that failed as a whole; it returns None
    if only closing the connection can report the failure. Without it the response class has a top-level error code.
    `advertised_min_version`: the lowest version that ApiVersions names, if it differs from the lowest that is served.
    """

    def __init__(self, key, int min_version, int max_version, handle, error_response=None, advertised_min_version=None):
        name = key.name.title().replace('_', '')
        versions = range(min_version, max_version + 1)
        self.key = key
        self.min_version = min_version
        self.max_version = max_version
        self.advertised_min_version = advertised_min_version
        self.error_response = error_response
        self.request_class = getattr(messages, f'{name}Request')
        self.response_class = getattr(messages, f'{name}Response')
        self.tags_from = next(
            (version for version in versions if request_header_version(key, version) >= 2), max_version + 1)
        self.answer_tags_from = next(
            (version for version in versions if response_header_version(key, version) >= 1), max_version + 1)
        table = handle if isinstance(handle, dict) else {(min_version, max_version): handle}
        if sorted(version for first, last in table for version in range(first, last + 1)) != list(versions):
            raise ValueError(f'{key.name}: handlers for versions {min_version}-{max_version} expected, found '
                             f'{list(table)}')
        self.handlers = tuple(
            self._handler(next(found for (first, last), found in table.items() if first <= version <= last))
            for version in versions)

    def _handler(self, handle):
        return handle if isinstance(handle, Handler) else DecodingHandler(handle, self.request_class)

    def failure(self, body, code, message, int version):
        """Return the response to a request that failed as a whole, or None."""
        if self.error_response is not None:
            return self.error_response(body, code, message, version)
        response = self.response_class(error_code=int(code))
        if hasattr(response, 'error_message'):
            response.error_message = message
        return response
