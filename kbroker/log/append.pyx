"""The `Append` struct, which carries one append from the request to the segment, and a Python interface for appends."""
import enum

from libc.stdint cimport int32_t, int64_t, uint8_t
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport PyObject

from kbroker.record.batch cimport HEADER_READ, BatchFields, batch_size_bytes, parse_header, refuse_header

from kbroker.record.batch import CorruptBatchError


class Origin(enum.IntEnum):
    """The origin of an append. The producer state chooses its checks by the origin."""

    CLIENT = ORIGIN_CLIENT
    """The batch is from a Produce request: all checks apply."""
    COORDINATOR = ORIGIN_COORDINATOR
    """The batch is a transaction marker, or has rows of an internal topic: epochs are checked, but not sequences."""
    REPLICATION = ORIGIN_REPLICATION
    """The batch was read from a log: nothing is checked."""


cdef int read_whole(const uint8_t *data, int64_t size, BatchFields *batch) except -1:
    """Read the header of the batch in `data`. Raise CorruptBatchError unless `data` is exactly one batch of `size`
    bytes.
    """
    fault = parse_header(data, size, batch)
    if fault != HEADER_READ:
        refuse_header(fault, batch, size)
    if batch_size_bytes(batch) != size or batch.last_offset_delta < 0:
        raise CorruptBatchError(
            f'found a batch of {batch_size_bytes(batch)} bytes with {batch.last_offset_delta + 1} offsets, '
            f'expected {size} bytes and one offset or more')
    return 0


cdef class AppendResult:
    """The offsets and the time of an appended batch. For a duplicate, those of the batch that was appended first.

    `append_time_ms` is -1 unless the topic uses LogAppendTime.
    """

    def __repr__(self):
        return (f'AppendResult({self.base_offset}, {self.last_offset}, append_time_ms={self.append_time_ms}, '
                f'log_start_offset={self.log_start_offset}, is_duplicate={self.is_duplicate})')


cdef class Appender:
    """The base class of Log and of Partition, which both append batches. A Partition passes its appends to a Log."""

    cdef int append(self, Append *append) except -1:
        """Append one validated batch whose header is read, and set the result in `append`.

        Raise KafkaError if the producer state refuses the batch (KIP-98, KIP-890). Raise RECORD_LIST_TOO_LARGE for a
        batch that no segment can hold, and KAFKA_STORAGE_ERROR once the directory has failed. A refused append changes
        nothing.
        """
        raise NotImplementedError

    def append_batch(self, batch, int origin=ORIGIN_COORDINATOR, int32_t leader_epoch=0, *, guard=None,
                     int transaction_version=0):
        """Append one validated batch from a writable buffer and write it before returning. Return an AppendResult.

        Raise the errors of `append`. Raise CorruptBatchError if the buffer is not exactly one batch.
        """
        cdef Py_buffer view
        cdef Append append
        cdef AppendResult result
        PyObject_GetBuffer(batch, &view, PyBUF_WRITABLE)
        try:
            begin_append(&append, <uint8_t *>view.buf, view.len, <AppendOrigin>origin, WRITE_NOW)
            read_whole(append.data, append.size, &append.batch)
            append.leader_epoch = leader_epoch
            append.transaction_version = transaction_version
            if guard is not None:
                append.is_guarded = True
                append.guard = <PyObject *>guard
            self.append(&append)
        finally:
            PyBuffer_Release(&view)
        result = AppendResult.__new__(AppendResult)
        result.base_offset = append.base_offset
        result.last_offset = append.last_offset
        result.append_time_ms = append.append_time_ms
        result.log_start_offset = append.log_start_offset
        result.is_duplicate = append.outcome == DUPLICATE
        return result
