"""The records of one batch, encoded while they are appended.

The records of an open batch are stored in their encoded form, so the batch uses as much memory as its bytes on the
wire. Closing the batch compresses the records. The header and the CRC are written when the batch is sent, and written
again when its sequence numbers change.
"""
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker.record.batch cimport HEADER_BYTES, TRANSACTIONAL_BIT, BatchFields, write_header
from kbroker.record.record_writer cimport RecordWriter, Rows, as_headers, row_timestamp_ms

from kbroker.record.compression import compress
from kbroker.record.records import decode_records

cdef extern from 'Python.h':
    Py_ssize_t PY_SSIZE_T_MAX
    Py_ssize_t Py_REFCNT(PyObject *)


cdef enum:
    MOST_SPARE_BYTES = 4 * 1024 * 1024


cdef class SpareBuffers:
    """The buffers of finished full batches, kept for reuse by new batches. Fresh memory costs a page fault per 4 KiB.

    An open batch with a reused buffer occupies `batch_bytes`, but buffer.memory counts only the used part. So the
    reused buffers of all open batches together have at most `MOST_SPARE_BYTES`. The same limit holds for the unused
    buffers.
    """

    def __cinit__(self, Py_ssize_t batch_bytes):
        self.batch_bytes = batch_bytes
        self.most_buffers = MOST_SPARE_BYTES // max(batch_bytes, 1)
        self.buffers = []

    cdef bytearray take(self):
        """Return a spare buffer of `batch_bytes` for an open batch, or None.

        Return None if there is no spare buffer, or if the open batches already use `MOST_SPARE_BYTES` of spare buffers.
        The caller calls `note_closed` when the batch is closed.
        """
        if self.taken_count >= self.most_buffers or not self.buffers:
            return None
        self.taken_count += 1
        return self.buffers.pop()

    cdef int note_closed(self) except -1:
        """Count that a batch whose buffer came from `take` was closed.

        The buffer then has only the size of the records.
        """
        self.taken_count -= 1
        return 0

    cdef int keep(self, bytearray buffer) except -1:
        """Keep a buffer that nothing else refers to, if its records fill more than half of `batch_bytes` and fit into
        it.
        """
        if (self.is_worth(PyByteArray_GET_SIZE(buffer)) and PyByteArray_GET_SIZE(buffer) <= self.batch_bytes
                and len(self.buffers) < self.most_buffers):
            PyByteArray_Resize(buffer, self.batch_bytes)
            self.buffers.append(buffer)
        return 0

    cdef bint is_worth(self, Py_ssize_t used) noexcept:
        """Return whether a batch that uses `used` bytes is large enough to profit from a buffer of `batch_bytes`."""
        return used > self.batch_bytes // 2


cdef class PartitionBuffer:
    """The records of one batch. `contexts` is empty until a record has a context; afterwards it has one entry per
    record.

    The batch takes one of the `spares` only if it `will_grow`, because a small batch would occupy memory without using
    it.
    """

    def __cinit__(self, SpareBuffers spares=None, bint will_grow=False):
        cdef bytearray spare = spares.take() if spares is not None and will_grow else None
        self.spares = spares
        self.has_spare = spare is not None
        self.writer = RecordWriter(HEADER_BYTES, spare)
        self.contexts = []

    @property
    def size_bytes(self):
        """The present size of the batch in bytes, including its header."""
        return self.writer.used if self.writer is not None else len(self.batch)

    cdef Py_ssize_t append(self, int64_t timestamp_ms, bytes key, bytes value, list headers, object context,
                           Py_ssize_t largest_bytes) except -1:
        """Add a record and return its size in bytes. Return 0 if the batch would exceed `largest_bytes`.

        The first record of a batch is always added.
        """
        cdef Py_ssize_t size
        if self.records_count == 0:
            self.base_timestamp_ms = self.max_timestamp_ms = timestamp_ms
            largest_bytes = PY_SSIZE_T_MAX
        size = self.writer.write(timestamp_ms - self.base_timestamp_ms, self.records_count, key, value, headers,
                                 largest_bytes)
        if size:
            self.note(timestamp_ms, 1, size, context)
        return size

    cdef Py_ssize_t append_rows(self, const Rows *rows, Py_ssize_t first, Py_ssize_t end, object context,
                                Py_ssize_t largest_bytes) except -1:
        """Add the rows in [first, end) until the batch is full. The first row of a batch is always added.

        Return the number of added rows.
        """
        cdef Py_ssize_t i, count, before = self.writer.used
        cdef int64_t largest_ms
        if self.records_count == 0:
            self.base_timestamp_ms = self.max_timestamp_ms = row_timestamp_ms(rows, row_at(rows, first))
        count = self.writer.write_rows(rows, first, end, self.base_timestamp_ms, self.records_count, largest_bytes)
        if count == 0 and self.records_count == 0:
            count = self.writer.write_rows(rows, first, first + 1, self.base_timestamp_ms, 0, PY_SSIZE_T_MAX)
        if count == 0:
            return 0
        largest_ms = row_timestamp_ms(rows, row_at(rows, first))
        if rows.timestamps_ms != NULL:
            for i in range(first + 1, first + count):
                largest_ms = max(largest_ms, row_timestamp_ms(rows, row_at(rows, i)))
        self.note(largest_ms, count, self.writer.used - before, context)
        return count

    cdef int note(self, int64_t timestamp_ms, Py_ssize_t count, Py_ssize_t size, object context) except -1:
        """Count records that were written to the buffer. `timestamp_ms` is the largest of their timestamps."""
        self.max_timestamp_ms = max(self.max_timestamp_ms, timestamp_ms)
        if context is not None or self.contexts:
            if not self.contexts:
                self.contexts += [None] * self.records_count
            self.contexts += [context] * count
        self.records_count += <int32_t>count
        self.records_bytes += size
        return 0

    cpdef close(self, int compression, level):
        """Compress the records. No record can be added afterwards."""
        cdef object block = None
        cdef bytearray records
        if self.writer is None:
            return
        if compression:
            block = compress(compression, bytes(memoryview(self.writer.data)[HEADER_BYTES:self.writer.used]), level)
        records = self.writer.finish()
        self.writer = None
        if self.has_spare:
            self.spares.note_closed()
        if not compression:
            self.batch = records
            return
        self.batch = bytearray(HEADER_BYTES)
        self.batch += block
        self.compression = compression
        if self.spares is not None:
            self.spares.keep(records)

    cpdef release(self):
        """Drop the bytes of a finished batch. Later batches reuse their memory, unless a request still refers to it."""
        cdef bytearray batch = self.batch
        self.batch = None
        if self.spares is not None and batch is not None and Py_REFCNT(<PyObject *>batch) == 1:
            self.spares.keep(batch)

    def encoded(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence, bint transactional):
        """Return the bytes of the closed batch, with this producer in its header. The next call overwrites these bytes.
        """
        cdef BatchFields fields
        if self.batch is None:
            raise AssertionError('the batch is open, or was released')
        fields.base_offset = 0
        fields.partition_leader_epoch = -1
        fields.attributes = self.compression | (TRANSACTIONAL_BIT if transactional else 0)
        fields.last_offset_delta = self.records_count - 1
        fields.base_timestamp_ms = self.base_timestamp_ms
        fields.max_timestamp_ms = self.max_timestamp_ms
        fields.producer_id = producer_id
        fields.producer_epoch = producer_epoch
        fields.base_sequence = base_sequence
        fields.records_count = self.records_count
        write_header(<uint8_t *>PyByteArray_AS_STRING(self.batch), PyByteArray_GET_SIZE(self.batch), &fields)
        return self.batch

    def halves(self, level):
        """Return two closed buffers that each have half of the records. This buffer is closed and has at least two
        records.
        """
        cdef PartitionBuffer first = PartitionBuffer(), second = PartitionBuffer(), half
        cdef int32_t i, middle = self.records_count // 2
        for i, record in enumerate(decode_records(self.encoded(-1, -1, -1, False))):
            half = first if i < middle else second
            half.append(record.timestamp_ms, record.key, record.value, as_headers(record.headers),
                        self.contexts[i] if self.contexts else None, PY_SSIZE_T_MAX)
        for half in (first, second):
            half.close(self.compression, level)
        return first, second


cdef inline Py_ssize_t row_at(const Rows *rows, Py_ssize_t place) noexcept:
    return place if rows.order == NULL else rows.order[place]
