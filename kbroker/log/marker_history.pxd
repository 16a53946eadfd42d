# cython: language_level=3
cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t


cdef struct NotedMarker:
    int64_t producer_id
    int64_t marker_offset
    int64_t first_offset        # the first offset of the transaction that the marker ended, -1 if none was open
    int16_t producer_epoch      # the producer's epoch before the marker
    int32_t coordinator_epoch


@cython.final
cdef class MarkerHistory:
    cdef NotedMarker *markers   # an array of `room` markers, used as a ring when it has its full size
    cdef Py_ssize_t room
    cdef Py_ssize_t count
    cdef Py_ssize_t oldest
    cdef int64_t known_from     # the history has all markers at or above this offset

    cdef int clear(self, int64_t end_offset) noexcept
    cdef int note(self, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch,
                  int64_t first_offset, int64_t marker_offset) except -1
    cdef const NotedMarker *newest(self, Py_ssize_t number) noexcept
    cdef int grow(self) except -1
