# cython: language_level=3
from libc.stdint cimport int16_t, int64_t

from kbroker.transaction.state cimport TransactionMetadata


cdef enum:
    MOST_PARTITIONS = 10000     # the most of one transaction


cdef object busy(TransactionMetadata metadata)
cdef int check_not_busy(TransactionMetadata metadata) except -1
cdef int check_producer_id(TransactionMetadata metadata, int64_t producer_id) except -1
cdef int check_epoch(TransactionMetadata metadata, int16_t producer_epoch) except -1
cdef int check_not_kept(TransactionMetadata metadata) except -1
cdef int check_partitions_count(Py_ssize_t count) except -1
cdef int check_row_can_hold(int client_transaction_version, int transaction_version) except -1
