"""Which batches and records a command is asked for: the meaning of `--where`, whose words `where.py` reads."""
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t

from kbroker.record.batch cimport CONTROL_BIT, TRANSACTIONAL_BIT, BatchFields, batch_last_offset


cdef class Selection:
    """Bounds are inclusive; a new Selection admits everything. `producer_id` None: any, and none."""

    def __init__(self):
        self.first_offset = INT64_MIN
        self.last_offset = INT64_MAX
        self.first_timestamp_ms = INT64_MIN
        self.last_timestamp_ms = INT64_MAX

    cdef bint admits(self, const BatchFields *batch, bint is_old) except -1:
        """Whether a record of the batch may be asked for. An old batch does not say at which offset it begins."""
        cdef int64_t last_offset = batch_last_offset(batch)
        if last_offset < self.first_offset or (batch.base_offset > self.last_offset and not is_old):
            return False
        # The field of the earliest timestamp holds something else once a delete horizon is set.
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
        """Whether a record of an admitted batch is asked for."""
        return self.admits_record(offset, timestamp_ms)
