# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t

from kbroker.log.producer_state cimport ProducerSnapshot, ProducerStateTable


@cython.final
cdef class PendingSnapshot:
    cdef ProducerSnapshot snapshot
    cdef ProducerStateTable producers
    cdef bint is_synced                 # the log is, up to the offset of the snapshot
    cdef object work                    # the generator that encodes or writes it, perhaps at its end


@cython.final
cdef class Unsynced:
    cdef object fs
    cdef str directory
    cdef object leader_epochs
    cdef object snapshots
    cdef list rolled                    # closed segments, oldest first
    cdef list pending                   # a PendingSnapshot each, oldest first
    cdef object start_work
    cdef int64_t names_changed_at       # the log's end when a name in its directory last changed; -1: all are synced
    cdef tuple paths                    # of the files of a new log outside its segments

    cdef int add_rolled(self, object segment, int64_t end_offset, ProducerStateTable producers) except -1
    cdef list files_of_rolled(self)
    cdef list files_of_names(self)
    cdef int mark_flushed(self, int64_t offset) except -1
    cdef int start(self, PendingSnapshot pending, work) except -1
    cdef int write_synced(self, PendingSnapshot pending) except -1
    cdef int limit_snapshots(self, int64_t more_bytes) except -1
    cdef int give_up(self, PendingSnapshot pending) except -1
    cdef int drop_snapshots(self) except -1
    cdef int drop_segments(self, list segments) except -1
    cdef int drop_snapshots_below(self, int64_t offset) except -1
