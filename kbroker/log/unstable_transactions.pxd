# cython: language_level=3
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from kbroker.log.producer_entry cimport ProducerEntry


cdef struct Completed:              # a transaction whose marker the high watermark has not passed
    int64_t marker_offset
    int64_t first_offset


@cython.final
cdef class UnstableTransactions:
    cdef PyObject *first_open           # borrowed: the open transaction with the lowest first offset
    cdef PyObject *last_open
    cdef Completed *completed           # in use from first_completed to end_completed; offsets grow
    cdef Py_ssize_t first_completed
    cdef Py_ssize_t end_completed
    cdef Py_ssize_t completed_room

    cdef int clear(self) noexcept
    cdef int open(self, ProducerEntry entry, int64_t first_offset) noexcept
    cdef int close(self, ProducerEntry entry) noexcept
    cdef int complete(self, ProducerEntry entry, int64_t marker_offset) except -1
    cdef int make_room(self) except -1
    cdef int64_t first(self) noexcept
    cdef int64_t stable_offset_without(self, int64_t producer_id, int64_t marker_offset) noexcept
    cpdef on_high_watermark(self, int64_t high_watermark)
