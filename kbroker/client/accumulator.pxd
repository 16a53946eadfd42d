from libc.stdint cimport int32_t, int64_t

from kbroker.base.clock cimport Clock
from kbroker.client.partition_buffer cimport PartitionBuffer, SpareBuffers
from kbroker.record.record_writer cimport Rows


cdef class ProducerBatch:
    cdef readonly PartitionBuffer buffer
    cdef readonly int64_t created_ms
    cdef readonly int64_t ordinal
    cdef readonly object producer
    cdef public object base_sequence
    cdef public int64_t retry_at_ms
    cdef public int64_t attempts
    cdef public bint is_in_doubt
    cdef Py_ssize_t reserved_bytes_of_half


cdef class PartitionQueue:
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly ProducerBatch open
    cdef readonly object waiting
    cdef readonly list in_flight
    cdef public object producer
    cdef public int64_t next_sequence
    cdef Py_ssize_t batch_bytes
    cdef int compression
    cdef object compression_level
    cdef SpareBuffers spares
    cdef bint grows             # whether the last batch was large enough for a spare buffer
    cdef int64_t next_ordinal

    cdef Py_ssize_t add(self, int64_t timestamp_ms, bytes key, bytes value, list headers, object context,
                        Clock clock) except -1
    cdef Py_ssize_t add_rows(self, const Rows *rows, Py_ssize_t first, Py_ssize_t end, object context,
                             Clock clock, Py_ssize_t *added_bytes) except -1
    cdef int begin(self, Clock clock) except -1
    cdef int64_t due_at_ms(self, int64_t linger_ms) except -1
    cdef Py_ssize_t place_of(self, ProducerBatch batch) except -1
    cpdef close_open(self)
