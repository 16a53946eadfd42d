# cython: language_level=3
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.log.batch_walk cimport SEARCH_BYTES, BatchWalk
from kbroker.log.fs.file cimport File
from kbroker.log.fs.lazy_file cimport LazyFile
from kbroker.log.index cimport OffsetIndex, TimeIndex
from kbroker.log.time_search cimport TimeSearch
from kbroker.log.transaction_index cimport TransactionIndex
from kbroker.record.batch cimport BatchFields


cdef struct Place:
    int64_t position            # the start of a batch, or the end of the segment
    int64_t offset              # the batch's first offset, or the segment's next offset


cdef struct HeaderWindow:       # the part of the file that a lookup has read
    int64_t position
    int64_t size
    uint8_t data[SEARCH_BYTES]


@cython.final
cdef class Segment:
    cdef readonly object fs
    cdef readonly str directory
    cdef readonly int64_t base_offset
    cdef readonly int64_t next_offset
    cdef readonly int64_t size_bytes
    cdef readonly int64_t max_timestamp_ms
    cdef readonly int64_t max_timestamp_offset
    cdef readonly OffsetIndex offset_index
    cdef readonly TimeIndex time_index
    cdef readonly TransactionIndex transactions
    cdef LazyFile log_file
    cdef int64_t first_timestamp_ms
    cdef int64_t created_ms
    cdef int64_t jitter_ms
    cdef int64_t bytes_since_entry
    cdef int64_t index_interval_bytes
    cdef int64_t allocated_bytes
    cdef int64_t allocation_limit_bytes
    cdef bint allocates_all
    cdef bint has_unadopted
    cdef Place *recent
    cdef Place *ends
    cdef int64_t remembered

    cdef File file(self)
    cdef int was_synced(self) noexcept
    cdef int cut_unadopted(self, int64_t unwritten_bytes) except -1
    cdef bint must_roll(self, const BatchFields *batch, int64_t size, int64_t segment_bytes, int64_t segment_ms,
                        int64_t now_ms) except -1
    cdef int reserve(self, int64_t size) except -1
    cdef int write(self, const uint8_t *data, int64_t size) except -1
    cdef int adopt(self, const BatchFields *batch, int64_t size) except -1
    cdef int expect_end(self, BatchWalk walk) except -1
    cdef int refuse_end(self, int64_t position) except -1
    cdef int64_t offset_near(self, int64_t tail_bytes) except -1
    cdef int begin_recovery(self) except -1
    cdef int remember(self, int64_t base_offset) except -1
    cdef const Place *recall(self, int64_t target, bint by_position) noexcept
    cdef int forget(self) noexcept
    cdef int note_timestamp(self, const BatchFields *batch) noexcept
    cdef int index_batch(self, const BatchFields *batch, int64_t position, int64_t size) except -1
    cdef int place_of(self, int64_t offset, Place *place) except -1
    cdef int refuse_index(self, int64_t position, int64_t offset) except -1
    cdef int place_below(self, int64_t position, Place *place) except -1
    cdef int place_behind(self, const Place *batch_place, Place *place) except -1
    cdef bint read_header_at(self, int64_t position, HeaderWindow *window, bint waits, BatchFields *batch) except -1
    cdef TimeSearch search_from(self, int64_t offset, int64_t timestamp_ms, int64_t start_offset)
    cdef int remember_end(self, const Place *place) except -1
    cdef const Place *recall_end(self, int64_t offset) noexcept
