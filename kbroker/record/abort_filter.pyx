"""What a read_committed consumer leaves out of the batches that it fetched (KIP-98).

The broker sends raw batches, and with them the transactions that were aborted in their range as (producer id, first
offset). A producer's batches are dropped from the first offset of its aborted transaction up to its ABORT marker.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc

from kbroker.record.batch cimport CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT, BatchHeader
from kbroker.wire.bytes cimport Cursor, read_int16, take, take_varint, take_varlong

from kbroker.errors import ProtocolError
from kbroker.record.batch import CorruptBatchError

cdef enum:
    ABORT_TYPE = 0  # ControlType.ABORT


cdef struct Aborted:
    int64_t first_offset
    int64_t producer_id


cdef void sift_down(Aborted *heap, Py_ssize_t count, Py_ssize_t parent) noexcept nogil:
    """Let the entry at `parent` sink to where no child begins before it."""
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


cdef class AbortFilter:
    """The aborted transactions of one fetched partition: ask for its batches in the order of their offsets.

    Those not yet reached are a min-heap by first offset: a broker sends them in the order of their markers, and a
    consumer that stops early has not paid for sorting them all.
    """
    cdef Aborted *heap
    cdef Py_ssize_t count
    cdef set aborting           # producers inside an aborted transaction

    def __cinit__(self, aborted):
        cdef list rows = list(aborted)
        cdef Py_ssize_t i
        self.aborting = set()
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
        """Take from the heap what begins at or below `last_offset`: its producers are inside it now."""
        while self.count > 0 and self.heap[0].first_offset <= last_offset:
            self.aborting.add(self.heap[0].producer_id)
            self.count -= 1
            self.heap[0] = self.heap[self.count]
            sift_down(self.heap, self.count, 0)
        return 0

    def admits(self, BatchHeader header not None, batch):
        """Whether a consumer delivers the records of `batch`, whose header is `header`. Control batches never are.

        CorruptBatchError: a control batch whose first record is none.
        """
        if header.producer_id >= 0:
            self.reach(header.get_last_offset())
        if header.attributes & CONTROL_BIT:
            if self.aborting and header.records_count > 0 and is_abort_marker(batch):
                self.aborting.discard(header.producer_id)
            return False
        return not (self.aborting and header.attributes & TRANSACTIONAL_BIT and header.producer_id in self.aborting)


cdef bint is_abort_marker(batch) except -1:
    """Reads of the first record of a control batch, which is never compressed, no more than its key."""
    cdef Py_buffer view
    cdef Cursor cursor
    cdef const uint8_t *key
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        cursor.at = <const uint8_t *>view.buf
        cursor.end = cursor.at + view.len
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
    finally:
        PyBuffer_Release(&view)
