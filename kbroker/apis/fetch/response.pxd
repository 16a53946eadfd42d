# cython: language_level=3
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker.apis.serving.request cimport Request


cdef class Buffer:
    cdef uint8_t *start
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    cdef uint8_t *room(self, Py_ssize_t size) except NULL
    cdef int wrote(self, const uint8_t *end) noexcept
    cdef bytes take(self)


cdef class ResponseWriter:
    cdef Buffer buffer
    cdef int version
    cdef list news
    cdef Py_ssize_t at          # in `news`
    cdef Py_ssize_t end         # of the run of partitions of one topic that `at` is in
    cdef list segments

    cdef int begin(self, Request request, int16_t error_code, int32_t session_id) except -1
    cdef bint write(self, Request request, Py_ssize_t count) except -1


cdef list write_response(Request request, int16_t error_code, int32_t session_id, list news)
cdef int64_t response_bytes(list news, int version) except -1
cdef ResponseWriter long_response(list news, int version)
