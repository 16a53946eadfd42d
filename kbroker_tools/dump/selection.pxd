"""The selection of batches and records by `--where`."""
from libc.stdint cimport int64_t

from kbroker.record.batch cimport BatchFields


cdef class Selection:
    cdef public int64_t first_offset
    cdef public int64_t last_offset
    cdef public int64_t first_timestamp_ms
    cdef public int64_t last_timestamp_ms
    cdef public object producer_id
    cdef public bint transactional
    cdef public bint control
    cdef bint admits(self, const BatchFields *batch, bint is_old) except -1
    cdef bint admits_record(self, int64_t offset, int64_t timestamp_ms) noexcept
