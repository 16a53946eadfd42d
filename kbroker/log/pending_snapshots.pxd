# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t

from kbroker.log.producer_state cimport ProducerSnapshot, ProducerStateTable


@cython.final
cdef class PendingSnapshot:
    cdef ProducerSnapshot snapshot
    cdef ProducerStateTable producers
    cdef bint is_synced                 # True if the log is synced up to the snapshot's offset
    cdef object work                    # the generator that encodes or writes the snapshot; it may have ended


@cython.final
cdef class PendingSnapshots:
    cdef str directory
    cdef object snapshots
    cdef object start_work
    cdef list pending                   # a list of PendingSnapshot, oldest first

    cdef int add(self, int64_t offset, ProducerStateTable producers) except -1
    cdef int mark_synced(self, int64_t offset) except -1
    cdef int start(self, PendingSnapshot pending, work) except -1
    cdef int write_synced(self, PendingSnapshot pending) except -1
    cdef int limit(self, int64_t more_bytes) except -1
    cdef int give_up(self, PendingSnapshot pending) except -1
    cdef int drop_all(self) except -1
    cdef int drop_at(self, set offsets) except -1
    cdef int drop_below(self, int64_t offset) except -1
