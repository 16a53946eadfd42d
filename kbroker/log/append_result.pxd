# cython: language_level=3
from libc.stdint cimport int64_t


cdef struct Appended:
    int64_t base_offset
    int64_t last_offset
    int64_t append_time_ms          # -1 unless the topic stamps records with it, or for a duplicate that batch's timestamp
    int64_t log_start_offset
    bint is_duplicate


cdef class AppendResult:
    cdef readonly int64_t base_offset
    cdef readonly int64_t last_offset
    cdef readonly int64_t append_time_ms
    cdef readonly int64_t log_start_offset
    cdef readonly bint is_duplicate


cdef AppendResult result_of(const Appended *appended)
