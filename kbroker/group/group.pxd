# cython: language_level=3
from libc.stdint cimport int32_t

from kbroker.group.commits cimport Commit
from kbroker.group.memory cimport GroupMemory


cdef class Group:
    cdef readonly str group_id
    cdef readonly str protocol_type
    cdef readonly Py_ssize_t held_bytes
    cdef GroupMemory _memory

    cpdef hold(self, Py_ssize_t more_bytes)
    cpdef hold_in(self, GroupMemory memory)
    cpdef check_alive(self)
    cpdef check_commit(self, Commit commit, int version)
    cpdef check_transactional_commit(self, Commit commit, int version)
    cpdef check_fetch(self, str member_id, int32_t member_epoch)
