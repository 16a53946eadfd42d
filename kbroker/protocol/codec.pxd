# cython: language_level=3
"""The C interface of the codec."""
cimport cython
from libc.stdint cimport uint8_t

from kbroker.wire.bytes cimport Cursor


@cython.final
cdef class Writer:
    """A growing buffer, and the segments that are closed already."""
    cdef:
        uint8_t *start
        Py_ssize_t size
        Py_ssize_t capacity
        list segments           # None if only bytes may be written

    cdef inline uint8_t *room(self, Py_ssize_t bytes_count) except NULL:
        """Reserve `bytes_count` bytes, counted as written, and return their start."""
        cdef uint8_t *at
        if bytes_count > self.capacity - self.size:
            self.grow(bytes_count)
        at = self.start + self.size
        self.size += bytes_count
        return at

    cdef int grow(self, Py_ssize_t bytes_count) except -1
    cdef bytes close_segment(self)


cdef object decode_some(object message_class, object data, int version, Py_ssize_t position, bint whole,
                        Py_ssize_t *end)
cdef object decode_bytes(object message_class, Cursor *cursor, int version)
cdef Writer encode_some(object message, int version, object prefix, list segments)
cdef list encode_segments_behind(object message, int version, bytes prefix)
