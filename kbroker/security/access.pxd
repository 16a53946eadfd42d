# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class DecisionCaches:
    cdef object authorizer
    cdef readonly int64_t generation
    cdef readonly Py_ssize_t held_bytes
    cdef public Py_ssize_t most_bytes
    cdef public Py_ssize_t most_bytes_of_one

    cdef int make_room(self, Access keep) except -1


@cython.final
cdef class Access:
    cdef object __weakref__
    cdef readonly DecisionCaches caches
    cdef readonly object principal
    cdef readonly object host
    cdef int64_t generation         # the generation of the ACLs that the decisions follow from
    cdef Py_ssize_t held_bytes
    cdef list decisions             # by operation and resource type: None, or a Decision by name
    cdef bint logs_allowed

    cpdef bint may(self, int operation, int resource_type, str name, object request=*, bint quiet=*) except -1
    cpdef bint may_by_type(self, int operation, int resource_type, object request=*) except -1
    cdef object decide(self, int operation, int resource_type, object name)
    cdef int remember(self, int slot, object name, object decision) except -1
    cpdef int forget(self) except -1
