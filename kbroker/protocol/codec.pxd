# cython: language_level=3
"""The codec, for those who know in C what they have."""
cimport cython
from libc.stdint cimport uint8_t

from kbroker.wire.bytes cimport Cursor


@cython.final
cdef class Writer:
    """A growing buffer, and the segments that are already closed."""
    cdef:
        uint8_t *start
        Py_ssize_t size
        Py_ssize_t capacity
        list segments           # None when only bytes may come out

    cdef inline uint8_t *room(self, Py_ssize_t bytes_count) except NULL:
        """Space for so many bytes more, counted as written."""
        cdef uint8_t *at
        if bytes_count > self.capacity - self.size:
            self.grow(bytes_count)
        at = self.start + self.size
        self.size += bytes_count
        return at

    cdef int grow(self, Py_ssize_t bytes_count) except -1
    cdef bytes close_segment(self)


cdef object decode_some(object message_class, object data, int version, Py_ssize_t position, bint whole, Py_ssize_t *end)
cdef object decode_bytes(object message_class, Cursor *cursor, int version)
cdef Writer encode_some(object message, int version, object prefix, list segments)
cdef list encode_segments_behind(object message, int version, bytes prefix)
