# cython: language_level=3
from libc.stdint cimport int32_t, int64_t

from kbroker.clock cimport Timer


cdef class Member:
    cdef public str member_id
    cdef public str group_instance_id
    cdef public str client_id
    cdef public str client_host
    cdef public int32_t rebalance_timeout_ms
    cdef public int32_t session_timeout_ms
    cdef public object protocols
    cdef public bytes assignment
    cdef public bint is_new
    cdef public object join_done
    cdef public object sync_done
    cdef public Timer session_timer
    cdef public int64_t session_deadline_ms


cdef class ClassicGroup:
    cdef readonly str group_id
    cdef public object state_since_ms
    cdef public object state
    cdef public object previous_state
    cdef public int32_t generation
    cdef public str protocol_type
    cdef public str protocol_name
    cdef public str leader_id
    cdef public dict members
    cdef public dict static_member_ids
    cdef public dict pending_members
    cdef public set unsynced_member_ids
    cdef public int32_t stored_generation
    cdef public frozenset subscribed_topics
    cdef public bint member_added
    cdef public Timer join_timer
    cdef public Timer sync_timer

    cpdef Member check_member(self, str member_id, str group_instance_id)
    cpdef check_generation(self, int32_t generation)
    cpdef check_alive(self)
