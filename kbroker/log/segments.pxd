# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t, uint8_t

from kbroker.log.fs.file cimport File
from kbroker.log.segment cimport Segment
from kbroker.log.time_search cimport TimeSearch
from kbroker.record.batch cimport BatchFields


cdef class LogSlice:
    cdef readonly File file
    cdef readonly int64_t position
    cdef readonly int64_t size_bytes
    cdef readonly int64_t start_offset
    cdef readonly int64_t end_offset


@cython.final
cdef class Segments:
    cdef object fs
    cdef str directory
    cdef object clock
    cdef object config
    cdef list all                       # all segments, oldest first
    cdef readonly Segment active        # the last segment
    cdef int64_t segment_bytes
    cdef int64_t segment_ms

    cdef int update_config(self, config) except -1
    cdef int set_roll_jitter(self) except -1
    cdef bint must_roll(self, const BatchFields *batch, int64_t size) except -1
    cdef Segment open_next(self, int64_t base_offset)
    cdef int drop_first(self, Py_ssize_t count) except -1
    cdef int replace(self, list old, list new) except -1
    cdef Py_ssize_t number_of(self, int64_t offset) noexcept
    cdef Segment find(self, int64_t offset)
    cdef LogSlice slice(self, int64_t offset, int64_t max_bytes, int64_t upper_bound_offset, bint min_one_batch)
    cdef bytes aborted_rows(self, int64_t fetch_offset, int64_t upper_bound_offset)
    cdef int walk_aborted(self, Py_ssize_t first, int64_t fetch_offset, int64_t upper_bound_offset, uint8_t *into,
                          Py_ssize_t *count) except -1
    cpdef TimeSearch search_time(self, int64_t timestamp_ms, int64_t start_offset, int64_t end_offset)
    cpdef TimeSearch search_greatest(self)
