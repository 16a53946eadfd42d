# cython: language_level=3
from libc.stdint cimport int64_t

from kbroker.log.fs.file cimport File


cdef class LogSlice:
    cdef readonly File file
    cdef readonly int64_t position
    cdef readonly int64_t size_bytes
    cdef readonly int64_t start_offset
    cdef readonly int64_t end_offset
