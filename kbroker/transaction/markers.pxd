# cython: language_level=3
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.record.batch cimport HEADER_BYTES
from kbroker.transaction.state cimport TransactionRow

cdef enum:
    MARKER_BYTES = HEADER_BYTES + 17


cdef int write_marker(uint8_t *at, TransactionRow prepared, int32_t coordinator_epoch, int64_t now_ms) except -1
