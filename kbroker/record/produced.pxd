# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t

from kbroker.record.batch cimport BatchFields
from kbroker.record.produced_records cimport ProduceRules


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
