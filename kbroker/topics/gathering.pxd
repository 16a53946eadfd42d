# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t


cdef enum:
    LARGEST_KEPT_BYTES = 64 * 1024  # from here on a copy would gain nothing


cdef class Gatherer:
    cdef bint is_gathered       # among those that `settle` will call
    cdef bint has_borrowed      # bytes that go away when the loan ends

    cdef int write_file(self) except -1
    cdef int take_over(self) except -1
    cdef int settle(self) except -1


cdef class Gathering:
    cdef readonly int64_t turn
    cdef uint8_t *arena
    cdef Py_ssize_t used
    cdef list gatherers
    cdef list borrowers

    cdef uint8_t *take_room(self, Py_ssize_t size) except NULL
    cdef int give_back(self, Py_ssize_t size) noexcept
    cdef int join(self, Gatherer gatherer, bint borrows) except -1
    cdef int make_room(self) except -1
    cdef int loan_ends(self) except -1
    cpdef settle(self)
