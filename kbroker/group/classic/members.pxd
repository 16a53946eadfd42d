# cython: language_level=3
from libc.stdint cimport int32_t, int64_t

from kbroker.base.clock cimport Timer
from kbroker.base.completion cimport Completion


cdef class Member:
    cdef readonly str member_id
    cdef readonly str group_instance_id
    cdef readonly str client_id
    cdef readonly str client_host
    cdef readonly int32_t rebalance_timeout_ms
    cdef readonly int32_t session_timeout_ms
    cdef readonly tuple protocols
    cdef readonly bytes assignment
    cdef readonly Py_ssize_t held_bytes
    cdef readonly Py_ssize_t metadata_bytes
    cdef readonly bint is_new
    cdef readonly Completion join_done
    cdef readonly Completion sync_done
    cdef public Timer session_timer
    cdef public int64_t session_deadline_ms

    cdef int adopt_fields(self, Member other) except -1
    cdef int expect_life(self, int64_t now_ms) except -1


cdef class ParkedRequests:
    cdef dict _members          # {member id: Member}
    cdef readonly Py_ssize_t joined_count
    cdef readonly set unsynced_member_ids

    cpdef park_join(self, Member member, Completion done)
    cpdef Completion take_join(self, Member member)
    cpdef park_sync(self, Member member, Completion done)
    cpdef Completion take_sync(self, Member member)
    cpdef note_synced(self, Member member)
    cdef int await_syncs(self) except -1
    cdef int forget(self, str member_id) except -1
    cdef int rename(self, str member_id, str new_id) except -1


cdef class Assignors:
    cdef str _group_id
    cdef dict _members          # {member id: Member}
    cdef dict _counts

    cdef int count(self, Member member, int sign) except -1


cdef class Subscriptions:
    cdef object _topics         # a set of names; None if it cannot be read, NOT_READ before `read`
    cdef int64_t _version       # a number that changes when the members change

    cdef int forget(self) except -1
    cdef bint are_known(self) except -1
    cdef bint have(self, str topic) except -1
