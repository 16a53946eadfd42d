# cython: language_level=3
cimport cython
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Run:
    cdef int64_t first
    cdef int64_t last
    cdef int64_t deadline_ms    # of the lock of ACQUIRED records
    cdef str member_id          # the owner of ACQUIRED records
    cdef int32_t change
    cdef int32_t size
    cdef int16_t count          # of deliveries
    cdef int8_t state
    cdef int8_t next_state
    cdef int8_t lock_ended      # during the Change


cdef class Change:
    cdef readonly int32_t number
    cdef readonly int64_t start_offset
    cdef readonly int32_t delivery_complete_count
    cdef readonly bint holds_anyway
    cdef int delivery_count_limit
    cdef readonly list batches

    cdef int add(self, int64_t first, int64_t last, int state, int count) except -1


cdef class SharePartition:
    cdef readonly int64_t start_offset
    cdef readonly int64_t next_offset
    cdef list runs              # of the tracked records, without gaps
    cdef int32_t last_change    # the number of the last one that was begun

    cdef int64_t first_free(self) except -1
    cdef int skip_hole(self, int64_t first, int64_t base_offset) except -1
    cdef int archive(self, int64_t first, int64_t last) except -1
    cdef list segments_of(self, str member_id, batches)
    cdef int check_owned(self, str member_id, list segments) except -1
    cdef Py_ssize_t split_along(self, list segments) except -1
    cdef Change begin(self, bint holds_anyway, int delivery_count_limit)
    cdef Change begun(self, Change change)
    cdef int begin_transition(self, Change change, Run run, int state) except -1
    cdef int32_t count_finished(self) except -1
    cdef list runs_of(self, Change change)
    cdef Py_ssize_t find(self, int64_t offset) except -1
    cdef Py_ssize_t split_at(self, int64_t offset) except -1
    cdef Run rest_of(self, Run run, int64_t offset)
    cdef list cut_out(self, int64_t first, int64_t last)
    cdef int settle(self) except -1


@cython.final
cdef class Acquisition:
    cdef SharePartition owner
    cdef str member_id
    cdef int64_t deadline_ms
    cdef int64_t budget         # records that are still wanted
    cdef int64_t batch_size
    cdef int64_t throttled      # bad records that may still be given; -1: none was met
    cdef int limit
    cdef int threshold
    cdef bint is_exact
    cdef bint is_full
    cdef readonly list ranges

    cdef bint take(self, int64_t first, int64_t last) except -1
    cdef Py_ssize_t take_run(self, int64_t first, int64_t last, Run run, bint is_first) except -1
    cdef int take_new(self, int64_t last, bint is_first) except -1
    cdef int give(self, Run run, bint is_first) except -1
    cdef int end(self) except -1
