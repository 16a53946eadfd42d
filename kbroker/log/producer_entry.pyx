"""The state of one producer in a partition, in memory and in a snapshot."""
from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker.log.formats cimport SnapshotEntry, swap_entry
from kbroker.log.newest_connection cimport forget_connection
from kbroker.record.batch cimport BatchFields, batch_last_offset, sequence_after


cdef class ProducerEntry:
    """The state of one producer id: its epoch, its last batches (at most five, all of the same epoch), and its open
    transaction.
    """

    def __init__(self, int64_t producer_id):
        self.producer_id = producer_id
        self.producer_epoch = -1
        self.coordinator_epoch = -1
        self.last_timestamp_ms = -1
        self.transaction_first_offset = -1

    cdef const CachedBatch *last_batch(self) noexcept:
        """Return the last batch of the producer, NULL if no batch is known."""
        return &self.window[self.newest] if self.cached else NULL

    cdef int take_epoch(self, int16_t producer_epoch) noexcept:
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.cached = 0
            forget_connection(&self.newest_connection)
        return 0

    cdef int add_batch(self, const BatchFields *batch) noexcept:
        cdef CachedBatch *slot
        self.take_epoch(batch.producer_epoch)
        self.newest = (self.newest + 1) % WINDOW_BATCHES
        self.cached = min(self.cached + 1, <int>WINDOW_BATCHES)
        slot = &self.window[self.newest]
        slot.last_sequence = sequence_after(batch.base_sequence, batch.last_offset_delta)
        slot.offset_delta = batch.last_offset_delta
        slot.last_offset = batch_last_offset(batch)
        slot.timestamp_ms = batch.max_timestamp_ms
        self.last_timestamp_ms = batch.max_timestamp_ms
        return 0

    cdef const CachedBatch *find_duplicate(self, const BatchFields *batch) noexcept:
        """Return the cached batch that has the same epoch, first sequence and last sequence as `batch`, or NULL."""
        cdef int i
        cdef const CachedBatch *slot
        if batch.producer_epoch != self.producer_epoch:
            return NULL
        for i in range(self.cached):
            slot = &self.window[(self.newest - i + WINDOW_BATCHES) % WINDOW_BATCHES]
            if (slot.offset_delta == batch.last_offset_delta
                    and slot.last_sequence == sequence_after(batch.base_sequence, batch.last_offset_delta)):
                return slot
        return NULL

    @property
    def last_sequence(self) -> int:
        """The last sequence of the last data batch of the current epoch, -1 if none is known."""
        return self.window[self.newest].last_sequence if self.cached else -1

    @property
    def last_offset(self) -> int:
        """The last offset of the last data batch of the current epoch, -1 if none is known."""
        return self.window[self.newest].last_offset if self.cached else -1

    @property
    def batches(self) -> list[tuple[int, int, int, int]]:
        """The (last sequence, last offset, offset delta, timestamp in ms) of each cached batch, oldest first."""
        cdef CachedBatch slot
        found = []
        for i in range(self.cached - 1, -1, -1):
            slot = self.window[(self.newest - i + WINDOW_BATCHES) % WINDOW_BATCHES]
            found.append((slot.last_sequence, slot.last_offset, slot.offset_delta, slot.timestamp_ms))
        return found


cdef void write_snapshot_entry(SnapshotEntry *entry, int64_t producer_id, int16_t producer_epoch,
                               const CachedBatch *last, int64_t timestamp_ms, int32_t coordinator_epoch,
                               int64_t first_offset) noexcept:
    """Write the state of a producer to a snapshot entry. `last` is its last batch, NULL if no batch is known."""
    entry.producer_id = producer_id
    entry.producer_epoch = producer_epoch
    entry.last_sequence = last.last_sequence if last != NULL else -1
    entry.last_offset = last.last_offset if last != NULL else -1
    entry.offset_delta = last.offset_delta if last != NULL else 0
    entry.timestamp_ms = timestamp_ms
    entry.coordinator_epoch = coordinator_epoch
    entry.transaction_first_offset = first_offset
    swap_entry(entry)


cdef ProducerEntry read_snapshot_entry(SnapshotEntry found):
    """Return the state of a producer. The fields of `found` have the byte order of the file."""
    cdef ProducerEntry entry
    cdef CachedBatch *slot
    swap_entry(&found)
    entry = ProducerEntry(found.producer_id)
    slot = &entry.window[0]
    entry.producer_epoch = found.producer_epoch
    slot.last_sequence = found.last_sequence
    slot.last_offset = found.last_offset
    slot.offset_delta = found.offset_delta
    slot.timestamp_ms = found.timestamp_ms
    entry.last_timestamp_ms = found.timestamp_ms
    entry.coordinator_epoch = found.coordinator_epoch
    entry.transaction_first_offset = found.transaction_first_offset
    entry.cached = found.last_offset >= 0
    return entry
