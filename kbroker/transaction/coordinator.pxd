# cython: language_level=3
from libc.stdint cimport int16_t, int64_t

from kbroker.clock cimport Clock, Timers
from kbroker.topics.partition cimport DurableWaiter
from kbroker.transaction.markers cimport MarkerSender
from kbroker.transaction.state cimport PartitionSet, TransactionMetadata, TransactionRow
from kbroker.transaction.store cimport StatePartition, Step, TransactionStore


cdef class Asker:
    cdef int answered(self, object error, int64_t producer_id, int16_t producer_epoch) except -1


cdef class WriteAsker(DurableWaiter):
    cdef int verified(self, dict errors) except -1


cdef class TransactionCoordinator:
    cdef object _config
    cdef Clock _clock
    cdef Timers _timers
    cdef object _topics
    cdef object _producer_ids
    cdef int _transaction_version
    cdef MarkerSender _markers
    cdef readonly TransactionStore store
    cdef dict _waiting_adds
    cdef dict _alone                # PartitionSet by the only partition in it, as far as asked for
    cdef list _stops

    cpdef add_partitions(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, partitions,
                         int client_transaction_version, done)
    cpdef add_partitions_in_turn(self, str transactional_id, int64_t producer_id, int16_t producer_epoch,
                                 PartitionSet partitions, int client_transaction_version, done)
    cpdef end_txn(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, bint committed,
                  int client_transaction_version, done)
    cpdef add_or_verify_partitions(self, str transactional_id, int64_t producer_id, int16_t producer_epoch,
                                   list partitions, int produce_version, done)
    cdef Adding adding(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, PartitionSet partitions,
                       int client_transaction_version, done)
    cdef PartitionSet set_of_partitions(self, list partitions)
    cdef int add(self, Adding adding) except -1
    cdef StatePartition owner(self, str transactional_id)
    cdef int abort_fenced(self, StatePartition owned, TransactionMetadata metadata, done) except -1
    cdef int prepare_end(self, TransactionMetadata metadata, int status, int transaction_version) except -1
    cdef int append_decision(self, StatePartition owned, TransactionMetadata metadata, done, bint is_unstored_fence) except -1
    cdef int check_row_can_hold(self, int client_transaction_version) except -1
    cdef int add_later(self, str transactional_id, add) except -1
    cdef int wake_waiting_adds(self, str transactional_id) except -1


cdef class Ending(Step):
    cdef TransactionCoordinator coordinator
    cdef object done
    cdef bint is_unstored_fence

    cdef int send_markers(self, TransactionRow prepared) except -1


cdef class Adding(Step):
    cdef TransactionCoordinator coordinator
    cdef str transactional_id
    cdef int64_t producer_id
    cdef int16_t producer_epoch
    cdef PartitionSet partitions
    cdef int client_transaction_version
    cdef int64_t deadline_ms
    cdef object mode
    cdef object done

    cpdef attempt(self)
