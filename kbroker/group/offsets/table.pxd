# cython: language_level=3
from libc.stdint cimport int64_t

from kbroker.group.memory cimport GroupMemory
from kbroker.group.records cimport CommittedOffset, OffsetKey


cdef enum Outcome:
    OPEN
    COMMITTED
    ABORTED


cdef class TransactionOffsets:
    cdef dict offsets
    cdef Outcome outcome


cdef class OffsetTable:
    cdef dict _committed                # {group id: {key: committed offset}}
    cdef dict _holders                  # {group id: {key: the transaction that holds an offset, or a list of them}}
    cdef dict _in_flight                # {group id: {key: number of offsets in flight}}
    cdef dict _in_flight_transactional  # {group id: {key: number of transactional offsets in flight}}
    cdef dict _open                     # {producer id: open transaction}
    cdef dict _ended                    # a set of the ended transactions that still have offsets to move
    cdef GroupMemory _memory

    cpdef CommittedOffset committed(self, OffsetKey key)
    cdef CommittedOffset newest(self, OffsetKey key, bint with_open)
    cdef object holders(self, OffsetKey key)
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
    cdef int release(self, OffsetKey key, TransactionOffsets transaction) except -1
    cpdef end_transaction(self, int64_t producer_id, bint commit)
    cdef int apply_part(self, TransactionOffsets transaction) except -1


cdef Py_ssize_t text_bytes(str text) except -1
