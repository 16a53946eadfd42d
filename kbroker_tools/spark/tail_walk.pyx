"""The end of a partition, batch by batch as its bytes come in: where it ends, and what became of transactions there.

Planning waits for this alone, and every byte of the last segment goes through it, so what needs no Python runs without
the GIL: partitions are walked side by side. Of a run of batches that one producer wrote with nothing in between, only
the first and the last are replayed: the one opens a transaction, the other has the last sequence and timestamp.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int16_t, int64_t, uint8_t

from kbroker.record.batch cimport (
    ATTRIBUTES_AT, CONTROL_BIT, HEADER_READ, BatchFields, batch_last_offset, batch_size_bytes, parse_header)
from kbroker.wire.crc32c cimport crc32c_update


cdef struct Run:
    Py_ssize_t first_at
    int64_t first_size
    Py_ssize_t last_at
    int64_t last_size
    int64_t producer_id
    int16_t producer_epoch
    int16_t attributes


cdef class TailWalk:
    """`next_offset`: behind the last sound batch. `replay`: takes a batch, as `ProducerStateTable.replay_batch`, of those
    at or above `replay_from`. A batch that is damaged, or lies below one before it, is passed over.
    """
    cdef readonly int64_t next_offset
    cdef readonly int64_t replayed_to    # behind the last batch at or above `replay_from`; -1 without any
    cdef readonly int64_t sound_bytes    # in what was fed last: where its last sound batch ends
    cdef int64_t replay_from
    cdef object replay

    def __init__(self, int64_t next_offset, int64_t replay_from, replay):
        self.next_offset = next_offset
        self.replayed_to = -1
        self.replay_from = replay_from
        self.replay = replay

    def feed(self, data):
        """Walk the whole batches that `data` begins with. Returns how many bytes they are."""
        cdef Py_buffer view
        cdef Run run
        cdef Py_ssize_t position = 0
        self.sound_bytes = 0
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            with memoryview(data) as batches:
                while True:
                    with nogil:
                        position = self.next_run(<const uint8_t *>view.buf, view.len, position, &run)
                    if run.first_size == 0:
                        return position
                    self.replay(batches[run.first_at:run.first_at + run.first_size])
                    if run.last_at != run.first_at:
                        self.replay(batches[run.last_at:run.last_at + run.last_size])
        finally:
            PyBuffer_Release(&view)

    cdef Py_ssize_t next_run(self, const uint8_t *data, Py_ssize_t size, Py_ssize_t position, Run *run) noexcept nogil:
        """Walk to behind the next run of a producer. Without one `first_size` is 0, and the walk is over."""
        cdef BatchFields fields
        cdef int64_t batch_bytes
        run.first_size = 0
        while parse_header(data + position, size - position, &fields) == HEADER_READ:
            batch_bytes = batch_size_bytes(&fields)
            if batch_bytes > size - position:
                break
            if fields.base_offset < self.next_offset or crc32c_update(
                    0, data + position + ATTRIBUTES_AT, <size_t>(batch_bytes - ATTRIBUTES_AT)) != fields.crc:
                position += batch_bytes
                continue
            if fields.base_offset >= self.replay_from:
                if run.first_size and (fields.producer_id != run.producer_id
                                       or fields.attributes != run.attributes
                                       or fields.producer_epoch != run.producer_epoch):
                    break
                if fields.producer_id >= 0 or fields.attributes & CONTROL_BIT:
                    run.last_at, run.last_size = position, batch_bytes
                    if run.first_size == 0:
                        run.first_at, run.first_size = position, batch_bytes
                        run.producer_id, run.producer_epoch = fields.producer_id, fields.producer_epoch
                        run.attributes = fields.attributes
                self.replayed_to = batch_last_offset(&fields) + 1
            self.next_offset = batch_last_offset(&fields) + 1
            position += batch_bytes
            self.sound_bytes = position
            if fields.attributes & CONTROL_BIT and run.first_size:
                break  # each marker by itself: it may be a row of the transaction index
        return position
