# cython: language_level=3
cimport cython
from cpython.array cimport array
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker.log.append cimport Append
from kbroker.log.formats cimport SnapshotEntry, SnapshotHead
from kbroker.log.marker_history cimport MarkerHistory
from kbroker.log.producer_entry cimport CachedBatch, ProducerEntry
from kbroker.log.unstable_transactions cimport UnstableTransactions
from kbroker.record.batch cimport BatchFields, Marker

@cython.final
cdef class ProducerRoom:
    cdef readonly int64_t held
    cdef public int64_t most


@cython.final
cdef class ProducerSnapshot:
    cdef readonly int64_t offset
    cdef readonly bytes content         # complete only when `is_encoded`
    cdef readonly bint is_encoded
    cdef int64_t number
    cdef dict entries                   # the table's; new and changed producers have `number`
    cdef array ids                      # the producer ids, after `list_producers`
    cdef Py_ssize_t next                # the index of the first id that `encode` has not encoded
    cdef SnapshotEntry *end             # the end of the encoded entries in `content`
    cdef uint32_t crc

    cdef SnapshotHead *head(self) noexcept
    cdef int list_producers(self) except -1
    cdef int add(self, ProducerEntry entry) except -1


@cython.final
cdef class ProducerStateTable:
    cdef readonly dict entries
    cdef ProducerSnapshot snapshot      # the snapshot that is being encoded
    cdef int64_t snapshot_number        # the number of the snapshot begun last
    cdef readonly ProducerRoom room
    cdef public Py_ssize_t most_producers
    cdef readonly dict verifications
    cdef readonly UnstableTransactions unstable
    cdef MarkerHistory markers
    cdef ProducerEntry recent           # the entry that `find` returned last, if it is still in `entries`
    cdef readonly int64_t end_offset
    cdef public int64_t expiration_ms

    cdef ProducerEntry find(self, int64_t producer_id)
    cdef bint check(self, Append *append, const Marker *marker, CachedBatch *duplicate) except -1
    cpdef start_verification(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
                             bint supports_epoch_bump, int64_t now_ms)
    cpdef bint has_open_transaction(self, int64_t producer_id, int16_t producer_epoch)
    cpdef check_room(self, int64_t producer_id)
    cdef int check_data(self, ProducerEntry entry, const BatchFields *batch, int origin) except -1
    cdef int check_sequence(self, ProducerEntry entry, const BatchFields *batch) except -1
    cdef int check_marker(self, ProducerEntry entry, const BatchFields *batch, const Marker *marker, int origin,
                          int transaction_version) except -1
    cdef object completed_by(self, const BatchFields *batch)
    cdef int adopt(self, const BatchFields *batch, const Marker *marker) except -1
    cdef int clear_verification(self, int64_t producer_id, int16_t producer_epoch, bint by_marker) except -1
    cdef ProducerSnapshot begin_snapshot(self, int64_t end_offset)
    cdef int end_snapshot(self, ProducerSnapshot snapshot) except -1
    cdef int keep_for_snapshot(self, ProducerEntry entry) except -1
    cdef bint is_expired(self, ProducerEntry entry, int64_t now_ms) noexcept
