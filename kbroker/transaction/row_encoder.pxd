# cython: language_level=3
from libc.stdint cimport int64_t

from kbroker.transaction.state cimport TransactionRow


cdef bytearray encode_row_batch(bytes key, TransactionRow row, int version, int64_t now_ms)
