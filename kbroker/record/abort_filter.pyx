"""Filters aborted transactions out of fetched batches, for read_committed consumers (KIP-98).

The broker sends raw batches, and a list of the aborted transactions in the range of these batches, as (producer id,
first offset). The filter drops the batches of a producer between the first offset of its aborted transaction and the
next ABORT marker of the producer.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from kbroker.record.batch cimport (
    CONTROL_BIT, HEADER_BYTES, LOG_OVERHEAD_BYTES, TRANSACTIONAL_BIT, BatchFields, BatchHeader, batch_last_offset,
    batch_size_bytes)
from kbroker.record.batch_filter cimport ABORTED, COMMITTED, NO_TRANSACTION, BatchFilter, Outcome
from kbroker.wire.bytes cimport Cursor, read_int16, take, take_varint, take_varlong

from kbroker.base.errors import ProtocolError
from kbroker.record.batch import CorruptBatchError

cdef enum:
    ABORT_TYPE = 0  # ControlType.ABORT


cdef struct Aborted:
    int64_t first_offset
    int64_t producer_id


cdef void sift_down(Aborted *heap, Py_ssize_t count, Py_ssize_t parent) noexcept nogil:
    """Move the entry at index `parent` down the heap until both children have a first offset at or above its own."""
    cdef Aborted entry = heap[parent]
    cdef Py_ssize_t child = 2 * parent + 1
    while child < count:
        if child + 1 < count and heap[child + 1].first_offset < heap[child].first_offset:
            child += 1
        if heap[child].first_offset >= entry.first_offset:
            break
        heap[parent] = heap[child]
        parent = child
        child = 2 * parent + 1
    heap[parent] = entry


cdef class AbortFilter(BatchFilter):
    """The aborted transactions of one fetched partition. The caller must pass the batches in offset order. The
    transactions that begin above the current batch are in a min-heap by first offset. A broker sends transactions in
    the order of their markers. A heap saves the full sort if a consumer stops early. If `is_committed_only` is false,
    aborted data is shown too, and `outcome_of` identifies it.
    """
    cdef Aborted *heap
    cdef Py_ssize_t count
    cdef set aborting           # ids of producers inside an aborted transaction now
    cdef bint is_committed_only

    def __cinit__(self, aborted, *, bint is_committed_only=True):
        cdef list rows = list(aborted)
        cdef Py_ssize_t i
        self.aborting = set()
        self.is_committed_only = is_committed_only
        self.heap = <Aborted *>malloc(max(len(rows), 1) * sizeof(Aborted))
        if self.heap == NULL:
            raise MemoryError
        for i in range(len(rows)):
            self.heap[i].producer_id, self.heap[i].first_offset = rows[i]
        self.count = len(rows)
        for i in range(self.count // 2 - 1, -1, -1):
            sift_down(self.heap, self.count, i)

    def __dealloc__(self):
        free(self.heap)

    cdef int reach(self, int64_t last_offset) except -1:
        """Remove the transactions that begin at or below `last_offset` from the heap, and add their producers to
        `aborting`.
        """
        while self.count > 0 and self.heap[0].first_offset <= last_offset:
            self.aborting.add(self.heap[0].producer_id)
            self.count -= 1
            self.heap[0] = self.heap[self.count]
            sift_down(self.heap, self.count, 0)
        return 0

    def admits(self, BatchHeader header not None, batch):
        """Return whether a consumer may see the records of `batch`, whose header is `header`. Return False for a
        control batch. Raise CorruptBatchError if the first record of a control batch is malformed.
        """
        cdef Py_buffer view
        cdef BatchFields fields
        fields.base_offset = header.base_offset
        fields.last_offset_delta = header.last_offset_delta
        fields.attributes = header.attributes
        fields.producer_id = header.producer_id
        fields.records_count = header.records_count
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            fields.batch_length = <int32_t>min(<int64_t>view.len, <int64_t>header.get_size_bytes()) - LOG_OVERHEAD_BYTES
            return self.admits_fields(&fields, <const uint8_t *>view.buf)
        finally:
            PyBuffer_Release(&view)

    cdef bint admits_fields(self, const BatchFields *fields, const uint8_t *batch) except -1:
        if fields.producer_id >= 0:
            self.reach(batch_last_offset(fields))
        if fields.attributes & CONTROL_BIT:
            if self.aborting and fields.records_count > 0 and is_abort_marker(batch, batch_size_bytes(fields)):
                self.aborting.discard(fields.producer_id)
            return False
        return not self.is_committed_only or self.outcome_of(fields) != ABORTED

    cdef Outcome outcome_of(self, const BatchFields *fields) except *:
        """Return the outcome of the batch that was last passed to `admits`. It is never that of an open transaction,
        because a broker does not list open transactions.
        """
        if not fields.attributes & TRANSACTIONAL_BIT:
            return NO_TRANSACTION
        return ABORTED if self.aborting and fields.producer_id in self.aborting else COMMITTED


cdef bint is_abort_marker(const uint8_t *batch, int64_t size_bytes) except -1:
    """Return whether a control batch is an ABORT marker, according to the key of its first record. A control batch is
    never compressed.
    """
    cdef Cursor cursor
    cdef const uint8_t *key
    cursor.at = batch
    cursor.end = batch + size_bytes
    try:
        take(&cursor, HEADER_BYTES)
        take_varint(&cursor)   # length
        take(&cursor, 1)       # attributes
        take_varlong(&cursor)  # timestamp delta
        take_varint(&cursor)   # offset delta
        if take_varint(&cursor) < 4:
            raise CorruptBatchError('found a control record with a key of less than 4 bytes')
        key = take(&cursor, 4)
        return read_int16(key) >= 0 and read_int16(key + 2) == ABORT_TYPE
    except ProtocolError as error:
        raise CorruptBatchError(f'control record: {error}') from None
