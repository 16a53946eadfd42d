# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t


cdef class KeptFrame:
    cdef readonly bytearray buffer


cdef class FrameServer:
    cdef public int64_t arrived_us      # when the frame to serve arrived; 0: the request is not timed

    cdef object serve(self, object connection, object session, int64_t sequence, uint8_t *frame,
                      Py_ssize_t frame_bytes, bint follows_unanswered)
    cdef int write_deferred(self) except -1
    cdef int end_loan(self) except -1
