"""Decides whether a reader sees a batch, without knowing earlier batches.

Below the last stable offset, the outcome of a batch depends only on its producer id and base offset. A producer has at
most one open transaction per partition, so the ranges [first offset, marker's offset] of its aborted transactions do
not overlap (KIP-98). Therefore a reader can read any run of batches, even if transactions extend beyond the run.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t

from kbroker.record.batch cimport CONTROL_BIT, TRANSACTIONAL_BIT, BatchFields, BatchHeader


cdef class BatchFilter:
    """The filter for read_uncommitted, which shows all data batches."""

    cdef bint admits_fields(self, const BatchFields *fields, const uint8_t *batch) except -1:
        return not fields.attributes & CONTROL_BIT

    cdef Outcome outcome_of(self, const BatchFields *fields) except *:
        return NO_TRANSACTION


cdef class TransactionRanges(BatchFilter):
    """A filter that knows the aborted and the open transactions of a partition.

    `aborted` has tuples (producer id, first offset, offset of the marker). `open` maps the producer id of each open
    transaction to its first offset. With `is_committed_only`, batches of aborted and open transactions are hidden.
    Otherwise they are shown, and `outcome_of` identifies them. The constructor raises ValueError if two aborted ranges
    of one producer overlap.
    """

    def __init__(self, aborted, open=None, *, bint is_committed_only=True):
        cdef dict by_producer = {}
        for producer_id, first_offset, last_offset in aborted:
            by_producer.setdefault(producer_id, []).append((first_offset, last_offset))
        self.ranges = {producer_id: packed(producer_id, sorted(ranges)) for producer_id, ranges in by_producer.items()}
        self.open = dict(open or {})
        self.is_committed_only = is_committed_only

    cdef bint admits_fields(self, const BatchFields *fields, const uint8_t *batch) except -1:
        if fields.attributes & CONTROL_BIT:
            return False
        return not self.is_committed_only or self.outcome_of(fields) <= COMMITTED

    cdef Outcome outcome_of(self, const BatchFields *fields) except *:
        cdef bytes ranges
        if not fields.attributes & TRANSACTIONAL_BIT:
            return NO_TRANSACTION
        ranges = self.ranges.get(fields.producer_id) if self.ranges else None
        if ranges is not None and holds(ranges, fields.base_offset):
            return ABORTED
        if self.open and self.open.get(fields.producer_id, fields.base_offset + 1) <= fields.base_offset:
            return OPEN
        return COMMITTED

    def admits(self, BatchHeader header not None):
        """Return whether a reader sees the records of the batch with this header."""
        cdef BatchFields fields
        fields.attributes = header.attributes
        fields.producer_id = header.producer_id
        fields.base_offset = header.base_offset
        return self.admits_fields(&fields, NULL)


cdef bytes packed(producer_id, list ranges):
    cdef bytes rows = PyBytes_FromStringAndSize(NULL, len(ranges) * sizeof(Range))
    cdef Range *row = <Range *>PyBytes_AS_STRING(rows)
    cdef int64_t above = -1
    for first_offset, last_offset in ranges:
        if first_offset <= above or last_offset < first_offset:
            raise ValueError(f'found aborted offsets {first_offset} to {last_offset} of producer id {producer_id}, '
                             f'expected a range above {above}')
        row.first_offset, row.last_offset = first_offset, last_offset
        above = last_offset
        row += 1
    return rows


cdef bint holds(bytes ranges, int64_t offset) noexcept:
    """Return whether one of `ranges` contains `offset`, by a binary search. The ranges must be sorted."""
    cdef const Range *rows = <const Range *>PyBytes_AS_STRING(ranges)
    cdef Py_ssize_t low = 0, high = PyBytes_GET_SIZE(ranges) // <Py_ssize_t>sizeof(Range), middle
    while low < high:
        middle = (low + high) // 2
        if rows[middle].first_offset <= offset:
            low = middle + 1
        else:
            high = middle
    return low > 0 and rows[low - 1].last_offset >= offset
