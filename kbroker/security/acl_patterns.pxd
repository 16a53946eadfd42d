# cython: language_level=3
cimport cython


@cython.final
cdef class Rules:
    cdef int denied
    cdef int allowed
    cdef dict decisions

    cdef int add(self, object decision) except -1
    cdef bint remove(self, object entry) except -1
    cdef int note(self, int operation, int permission, bint exists) except -1
    cdef list entries(self)
    cdef object find(self, tuple operations, bint denies)


@cython.final
cdef class AclsOfPattern:
    cdef readonly tuple pattern
    cdef dict owners


@cython.final
cdef class Node:
    cdef str text
    cdef Py_ssize_t depth
    cdef dict children
    cdef AclsOfPattern acls

    cdef Node child(self, str text)


@cython.final
cdef class PrefixTree:
    cdef Node root

    cpdef put(self, str prefix, AclsOfPattern acls)
    cpdef remove(self, str prefix)
    cpdef list covering(self, str name)
