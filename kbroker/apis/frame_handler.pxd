# cython: language_level=3
from libc.stdint cimport int32_t, int64_t, uint8_t


cdef struct Frame:
    uint8_t *start              # of the header; may be written to
    Py_ssize_t size
    Py_ssize_t position         # of the body
    int64_t sequence            # what the connection calls it
    int version
    int32_t correlation_id


cdef class FrameHandler:
    cdef bint may_follow_unwritten

    cdef object serve(self, object broker, object connection, object client_id, const Frame *frame)
