from libc.stdint cimport int32_t, int64_t

from kbroker.record.record_writer cimport RecordWriter, Rows


cdef class SpareBuffers:
    cdef Py_ssize_t batch_bytes
    cdef Py_ssize_t most_buffers
    cdef Py_ssize_t taken_count         # the number of buffers in open batches
    cdef list buffers

    cdef bytearray take(self)
    cdef int note_closed(self) except -1
    cdef int keep(self, bytearray buffer) except -1
    cdef bint is_worth(self, Py_ssize_t used) noexcept


cdef class PartitionBuffer:
    cdef SpareBuffers spares
    cdef bint has_spare                 # whether the writer has begun with a spare buffer
    cdef RecordWriter writer            # None once the batch is closed
    cdef bytearray batch                # the whole batch, once it is closed
    cdef int compression
    cdef readonly int32_t records_count
    cdef readonly Py_ssize_t records_bytes      # without compression
    cdef int64_t base_timestamp_ms
    cdef int64_t max_timestamp_ms
    cdef readonly list contexts

    cdef Py_ssize_t append(self, int64_t timestamp_ms, bytes key, bytes value, list headers, object context,
                           Py_ssize_t largest_bytes) except -1
    cdef Py_ssize_t append_rows(self, const Rows *rows, Py_ssize_t first, Py_ssize_t end, object context,
                                Py_ssize_t largest_bytes) except -1
    cdef int note(self, int64_t timestamp_ms, Py_ssize_t count, Py_ssize_t size, object context) except -1
    cpdef close(self, int compression, level)
    cpdef release(self)
