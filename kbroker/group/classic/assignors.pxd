# cython: language_level=3
from kbroker.group.classic.member cimport Member


cdef class Assignors:
    cdef str _group_id
    cdef dict _members          # Member by id
    cdef dict _counts

    cdef int count(self, Member member, int sign) except -1
