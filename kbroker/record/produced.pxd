# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t

from kbroker.record.batch cimport BatchFields


cdef class ProduceRules:
    cdef readonly int64_t max_message_bytes
    cdef readonly int64_t segment_bytes
    cdef readonly bint is_compacted
    cdef readonly bint is_log_append_time
    cdef readonly int64_t timestamp_before_max_ms
    cdef readonly int64_t timestamp_after_max_ms
    cdef readonly int compression
    cdef readonly object compression_level
    cdef readonly Py_ssize_t max_decompressed_bytes


cdef class ExpandedRecords:
    cdef uint8_t *data
    cdef Py_ssize_t size_bytes
    cdef Py_ssize_t capacity
    cdef Py_ssize_t max_bytes

    cpdef expect(self, Py_ssize_t size_bytes)
    cpdef add(self, piece)
    cdef int append(self, const uint8_t *data, Py_ssize_t size_bytes) except -1 nogil


cdef Py_ssize_t room_on_loop(const BatchFields *fields, ProduceRules rules) noexcept
cdef bytearray prepare(uint8_t *data, Py_ssize_t size_bytes, bint readonly, BatchFields *fields, ProduceRules rules,
                       int64_t now_ms, bint allow_zstd, Py_ssize_t *room_bytes)


cdef class Validation:
    cdef uint8_t *data
    cdef Py_ssize_t size_bytes
    cdef BatchFields batch
    cdef ProduceRules rules
    cdef int64_t now_ms
    cdef bint allow_zstd
    cdef Py_ssize_t room_bytes
    cdef bytearray replacement
