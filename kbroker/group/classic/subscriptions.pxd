# cython: language_level=3
from libc.stdint cimport int64_t


cdef class Subscriptions:
    cdef object _topics         # a set, None if they are not known, NOT_READ before `read`
    cdef int64_t _version       # changes when the members change

    cdef int forget(self) except -1
    cdef bint are_known(self) except -1
    cdef bint have(self, str topic) except -1
