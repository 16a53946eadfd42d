# cython: language_level=3
from libc.stdint cimport int64_t

from kbroker.record.batch cimport BatchFields
from kbroker.wire.bytes cimport Cursor


cdef class ProduceRules:
    cdef readonly int64_t max_message_bytes
    cdef readonly int64_t max_record_bytes
    cdef readonly int64_t segment_bytes
    cdef readonly bint is_compacted
    cdef readonly bint is_log_append_time
    cdef readonly int64_t timestamp_before_max_ms
    cdef readonly int64_t timestamp_after_max_ms
    cdef readonly int compression
    cdef readonly object compression_level
    cdef readonly Py_ssize_t max_decompressed_bytes


cdef int refuse_batch(str message) except -1
cdef int64_t check_records(Cursor cursor, const BatchFields *batch, ProduceRules rules, int64_t now_ms) except -2
