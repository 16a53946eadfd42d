# cython: language_level=3
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.base.completion cimport Steps
from kbroker.base.time_counts cimport TimeCounts
from kbroker.protocol.slices cimport Encoding
from kbroker.security.access cimport Access
from kbroker.wire.bytes cimport Cursor, write_int32


cdef enum:
    MOST_API_KEYS = 128         # no API that a broker of this kind could serve has a higher key
    MOST_VERSIONS = 32          # of an API


cdef struct RequestTimes:
    TimeCounts queue
    TimeCounts work
    TimeCounts wait


@cython.final
cdef class RequestCounts:
    cdef int64_t served[MOST_API_KEYS][MOST_VERSIONS]
    cdef readonly dict errors           # counts by (API key, version, error code)
    cdef RequestTimes *times[MOST_API_KEYS]     # NULL before the first timed request of the API

    cdef int count_error(self, int key, int version, int code, int64_t count) except -1
    cdef RequestTimes *times_of(self, int key) except NULL


cdef class Request


@cython.final
cdef class RequestSteps:
    cdef Steps steps
    cdef dict facts

    cdef bint reach(self, str point, Request request, proceed) except -1


@cython.final
cdef class Request:
    cdef readonly object node
    cdef readonly Api api
    cdef readonly object connection
    cdef readonly Access access         # what the client may do; None: everything
    cdef object client_id_text          # str or None; a long one as bytes, which take up to a fourth of the memory
    cdef readonly int version
    cdef readonly int32_t correlation_id
    cdef int64_t sequence               # the connection's number for it
    cdef bint is_being_served
    cdef public object audit_answer     # called with the answer of an administrative API; else None
    cdef object answer                  # given while the request is being served, else None
    cdef RequestSteps steps             # None unless a test controls the broker
    cdef object meter                   # of the client's quotas, until the answer is made; None if no quota applies
    cdef object mutations               # the partitions that are created and deleted, if they have a quota
    cdef bint is_timed                  # the parts of this request are measured
    cdef bint charges_time              # the client's time has a quota, and the time of this request is not recorded
    cdef int64_t network_us             # of the client's connection, for that quota
    cdef int64_t began_us               # of a request whose times are counted; 0 after its answer, or if they are not
    cdef int64_t timed_us               # taken in parts that have ended
    cdef int64_t timed_since_us         # when the current part began; 0 between parts
    cdef readonly int32_t throttle_ms

    cdef object name_of_client(self)
    cpdef bint may(self, int operation, int resource_type, str name, bint quiet=*) except -1
    cpdef reply(self, response)
    cdef int send(self, object segments) except -1
    cdef bint holds_reply(self, object segments) except -1
    cdef Encoding begin_reply(self, response)
    cdef bint write_part(self, Encoding encoding) except -1
    cdef int begin_metering(self, object meter, Py_ssize_t frame_bytes) except -1
    cdef int begin_part(self) noexcept
    cdef int end_part(self) noexcept
    cdef int settle(self) except -1
    cdef int record_time(self) except -1
    cdef int count_error(self, int code) except -1
    cdef int end_timing(self) except -1
    cdef int throttle(self, int64_t throttle_ms) except -1
    cpdef let_next_pass(self)
    cdef int fail(self, object body, object error) except -1
    cdef tuple cause_of(self, object error)

    cdef inline Py_ssize_t header_bytes(self) noexcept:
        """Return the size of the reply's header."""
        return 4 + (self.version >= self.api.answer_tags_from)

    cdef inline uint8_t *put_header(self, uint8_t *at) except NULL:
        """Write the reply's header. Return the position after the header. From then on, `throttle_ms` does not
        change."""
        if self.meter is not None:
            self.settle()
        write_int32(at, self.correlation_id)
        at[4] = 0       # an empty tag buffer; overwritten by the body in versions without tags
        return at + self.header_bytes()


cdef class Handler:
    cdef bint may_follow_unwritten

    cdef int serve(self, Request request, Cursor *body) except -1


cdef class DecodingHandler(Handler):
    cdef object handle
    cdef bint is_long           # `handle` is a generator function
    cdef object request_class   # None until the first request
    cdef str request_name


cdef class Api:
    cdef readonly object key
    cdef readonly int min_version
    cdef readonly int max_version
    cdef readonly Py_ssize_t max_frame_bytes
    cdef readonly object advertised_min_version
    cdef readonly object error_response
    cdef tuple with_setting     # (its name, the last version where it is on); None
    cdef bint is_slow
    cdef object handle
    cdef str name               # of its messages, without Request and Response
    cdef int tags_from                  # the first version whose request header has a tag buffer
    cdef int answer_tags_from           # likewise the reply's header
    cdef tuple handlers                 # a Handler by version, from min_version on


cdef int fail_undecoded(Request request, Cursor *body, object error) except -1
