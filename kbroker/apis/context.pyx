"""What a handler sees of a request, and what it declares of itself."""
import logging

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.apis.answers cimport put_no_tags
from kbroker.apis.frame_handler cimport FrameHandler
from kbroker.protocol.codec cimport encode_segments_behind
from kbroker.wire.bytes cimport write_int32

from kbroker.protocol.codec import EncodeError

logger = logging.getLogger('kbroker.apis')

NO_REPLY = object()
"""Returned by a handler whose request is never answered: Produce with acks=0 that went well."""


cdef class RequestContext:
    """One request under way.

    A handler returns its response, or returns None and calls `reply` once, later. Until then the connection's next
    request waits, as Kafka's clients may rely on; a handler that has made every effect of its request visible and only
    waits for the disk calls `let_next_pass`, and replies still leave in request order.
    """

    def __init__(self, broker, api_key, int version, int32_t correlation_id, client_id, connection, int64_t sequence,
                 bint answer_has_tags):
        self.broker = broker
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.connection = connection
        self.sequence = sequence
        self.answer_has_tags = answer_has_tags

    @property
    def client_host(self):
        return self.connection.client_host

    @property
    def connection_id(self):
        return self.connection.connection_id

    @property
    def advertised_address(self):
        """Host and port that this client is told: those of the listener that it came through."""
        return self.broker.advertised_address(self.connection.listener_name)

    cpdef reply(self, response):
        """Answer a parked request. The connection may be gone: then the answer is dropped."""
        cdef uint8_t header[5]
        cdef uint8_t *end
        if response is NO_REPLY:
            self.connection.reply(self.sequence, None)
            return
        write_int32(header, self.correlation_id)
        end = put_no_tags(header + 4, self.answer_has_tags)
        try:
            segments = encode_segments_behind(
                response, self.version, PyBytes_FromStringAndSize(<char *>header, end - header))
        except EncodeError:
            logger.exception('the answer to %s v%d cannot be encoded', self.api_key.name, self.version)
            self.connection.close('its answer cannot be encoded')
        else:
            self.connection.reply(self.sequence, segments)

    def let_next_pass(self):
        """Allow the connection's next request to be handled before this one is answered."""
        self.connection.let_next_pass(self.sequence)

    def close(self, reason):
        """Close the connection: the only answer left when the request is one that is not answered."""
        self.connection.close(reason)


cdef class Api:
    """A served API: `ApiVersions` is derived from these, one per file of this room.

    `handle`: called with the context and the request; None for an Api whose `frame_handler`, which serves requests from
    their bytes, serves every version. `error_response` builds the answer to a request that failed as a whole: (request,
    code, message, version) -> response, or None where the request wants no answer. `advertised_min_version`: the lowest
    version that ApiVersions names, where it differs from the lowest that is served.
    """

    def __init__(self, key, int min_version, int max_version, handle, error_response=None, advertised_min_version=None,
                 FrameHandler frame_handler=None):
        self.key = key
        self.min_version = min_version
        self.max_version = max_version
        self.handle = handle
        self.error_response = error_response
        self.advertised_min_version = advertised_min_version
        self.frame_handler = frame_handler
