# cython: language_level=3
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.wire.bytes cimport Cursor, write_int32


@cython.final
cdef class Request:
    cdef readonly object node
    cdef readonly Api api
    cdef readonly object connection
    cdef readonly object client_id      # str, or None
    cdef readonly int version
    cdef readonly int32_t correlation_id
    cdef int64_t sequence               # the connection's number for it
    cdef bint is_being_served
    cdef object answer                  # given while the request is being served, else None

    cpdef reply(self, response)
    cdef int send(self, object segments) except -1
    cdef int refuse_to_encode(self) except -1
    cpdef let_next_pass(self)
    cdef int fail(self, object body, object error) except -1

    cdef inline Py_ssize_t header_bytes(self) noexcept:
        """Return the size of the reply's header."""
        return 4 + (self.version >= self.api.answer_tags_from)

    cdef inline uint8_t *put_header(self, uint8_t *at) noexcept:
        """Write the reply's header. Return the position behind it."""
        write_int32(at, self.correlation_id)
        at[4] = 0       # an empty tag buffer; overwritten by the body in versions without tags
        return at + self.header_bytes()


cdef class Handler:
    cdef bint may_follow_unwritten

    cdef int serve(self, Request request, Cursor *body) except -1


cdef class DecodingHandler(Handler):
    cdef object handle
    cdef bint is_long           # `handle` is a generator function
    cdef object request_class


cdef class Api:
    cdef readonly object key
    cdef readonly int min_version
    cdef readonly int max_version
    cdef readonly Py_ssize_t max_frame_bytes
    cdef readonly object advertised_min_version
    cdef readonly object error_response
    cdef object request_class
    cdef object response_class
    cdef int tags_from                  # the first version whose request header has a tag buffer
    cdef int answer_tags_from           # likewise the reply's header
    cdef tuple handlers                 # a Handler by version, from min_version on


cdef int fail_undecoded(Request request, Cursor *body, object error) except -1
