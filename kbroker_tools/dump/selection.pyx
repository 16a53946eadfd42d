"""The selection of batches and records by `--where`. `where.py` parses the text of the option."""
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t

from kbroker.record.batch cimport CONTROL_BIT, TRANSACTIONAL_BIT, BatchFields, batch_last_offset


cdef class Selection:
    """The bounds and conditions that selected records must meet. Both ends of a range are included. A new Selection
    selects every record. A `producer_id` of None selects every producer."""

    def __init__(self):
        self.first_offset = INT64_MIN
        self.last_offset = INT64_MAX
        self.first_timestamp_ms = INT64_MIN
        self.last_timestamp_ms = INT64_MAX

    cdef bint admits(self, const BatchFields *batch, bint is_old) except -1:
        """Return whether the batch may contain selected records. `is_old` is True for a batch of magic 0 or 1, whose
        first offset is unknown."""
        cdef int64_t last_offset = batch_last_offset(batch)
        if last_offset < self.first_offset or (batch.base_offset > self.last_offset and not is_old):
            return False
        # Only the highest timestamp is compared, because a delete horizon may replace the earliest timestamp in the
        # header.
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
        """Return whether a record is selected. `admits` must have returned True for its batch."""
        return self.admits_record(offset, timestamp_ms)
