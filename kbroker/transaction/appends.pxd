# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t

from kbroker.topics.partition cimport DurableWaiter, Partition


cdef int64_t append_batch(Partition partition, uint8_t *data, Py_ssize_t size, int transaction_version) except -1
cdef int await_durable(Partition partition, int64_t offset, DurableWaiter waiter, Py_ssize_t part) except -1
