from libc.stdint cimport int32_t, int64_t

from kbroker.base.clock cimport Clock
from kbroker.client.accumulator cimport PartitionQueue
from kbroker.client.columns_to_send cimport RowsToSend
from kbroker.client.partition_buffer cimport SpareBuffers
from kbroker.client.partitioner cimport StickyPartitions


cdef class TopicQueues:
    cdef str topic
    cdef object partitions              # all partitions of the topic
    cdef int32_t partitions_count
    cdef list available                 # the partitions with a leader, or all if none has one
    cdef StickyPartitions sticky
    cdef dict queues
    cdef dict retired                   # the queues of deleted partitions, which may come back
    cdef PartitionQueue last_queue      # the queue of the last record
    cdef bint is_used                   # whether a record came since the last search for idle topics
    cdef int64_t idle_since_ms

    cdef int adopt(self, metadata) except -1
    cdef list all_queues(self)


cdef class RecordAppender:
    cdef object settings
    cdef object find_topic
    cdef Clock clock
    cdef object await_room
    cdef dict topics
    cdef dict deleted_topics
    cdef readonly list queues
    cdef readonly Py_ssize_t buffered_bytes
    cdef SpareBuffers spares
    cdef Py_ssize_t batch_bytes
    cdef Py_ssize_t memory_bytes
    cdef Py_ssize_t largest_record_bytes

    cdef TopicQueues topic_queues(self, str topic)
    cdef PartitionQueue queue_of(self, TopicQueues known, int32_t partition)
    cdef int begin_rows(self, RowsToSend rows, TopicQueues known) except -1
    cdef int check_size(self, Py_ssize_t size) except -1
