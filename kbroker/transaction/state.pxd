# cython: language_level=3
cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker.log.newest_connection cimport NewestConnection


cpdef enum:
    NO_PRODUCER_ID = -1
    NO_PRODUCER_EPOCH = -1
    NO_TIMESTAMP = -1
    MAX_PRODUCER_EPOCH = 32767          # only in a fence of the coordinator, and in a producer id's last markers
    EXHAUSTED_PRODUCER_EPOCH = 32766    # from this epoch on, the client's next bump needs a new producer id
    NEVER_TIMES_OUT_MS = 2147483647     # the timeout of a producer in two-phase commit (KIP-939)
    EPOCH_BUMPS_FROM = 2                # the transaction version from which each ending bumps the epoch (KIP-890)


cdef enum Status:                   # TransactionState, for C
    STATUS_EMPTY = 0
    STATUS_ONGOING = 1
    STATUS_PREPARE_COMMIT = 2
    STATUS_PREPARE_ABORT = 3
    STATUS_COMPLETE_COMMIT = 4
    STATUS_COMPLETE_ABORT = 5
    STATUS_DEAD = 6
    STATUS_PREPARE_EPOCH_FENCE = 7
    STATUSES = 8


cdef inline bint is_idle(int status) noexcept:
    return status == STATUS_EMPTY or status == STATUS_COMPLETE_COMMIT or status == STATUS_COMPLETE_ABORT


cdef inline bint is_prepared(int status) noexcept:
    return status == STATUS_PREPARE_COMMIT or status == STATUS_PREPARE_ABORT


cdef class PartitionSet:
    cdef readonly frozenset members     # of (topic, partition)
    cdef tuple sorted_members           # None until it was needed
    cdef list topics                    # the members by encoded topic name, as in a row; None until it was needed
    cdef int64_t held_bytes             # -1 until it was needed

    cdef PartitionSet union(self, PartitionSet other)
    cdef tuple in_order(self)
    cdef int64_t measure(self) except -1

    cdef inline int64_t memory(self) except -1:
        """Return the bytes of memory of the partitions, including their sorted form and their encoded form."""
        return self.held_bytes if self.held_bytes >= 0 else self.measure()


cpdef PartitionSet set_of(partitions)


cdef struct RowFields:              # the fields of a row without its partitions; `TransactionRow` documents them
    int state
    int64_t producer_id
    int16_t producer_epoch
    int32_t timeout_ms
    int64_t last_update_timestamp_ms
    int64_t start_timestamp_ms
    int64_t previous_producer_id
    int64_t next_producer_id
    int16_t last_producer_epoch
    int client_transaction_version
    int16_t next_producer_epoch


@cython.final
cdef class TransactionRow:
    cdef RowFields fields
    cdef PartitionSet partition_set

    cdef TransactionRow copy(self)
    cdef bint keeps(self) noexcept
    cdef int64_t id_of_client(self) noexcept
    cdef int16_t epoch_of_client(self) noexcept
    cdef bint is_exhausted(self) noexcept
    cdef bint does_bump_epoch(self) noexcept
    cdef bint has_producer_of(self, TransactionRow other) noexcept


@cython.final
cdef class TransactionMetadata:
    cdef readonly str transactional_id
    cdef int64_t open_bytes         # of the partitions in its rows, as the store has counted them
    cdef bytes key                  # of its rows in the log; None until it was needed
    cdef public TransactionRow current
    cdef public TransactionRow pending
    cdef public bint has_failed_epoch_fence
    # The next fields belong to `stale_requests`: the newest connection, and the client's pair of producer id and epoch
    # that used it.
    cdef NewestConnection newest_connection
    cdef int64_t newest_producer_id
    cdef int16_t newest_producer_epoch

    cdef bint was_born(self) noexcept
    cpdef TransactionRow prepare_partitions(self, PartitionSet partitions, int client_transaction_version,
                                            int64_t now_ms)
    cpdef TransactionRow prepare_end(self, int status, int transaction_version, int64_t next_producer_id,
                                     int64_t now_ms)
    cpdef TransactionRow prepare_complete(self, int64_t now_ms)
    cpdef TransactionRow adopt(self)
    cdef TransactionRow prepare(self, TransactionRow row)
    cdef TransactionRow take_fence(self)
