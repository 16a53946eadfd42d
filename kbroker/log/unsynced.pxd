# cython: language_level=3
from libc.stdint cimport int64_t


cdef class Unsynced:
    cdef object fs
    cdef str directory
    cdef object leader_epochs
    cdef object snapshots
    cdef list rolled                    # closed segments, oldest first
    cdef list pending_snapshots         # (offset, content): written once the log below the offset is synced
    cdef int64_t names_changed_at       # the log's end when a name in its directory last changed; -1: all are synced
    cdef tuple paths                    # of the files of a new log outside its segments

    cdef int add_rolled(self, object segment, int64_t end_offset, bytes snapshot) except -1
    cdef list files_of_rolled(self)
    cdef list files_of_names(self)
    cdef int mark_flushed(self, int64_t offset) except -1
    cdef int drop_segments(self, list segments) except -1
    cdef int drop_snapshots_below(self, int64_t offset) except -1
