"""A reader of batches of any magic. It reads them one after another, through a window of bounded size."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kbroker.record.batch cimport BatchFields


cdef class SegmentReader:
    cdef readonly object path
    cdef readonly int64_t position          # the position of the current batch in the file
    cdef readonly int64_t next_position
    cdef readonly int64_t end
    cdef readonly int64_t bytes_read
    cdef readonly int32_t size_bytes        # the size of the current batch
    cdef readonly int magic
    cdef readonly bint at_end               # no complete batch follows the last one
    cdef BatchFields fields                 # magic 0 and 1 set only base_offset, attributes and max_timestamp_ms
    cdef int fd
    cdef int64_t max_bytes
    cdef uint8_t *window
    cdef int64_t window_start
    cdef Py_ssize_t window_bytes
    cdef Py_ssize_t capacity

    cdef const uint8_t *need(self, int64_t position, Py_ssize_t size) except NULL
    cdef int refill(self, int64_t position, Py_ssize_t size) except -1
    cdef const uint8_t *data(self) except NULL
    cdef int64_t last_offset(self) noexcept
    cdef uint32_t stated_crc(self) except? 0xffffffff
    cdef uint32_t computed_crc(self) except? 0xffffffff
    cdef int refuse(self, str reason) except -1
    cdef int read_legacy_header(self) except -1
    cpdef bint step(self) except -1
