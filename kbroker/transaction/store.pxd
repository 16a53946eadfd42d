# cython: language_level=3
from libc.stdint cimport int32_t, int64_t

from kbroker.clock cimport Clock
from kbroker.topics.partition cimport DurableWaiter
from kbroker.transaction.state cimport TransactionMetadata, TransactionRow


cdef class StatePartition:
    cdef readonly object partition
    cdef readonly int32_t coordinator_epoch
    cdef readonly bint is_loading
    cdef readonly bint is_lost
    cdef readonly dict transactions


cdef class Step(DurableWaiter):
    cdef TransactionStore store
    cdef StatePartition owned
    cdef TransactionMetadata metadata
    cdef TransactionRow row

    cdef int finish(self, object code) except -1
    cdef int appended(self, object code) except -1


cdef class TransactionStore:
    cdef object _config
    cdef Clock _clock
    cdef object _topics
    cdef int row_version
    cdef object _on_loaded
    cdef list _owned

    cpdef StatePartition owner(self, str transactional_id)
    cdef int append(self, StatePartition owned, TransactionMetadata metadata, Step step) except -1
    cdef bint settle(self, StatePartition owned, TransactionMetadata metadata) except -1
    cdef int64_t write(self, StatePartition owned, TransactionMetadata metadata) except -1
