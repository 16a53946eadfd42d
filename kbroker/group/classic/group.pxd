# cython: language_level=3
from libc.stdint cimport int32_t, int64_t

from kbroker.base.clock cimport Timer
from kbroker.group.classic.members cimport Assignors, Member, ParkedRequests, Subscriptions
from kbroker.group.commits cimport Commit
from kbroker.group.group cimport Group


cdef class ClassicGroup(Group):
    cdef readonly object state_since_ms
    cdef readonly object state
    cdef readonly object previous_state
    cdef readonly int32_t generation
    cdef readonly str protocol_name
    cdef public str leader_id
    cdef readonly dict members
    cdef readonly dict static_member_ids
    cdef readonly dict pending_members
    cdef public int32_t stored_generation
    cdef public bint member_added
    cdef public Timer join_timer
    cdef public Timer sync_timer
    cdef readonly Py_ssize_t metadata_bytes
    cdef readonly Assignors assignors
    cdef readonly ParkedRequests parked
    cdef Subscriptions _subscriptions
    cdef readonly int64_t revision

    cpdef Member check_member(self, str member_id, str group_instance_id)
    cpdef check_generation(self, int32_t generation)
    cdef bint is_standalone(self, Commit commit) except -1
    cdef int count(self, Member member, int sign) except -1
