# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t

from kbroker.log.fs.file cimport File
from kbroker.record.batch cimport BatchFields, HeaderFault

cdef enum:
    SEARCH_BYTES = 4096         # for a search, which reads only the headers of about one index interval
    SCAN_BYTES = 1048576        # for a scan, which reads whole batches


cdef class BatchWalk:
    cdef File file
    cdef BatchFields fields
    cdef HeaderFault fault
    cdef readonly int64_t position
    cdef readonly int64_t next_position
    cdef readonly int64_t end
    cdef uint8_t *window
    cdef int64_t capacity
    cdef int64_t window_start
    cdef int64_t window_bytes

    cdef const uint8_t *need(self, int64_t position, int64_t size) except NULL nogil
    cdef int refill(self, int64_t position, int64_t size) except -1
    cdef bint next(self) except -1 nogil
    cdef const uint8_t *data(self) except NULL nogil
    cdef bint crc_matches(self) except -1


cdef BatchWalk walk_batches(File file, int64_t position, int64_t end, int64_t window_bytes)
cdef int64_t find_batch(File file, int64_t position, int64_t end) except -2
