# cython: language_level=3
"""The C interface of slices.pyx: the encoder. C code uses it to write the first part of an answer without a generator.
Most answers have only one part."""
cimport cython

from kbroker.protocol.codec cimport Writer
from kbroker.protocol.plan cimport Plan, Step


@cython.final
cdef class Place:
    cdef:
        Place outer             # of the struct that holds this one, or None
        object message
        Plan plan
        Py_ssize_t next_step
        list elements           # of the array that is open, or None
        Py_ssize_t next_element
        Py_ssize_t count


@cython.final
cdef class Encoding:
    cdef:
        Writer out
        list segments
        object message          # until its first part is written
        object message_class
        int version
        Place place             # None if all is written
        Py_ssize_t part_left

    cdef int enter(self, object message, Plan plan) except -1
    cdef bint write_part(self) except -1
    cdef bint is_part_done(self) noexcept
    cdef int close_segment(self, Py_ssize_t fewest_bytes) except -1
    cdef int advance(self, Place place) except -1
    cdef int open_array(self, Place place, object values, Step *step) except -1
    cdef bint write_elements(self, Place place, Step *step) except -1


cdef Encoding begin_encoding(object message, int version, bytes prefix)
