from libc.stdint cimport int64_t, uint8_t

from kbroker.record.batch cimport BatchFields


cpdef enum Outcome:
    NO_TRANSACTION = 0
    COMMITTED = 1
    ABORTED = 2
    OPEN = 3


cdef class BatchFilter:
    cdef bint admits_fields(self, const BatchFields *fields, const uint8_t *batch) except -1
    cdef Outcome outcome_of(self, const BatchFields *fields) except *


cdef struct Range:
    int64_t first_offset
    int64_t last_offset


cdef class TransactionRanges(BatchFilter):
    cdef dict ranges      # {producer id: array of Range as bytes, by first offset}
    cdef dict open        # {producer id: first offset}
    cdef bint is_committed_only
