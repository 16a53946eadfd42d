# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t

from kbroker.log.fs.file cimport File
from kbroker.log.fs.lazy_file cimport LazyFile


cdef enum:
    PAIR_BYTES = 16             # producer id and first offset of an aborted transaction, as in a Fetch response


cdef struct Row:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset
    int64_t last_stable_offset


cdef class TransactionIndex:
    cdef readonly str path
    cdef readonly bint exists
    cdef object fs
    cdef int64_t base_offset
    cdef LazyFile lazy_file
    cdef bint is_read
    cdef Row *entries
    cdef int64_t *lowest        # the lowest first offset of each full block of entries
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity

    cdef object row(self, Py_ssize_t number)
    cdef int read(self) except -1
    cdef int make_room(self, Py_ssize_t count) except -1
    cdef int add(self, const Row *row) except -1
    cdef Py_ssize_t touching(self, int64_t fetch_offset, int64_t upper_bound_offset, uint8_t *into) except -1
    cdef Py_ssize_t first_reaching(self, int64_t offset, bint by_stable_offset) noexcept
    cdef bint is_complete(self, int64_t upper_bound_offset) noexcept
