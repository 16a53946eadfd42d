# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t

from kbroker.topics.partition cimport Partition


cdef int64_t append_batch(Partition partition, uint8_t *data, Py_ssize_t size, int transaction_version) except -1
