# cython: language_level=3
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.log.fs.file cimport File
from kbroker.record.batch cimport BatchFields
from kbroker.record.timestamp_scan cimport TimestampScan

cdef enum:
    WINDOW_BYTES = 16384        # the bytes of one read, for headers and small batches


cdef class TimeSearch:
    cdef File file
    cdef int64_t position
    cdef int64_t end
    cdef int64_t timestamp_ms
    cdef int64_t start_offset
    cdef readonly int64_t end_offset
    cdef readonly bint is_over
    cdef readonly tuple found
    cdef uint8_t *window
    cdef int64_t window_position
    cdef int64_t window_bytes

    cdef bint read_header(self, BatchFields *batch, bint waits) except -1
    cdef bint fill(self, int64_t size, bint waits) except -1
    cdef int adopt(self, TimestampScan scan) except -1
    cdef int search_batch(self, const BatchFields *batch) except -1


cdef TimeSearch search_batches(File file, int64_t position, int64_t end, int64_t timestamp_ms, int64_t start_offset)
