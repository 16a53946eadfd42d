# cython: language_level=3
from libc.stdint cimport int32_t, int64_t

from kbroker.base.clock cimport Timer
from kbroker.base.completion cimport Completion
from kbroker.group.commits cimport Commit
from kbroker.group.group cimport Group


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

    cdef int take_fields(self, Member other) except -1


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
    cdef readonly set unsynced_member_ids
    cdef public int32_t stored_generation
    cdef public bint member_added
    cdef public Timer join_timer
    cdef public Timer sync_timer
    cdef readonly Py_ssize_t joined_count
    cdef readonly Py_ssize_t metadata_bytes
    cdef dict _protocol_counts
    cdef object _subscribed_topics
    cdef readonly int64_t revision

    cpdef Member check_member(self, str member_id, str group_instance_id)
    cpdef check_generation(self, int32_t generation)
    cpdef park_join(self, Member member, Completion done)
    cpdef Completion take_join(self, Member member)
    cpdef park_sync(self, Member member, Completion done)
    cpdef Completion take_sync(self, Member member)
    cdef bint is_standalone(self, Commit commit) except -1
    cdef int count(self, Member member, int sign) except -1
    cdef int expect_life(self, Member member, int64_t now_ms) except -1
