# cython: language_level=3
from libc.stdint cimport int64_t

from kbroker.log.producer_state cimport ProducerStateTable
from kbroker.log.segments cimport Segments


cdef bint write_stop_snapshot(ProducerStateTable table, snapshots, Segments segments, int64_t log_start_offset,
                              int64_t most_batch_bytes) except -1
cpdef int64_t snapshot_offset(ProducerStateTable table, int64_t floor) except -1
cpdef bytes encode_snapshot_at(ProducerStateTable table, int64_t offset)
