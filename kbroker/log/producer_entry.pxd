# cython: language_level=3
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker.log.formats cimport SnapshotEntry
from kbroker.log.newest_connection cimport NewestConnection
from kbroker.record.batch cimport BatchFields

cdef enum:
    WINDOW_BATCHES = 5


cdef struct CachedBatch:
    int32_t last_sequence
    int32_t offset_delta
    int64_t last_offset
    int64_t timestamp_ms


@cython.final
cdef class ProducerEntry:
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t coordinator_epoch
    cdef readonly int64_t last_timestamp_ms
    cdef readonly int64_t transaction_first_offset
    cdef CachedBatch window[WINDOW_BATCHES]
    cdef int newest
    cdef int cached
    cdef PyObject *previous_open        # borrowed: the table keeps producers with an open transaction
    cdef PyObject *next_open
    cdef int64_t snapshot_number        # the last snapshot that has this producer or does not need it
    cdef NewestConnection newest_connection     # for the current epoch; not in snapshots

    cdef const CachedBatch *last_batch(self) noexcept
    cdef int take_epoch(self, int16_t producer_epoch) noexcept
    cdef int add_batch(self, const BatchFields *batch) noexcept
    cdef const CachedBatch *find_duplicate(self, const BatchFields *batch) noexcept


cdef inline bint has_open(ProducerEntry entry, int16_t producer_epoch) noexcept:
    return entry is not None and entry.transaction_first_offset >= 0 and entry.producer_epoch == producer_epoch

cdef void write_snapshot_entry(SnapshotEntry *entry, int64_t producer_id, int16_t producer_epoch,
                               const CachedBatch *last, int64_t timestamp_ms, int32_t coordinator_epoch,
                               int64_t first_offset) noexcept


cdef ProducerEntry read_snapshot_entry(SnapshotEntry found)
