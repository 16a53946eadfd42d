# cython: language_level=3
from libc.stdint cimport int32_t, int64_t

from kbroker.apis.frame_handler cimport FrameHandler


cdef class RequestContext:
    cdef readonly object broker
    cdef readonly object api_key
    cdef readonly int version
    cdef readonly int32_t correlation_id
    cdef readonly object client_id
    cdef object connection
    cdef int64_t sequence
    cdef bint answer_has_tags

    cpdef reply(self, response)


cdef class Api:
    cdef readonly object key
    cdef readonly int min_version
    cdef readonly int max_version
    cdef readonly object handle
    cdef readonly object error_response
    cdef readonly object advertised_min_version
    cdef readonly FrameHandler frame_handler
