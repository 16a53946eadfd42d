# cython: language_level=3
cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker.base.clock cimport Clock, Timer, Timers
from kbroker.base.completion cimport Completion
from kbroker.topics.partition cimport Partition
from kbroker.transaction.stale_requests cimport StaleRequests
from kbroker.transaction.state cimport STATUSES, PartitionSet, TransactionMetadata, TransactionRow


@cython.final
cdef class RowBatch:
    cdef uint8_t *start
    cdef Py_ssize_t room
    cdef Py_ssize_t size            # of the batch so far, its header included
    cdef Py_ssize_t last            # where the row begins that was added last
    cdef int32_t count              # of rows

    cdef int add(self, bytes key, TransactionRow row, int version) except -1
    cdef int make_room(self, Py_ssize_t more) except -1
    cdef int seal(self, int64_t now_ms) except -1
    cdef void drop_last(self) noexcept
    cdef void clear(self) noexcept


@cython.final
cdef class StatePartition:
    cdef readonly Partition partition
    cdef readonly int32_t coordinator_epoch
    cdef readonly bint is_loading
    cdef readonly bint is_lost
    cdef readonly dict transactions
    cdef readonly dict open         # the part of `transactions` in a state that is not idle
    cdef RowBatch held              # Complete rows that are in force and not in the log yet

    cdef TransactionMetadata known(self, str transactional_id)


cdef class RowAppend(Completion):
    cdef TransactionStore store
    cdef StatePartition owned
    cdef TransactionMetadata metadata
    cdef TransactionRow row
    cdef Completion then
    cdef Py_ssize_t part


cdef class Tombstones(Completion):
    cdef TransactionStore store
    cdef StatePartition owned
    cdef list batch                 # TransactionMetadata


@cython.final
cdef class TransactionStore:
    cdef object _config
    cdef Clock _clock
    cdef Timers _timers
    cdef object _topics
    cdef int row_version
    cdef object _on_loaded
    cdef list _owned
    cdef Py_ssize_t _most_together_bytes
    cdef RowBatch _spare            # an empty batch for the next rows; None while it is in use
    cdef Timer _held_timer          # None while it is not armed
    cdef readonly int64_t id_bytes  # the memory of all transactional ids and their open transactions
    cdef public int64_t most_id_bytes
    cdef readonly StaleRequests stale_requests
    cdef dict sealed                # the last epoch of a kept transaction's batches, by its producer id
    cdef int64_t steps[STATUSES][STATUSES]  # how often a row of the second state has followed one of the first
    cdef int64_t dropped[STATUSES]  # the ids by state that were in memory when the store forgot all ids

    cdef int count_added(self, StatePartition owned, TransactionMetadata metadata) except -1
    cdef int count(self, StatePartition owned, TransactionMetadata metadata) except -1
    cdef int abandon(self, StatePartition owned, TransactionMetadata metadata) except -1
    cdef int adopt(self, StatePartition owned, TransactionMetadata metadata) except -1
    cdef int keep(self, StatePartition owned, TransactionMetadata metadata) except -1
    cdef int forget(self, StatePartition owned, TransactionMetadata metadata) except -1

    cdef int64_t count_steps(self, int before, int after) noexcept
    cdef int64_t count_in(self, int state) noexcept
    cpdef StatePartition owner(self, str transactional_id)
    cdef int seal(self, TransactionRow kept) except -1
    cpdef int check_not_sealed(self, int64_t producer_id, int16_t producer_epoch) except -1
    cdef int append(self, StatePartition owned, TransactionMetadata metadata, Completion then,
                    Py_ssize_t part) except -1
    cdef int hold_complete(self, StatePartition owned, TransactionMetadata metadata) except -1
    cdef int add(self, StatePartition owned, TransactionMetadata metadata) except -1
    cdef int version_of(self, TransactionRow row) noexcept
    cdef int64_t write(self, StatePartition owned, TransactionMetadata metadata) except -1
    cdef int64_t append_rows(self, StatePartition owned) except -1
    cdef int append_held_later(self, int64_t delay_ms) except -1
