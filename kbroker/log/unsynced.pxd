# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t

from kbroker.log.pending_snapshots cimport PendingSnapshots
from kbroker.log.producer_state cimport ProducerStateTable


@cython.final
cdef class Unsynced:
    cdef object fs
    cdef str directory
    cdef object leader_epochs
    cdef PendingSnapshots snapshots
    cdef list rolled                    # closed segments, oldest first
    cdef int64_t names_changed_at       # the end of the log at the last change of a file name; -1: all names are synced
    cdef tuple paths                    # the paths of files outside the segments of a new log

    cdef int add_rolled(self, object segment, int64_t end_offset, ProducerStateTable producers) except -1
    cdef list files_of_rolled(self)
    cdef list files_of_names(self)
    cdef int mark_flushed(self, int64_t offset) except -1
    cdef int drop_segments(self, list segments) except -1
