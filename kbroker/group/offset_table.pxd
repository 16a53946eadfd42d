# cython: language_level=3
from libc.stdint cimport int64_t

from kbroker.group.memory cimport GroupMemory
from kbroker.group.records cimport CommittedOffset, OffsetKey


cdef class OffsetTable:
    # By group and key: what is committed; how many transactions hold one; how many appends are under way, and how many
    # of those in a transaction. By producer id and key: what is pending.
    cdef dict _committed
    cdef dict _pending
    cdef dict _pending_counts
    cdef dict _in_flight
    cdef dict _in_flight_transactional
    cdef GroupMemory _memory

    cpdef dict committed(self, group_id)
    cpdef bint is_stable(self, OffsetKey key) except -1
    cpdef bint knows(self, OffsetKey key) except -1
    cpdef note_appended(self, list keys, list offsets, bint transactional)
    cpdef note_refused(self, list keys, list offsets, bint transactional)
    cpdef note_landed(self, OffsetKey key, bint transactional)
    cpdef commit(self, OffsetKey key, CommittedOffset committed)
    cpdef add_pending(self, int64_t producer_id, OffsetKey key, CommittedOffset committed)
    cdef int keep(self, dict offsets, OffsetKey key, CommittedOffset committed) except -1
    cdef int drop(self, dict offsets, OffsetKey key) except -1
    cpdef forget(self, OffsetKey key)
    cpdef end_transaction(self, int64_t producer_id, bint commit)
