# cython: language_level=3
from libc.stdint cimport int64_t

from kbroker.log.producer_state cimport ProducerStateTable


cpdef int64_t snapshot_offset(ProducerStateTable table, int64_t floor) except -1
cpdef bytes encode_snapshot_at(ProducerStateTable table, int64_t offset)
