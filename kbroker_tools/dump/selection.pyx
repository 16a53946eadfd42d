"""The selection of batches and records by `--where`. `where.py` parses its text."""
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t

from kbroker.record.batch cimport CONTROL_BIT, TRANSACTIONAL_BIT, BatchFields, batch_last_offset


cdef class Selection:
    """A selection with inclusive bounds. A new selection admits everything. A `producer_id` of None admits every
    producer."""

    def __init__(self):
        self.first_offset = INT64_MIN
        self.last_offset = INT64_MAX
        self.first_timestamp_ms = INT64_MIN
        self.last_timestamp_ms = INT64_MAX

    cdef bint admits(self, const BatchFields *batch, bint is_old) except -1:
        """Return whether the batch may have selected records. The first offset of a batch of magic 0 or 1 is
        unknown."""
        cdef int64_t last_offset = batch_last_offset(batch)
        if last_offset < self.first_offset or (batch.base_offset > self.last_offset and not is_old):
            return False
        # Once a delete horizon is set, it replaces the earliest timestamp in the header.
        if batch.max_timestamp_ms < self.first_timestamp_ms:
            return False
        if self.producer_id is not None and batch.producer_id != <int64_t>self.producer_id:
            return False
        if self.transactional and not batch.attributes & TRANSACTIONAL_BIT:
            return False
        return not self.control or batch.attributes & CONTROL_BIT

    cdef bint admits_record(self, int64_t offset, int64_t timestamp_ms) noexcept:
        return (self.first_offset <= offset <= self.last_offset
                and self.first_timestamp_ms <= timestamp_ms <= self.last_timestamp_ms)

    def holds(self, int64_t offset, int64_t timestamp_ms):
        """Return whether a record of an admitted batch is selected."""
        return self.admits_record(offset, timestamp_ms)
