# cython: language_level=3
"""The C interface of codec.pyx."""
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

from kbroker.protocol.plan cimport Plan, Step
from kbroker.wire.bytes cimport Cursor


cdef struct Input:
    Cursor cursor
    const uint8_t *start


@cython.final
cdef class Writer:
    """A growing buffer for the current segment, and the list of finished segments."""
    cdef:
        uint8_t *start
        Py_ssize_t size
        Py_ssize_t capacity
        list segments           # None if only bytes may be written
        dict errors             # counts by error code in fields for error codes; None before the first error

    cdef inline uint8_t *room(self, Py_ssize_t bytes_count) except NULL:
        """Reserve `bytes_count` bytes and return their address. They count as written."""
        cdef uint8_t *at
        if bytes_count > self.capacity - self.size:
            self.grow(bytes_count)
        at = self.start + self.size
        self.size += bytes_count
        return at

    cdef int grow(self, Py_ssize_t bytes_count) except -1
    cdef bytes close_segment(self)
    cdef int count_error(self, int code) except -1


cdef object decode_some(object message_class, object data, int version, Py_ssize_t position, bint whole,
                        Py_ssize_t *end)
cdef object decode_bytes(object message_class, Cursor *cursor, int version)
cdef Writer encode_some(object message, int version, object prefix, list segments)

# The functions with which slices.pyx reads and writes the parts of long messages.
cdef Plan find_plan(object message_class, int version)
cdef object begin_struct(Plan plan)
cdef Py_ssize_t read_count(Input *data, Step *step) except -2
cdef object read_value(Input *data, Step *step, bint nullable, object view)
cdef int read_field(Input *data, Step *step, object message, object view) except -1
cdef int read_tags(Input *data, Plan plan, object message, object view) except -1
cdef object placed_error(Input *reader, object message_class, int version, object error)
cdef Plan find_writing_plan(object message, int version)
cdef int check_type(object message, Plan plan) except -1
cdef int write_length(Writer out, Py_ssize_t length, bint compact, bint short) except -1
cdef int write_value(Writer out, object value, Step *step, bint nullable) except -1
cdef int write_field(Writer out, PyObject *value, Step *step) except -1
cdef int write_tags(Writer out, object message, Plan plan) except -1
cdef object field_error(Plan plan, Py_ssize_t i, object error)
