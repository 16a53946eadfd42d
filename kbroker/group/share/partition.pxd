# cython: language_level=3
cimport cython
from libc.stdint cimport int32_t, int64_t

from kbroker.group.share.runs cimport Run, Runs


cdef class Change:
    cdef readonly int32_t number
    cdef readonly int64_t start_offset
    cdef readonly int32_t delivery_complete_count
    cdef readonly bint holds_anyway
    cdef int delivery_count_limit
    cdef readonly bint makes_dead_letters
    cdef readonly list batches
    cdef readonly list dead_letters

    cdef int add(self, int64_t first, int64_t last, int state, int count) except -1
    cdef int add_dead_letters(self, int64_t first, int64_t last, int count, bint is_rejected) except -1


cdef class SharePartition:
    cdef readonly int64_t start_offset
    cdef readonly int64_t next_offset
    cdef Runs runs              # the runs of the tracked records, without gaps
    cdef int32_t last_change    # the number of the last Change that was begun

    cdef int64_t first_free(self) except -1
    cdef int skip_hole(self, int64_t first, int64_t base_offset) except -1
    cdef int archive(self, int64_t first, int64_t last) except -1
    cdef list segments_of(self, str member_id, batches)
    cdef int check_owned(self, str member_id, list segments) except -1
    cdef int split_along(self, list segments) except -1
    cdef Change begin(self, bint holds_anyway, int delivery_count_limit, bint makes_dead_letters)
    cdef Change begun(self, Change change)
    cdef int begin_transition(self, Change change, Run *run, int state) except -1
    cdef int32_t count_finished(self) except -1
    cdef int end_change(self, Change change, bint is_durable, int64_t retry_ms) except -1
    cdef int settle(self) except -1


@cython.final
cdef class Acquisition:
    cdef SharePartition owner
    cdef str member_id
    cdef int64_t deadline_ms
    cdef int64_t budget         # the number of records that may still be acquired
    cdef int64_t batch_size
    cdef int64_t throttled      # the number of bad records that may still be given; -1 until one is found
    cdef int limit
    cdef int threshold
    cdef bint is_exact
    cdef bint is_full
    cdef readonly list ranges

    cdef bint acquire_batch(self, int64_t first, int64_t last) except -1
    cdef Py_ssize_t acquire_run(self, int64_t first, int64_t last, Py_ssize_t i, bint is_first) except -1
    cdef int acquire_new(self, int64_t last, bint is_first) except -1
    cdef int give(self, Run *run, bint is_first) except -1
    cdef int end(self) except -1
