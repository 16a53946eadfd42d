# cython: language_level=3
cimport cython
from libc.stdint cimport int32_t, int64_t

from kbroker.log.append cimport Append, Appender
from kbroker.log.fs.file cimport File
from kbroker.log.segments cimport LogSlice, Segments
from kbroker.log.producer_state cimport ProducerStateTable
from kbroker.log.segment cimport Segment
from kbroker.log.unsynced cimport Unsynced
from kbroker.log.unwritten cimport UnwrittenTail, WriteArena
from kbroker.record.batch cimport Marker


@cython.final
cdef class Log(Appender):
    cdef readonly object fs
    cdef readonly str directory
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly object config
    cdef readonly object clock
    cdef readonly object options
    cdef readonly int64_t log_start_offset
    cdef readonly int64_t log_end_offset
    cdef readonly int64_t flushed_offset
    cdef readonly ProducerStateTable producer_state
    cdef readonly object leader_epochs
    cdef readonly object snapshots
    cdef readonly Segments segments
    cdef readonly object failure
    cdef UnwrittenTail unwritten        # the unwritten bytes of the active segment
    cdef Unsynced unsynced
    cdef object maker                   # None once the log has a directory
    cdef readonly object recovery       # an Opening whose segments are not synced yet, or None
    cdef bint is_unclosed               # a clean stop must write files, even if nothing was appended
    cdef readonly bint is_rewritten     # files may have changed without an append
    cdef public bint awaits_sync        # True if appends wait for the disk
    cdef int32_t latest_epoch
    cdef int64_t flush_messages

    cdef int remember_connection(self, const Append *append) except -1
    cdef int store(self, Append *append, const Marker *marker) except -1
    cdef int write_later(self, WriteArena arena) except -1
    cdef int write_unwritten(self) except -1
    cdef bytes aborted_rows(self, int64_t fetch_offset, int64_t upper_bound_offset)
    cpdef LogSlice read(self, int64_t offset, int64_t max_bytes, int64_t upper_bound_offset, bint min_one_batch)
    cdef int start_segment(self) except -1
    cdef int go_offline(self, str what, error) except -1
    cdef int fail_read(self, int64_t offset, error) except -1
    cdef int write_snapshot(self, bint is_synced) except -1
    cdef int refuse(self, str what, error) except -1
    cdef bint cut_unadopted(self, int64_t unwritten_bytes) except -1
    cdef int check_online(self) except -1
    cdef bint must_flush(self) noexcept
