# cython: language_level=3
from libc.stdint cimport int16_t, int64_t

from kbroker.base.clock cimport Clock, Timers
from kbroker.base.completion cimport Completion
from kbroker.base.long_work cimport LongWork
from kbroker.transaction.end_transaction cimport TransactionEnder
from kbroker.transaction.state cimport PartitionSet, TransactionMetadata, TransactionRow
from kbroker.transaction.store cimport TransactionStore


cdef class TransactionCoordinator:
    cdef object _config
    cdef Clock _clock
    cdef Timers _timers
    cdef LongWork _long_work
    cdef bint _is_aborting          # while long work aborts transactions
    cdef bint _is_removing          # while long work removes expired ids
    cdef object _topics
    cdef object _producer_ids
    cdef int _transaction_version
    cdef readonly TransactionStore store
    cdef readonly TransactionEnder ender
    cdef dict _alone                # a cache: PartitionSet by the only Partition in it
    cdef list _stops

    cpdef add_partitions(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, partitions,
                         int client_transaction_version, Completion done)
    cpdef add_partitions_in_turn(self, str transactional_id, int64_t producer_id, int16_t producer_epoch,
                                 PartitionSet partitions, object connection, Completion done)
    cpdef add_or_verify_partitions(self, str transactional_id, int64_t producer_id, int16_t producer_epoch,
                                   list partitions, int produce_version, Completion done, Py_ssize_t part)
    cpdef add_or_verify_offsets_partition(self, str transactional_id, int64_t producer_id, int16_t producer_epoch,
                                          int partition, int request_version, Completion done, Py_ssize_t part)
    cdef Adding adding(self, str transactional_id, int64_t producer_id, int16_t producer_epoch,
                       PartitionSet partitions, int client_transaction_version, Completion done)
    cdef PartitionSet set_of_partitions(self, list partitions)
    cdef int add(self, Adding adding) except -1


cdef class Adding(Completion):
    cdef TransactionCoordinator coordinator
    cdef str transactional_id
    cdef int64_t producer_id
    cdef int16_t producer_epoch
    cdef PartitionSet partitions
    cdef int client_transaction_version
    cdef object connection          # of the request; None if the request cannot be late
    cdef int64_t deadline_ms
    cdef object mode
    cdef object error_for_mode      # translates errors; None: errors are not translated
    cdef Completion done
    cdef Py_ssize_t part            # of `done`

    cpdef attempt(self)
