# cython: language_level=3
from libc.stdint cimport int16_t, int64_t

from kbroker.base.clock cimport Clock, Timers
from kbroker.base.completion cimport Completion, Steps
from kbroker.base.long_work cimport LongWork
from kbroker.topics.partition cimport Partition
from kbroker.transaction.state cimport TransactionMetadata, TransactionRow
from kbroker.transaction.store cimport StatePartition, TransactionStore


cdef class TransactionEnder:
    cdef TransactionStore store
    cdef Clock clock
    cdef Timers timers
    cdef LongWork long_work
    cdef object topics
    cdef object producer_ids
    cdef int transaction_version    # the finalized level, which the coordinator changes
    cdef dict waiting               # attempts to add partitions: a list of Timer by transactional.id
    cdef set marking                # every Ending whose markers are not all durable
    cdef dict found                 # a cache: Partition by (topic, partition)
    cdef object failed_markers
    cdef public Steps steps             # None unless a test controls the broker
    cdef bint is_stopped
    cdef readonly int64_t timed_out     # transactions that the broker has aborted, because they were open for too long
    cdef readonly int64_t fenced        # transactions that were aborted because a client has initialised their id

    cpdef end_txn(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, bint committed,
                  int client_transaction_version, object connection, Completion done)
    cdef int abort_fenced(self, StatePartition owned, TransactionMetadata metadata, Completion done) except -1
    cdef int prepare(self, TransactionMetadata metadata, int status, int transaction_version) except -1
    cdef Ending ending(self, StatePartition owned, TransactionMetadata metadata, Completion done)
    cdef int resume(self, StatePartition owned) except -1
    cdef int wait(self, str transactional_id, attempt) except -1
    cdef int repeat_attempts(self, str transactional_id) except -1
    cdef int stop(self) except -1
    cdef Partition partition(self, tuple topic_partition)


cdef class Ending(Completion):
    cdef TransactionEnder ender
    cdef StatePartition owned
    cdef TransactionMetadata metadata
    cdef Completion done            # None if no client asked for this ending
    cdef bint is_unstored_fence
    cdef TransactionRow prepared
    cdef tuple partitions           # of (topic, partition)
    cdef bytearray is_marked        # 0 or 1, by number of the partition
    cdef Py_ssize_t unmarked
    cdef list to_retry              # numbers of partitions; None while no retry is scheduled
    cdef bint is_over
    cdef bint is_released           # no point holds the marker that is about to be appended
    cdef bint has_reached_marked    # the point after the last marker

    cdef int append_prepare(self) except -1
    cdef int prepare_appended(self, object error) except -1
    cdef int reply_and_write_markers(self) except -1
    cdef bint holds(self, str point, Py_ssize_t number, proceed) except -1
    cdef int write_markers(self) except -1
    cdef int write_markers_of(self, list numbers) except -1
    cdef int write_some(self, list numbers, Py_ssize_t first, Py_ssize_t end) except -1
    cdef int marker_appended(self, Py_ssize_t number, object error) except -1
    cdef int schedule_retry(self, Py_ssize_t number, object error, object reaction) except -1
    cdef int drop_topic(self, str topic) except -1
    cdef int count_down(self, Py_ssize_t number) except -1
    cdef int complete_if_marked(self) except -1
    cdef int finish(self) except -1
