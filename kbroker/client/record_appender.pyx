"""Appends the records given to `send` to the open batches of their partitions."""
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport INT32_MAX, int32_t, int64_t

from kbroker.base.clock cimport Clock
from kbroker.client.accumulator cimport PartitionQueue, ProducerBatch
from kbroker.client.columns_to_send cimport RowsToSend, checked_timestamp_ms, checked_topic
from kbroker.client.partition_buffer cimport SpareBuffers
from kbroker.client.partitioner cimport StickyPartitions, partition_of
from kbroker.record.batch cimport HEADER_BYTES
from kbroker.record.record_writer cimport (
    HEADER_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, Blob, as_bytes, as_headers, blob_of,
)

from kbroker.base.errors import ErrorCode, KafkaError

cdef enum:
    # The bytes of rows that `send_batch` queues before the producer takes a turn. Because several partitions then have
    # batches, one request carries all batches for a broker.
    BYTES_OF_A_TURN = 256 * 1024


cdef Py_ssize_t most_bytes(bytes key, bytes value, list headers) except -1:
    cdef Py_ssize_t size = RECORD_OVERHEAD_BYTES
    size += max(blob_of(key).size, <Py_ssize_t>0) + max(blob_of(value).size, <Py_ssize_t>0)
    for name, content in headers:
        size += HEADER_OVERHEAD_BYTES + len(<bytes>name) + max(blob_of(<bytes>content).size, <Py_ssize_t>0)
    return size


def record_bytes(key, value, headers):
    """Return the largest size that the record can have in a batch, in bytes. max.request.size limits this size."""
    return most_bytes(as_bytes(key), as_bytes(value), as_headers(headers))


cdef int32_t partition_index(partition) except -1:
    """Return a partition number. Raise TypeError if it is no integer, ValueError if it is negative or too large."""
    cdef int overflow = 0
    cdef int64_t index
    try:
        index = PyLong_AsLongLongAndOverflow(partition, &overflow)
    except TypeError:
        raise TypeError(f'found {type(partition).__name__} as a partition, expected int') from None
    if overflow or not 0 <= index <= INT32_MAX:
        raise ValueError(f'found partition {partition}, expected 0 to {INT32_MAX}')
    return <int32_t>index


cdef class TopicQueues:
    """The partitions of one topic, the sticky partition, and the queues of the partitions in use."""

    def __cinit__(self, str topic not None, metadata, Py_ssize_t batch_bytes):
        self.topic = topic
        self.sticky = StickyPartitions(batch_bytes)
        self.queues = {}
        self.retired = {}
        self.adopt(metadata)

    cdef int adopt(self, metadata) except -1:
        """Adopt the metadata of the topic. The queue of a partition that no longer exists keeps its batches."""
        self.partitions = metadata.partitions
        self.partitions_count = len(metadata.partitions)
        self.available = [index for index, partition in metadata.partitions.items() if partition.leader_id >= 0]
        if not self.available:
            self.available = list(metadata.partitions)
        self.last_queue = None
        for partition in [partition for partition in self.queues if partition not in self.partitions]:
            self.retired[partition] = self.queues.pop(partition)
        return 0

    cdef list all_queues(self):
        return [*self.queues.values(), *self.retired.values()]


cdef class RecordAppender:
    """Chooses the partition of each record and adds the record to its queue.

    `find_topic` returns the metadata of a topic. It is called when a topic is first used, and when a deleted topic is
    used again. `await_room` is called with a number of bytes. It returns when buffer.memory has room for them, or
    raises an error.
    """

    def __init__(self, settings, Clock clock not None, find_topic, await_room):
        self.settings = settings
        self.clock = clock
        self.find_topic = find_topic
        self.await_room = await_room
        self.topics = {}
        self.deleted_topics = {}
        self.queues = []
        self.batch_bytes = min(settings.batch_size_bytes, settings.buffer_memory_bytes)
        self.spares = SpareBuffers(self.batch_bytes)
        self.memory_bytes = settings.buffer_memory_bytes
        self.largest_record_bytes = settings.max_request_size_bytes - HEADER_BYTES

    def append(self, topic, value, key, headers, partition, timestamp_ms, context):
        """Add a record. Return True if this closed a full batch, which now waits to be sent.

        Raise ValueError for a partition or timestamp that is not valid. Raise KafkaError with
        UNKNOWN_TOPIC_OR_PARTITION, or with MESSAGE_TOO_LARGE for a record over max.request.size. Also raise the errors
        of `await_room`.
        """
        cdef bytes value_bytes = as_bytes(value, 'a value'), key_bytes = as_bytes(key, 'a key')
        cdef list header_bytes = as_headers(headers)
        cdef Blob key_blob = blob_of(key_bytes)
        cdef Py_ssize_t size = most_bytes(key_bytes, value_bytes, header_bytes)
        cdef int64_t when_ms = self.clock.wall_ms() if timestamp_ms is None else checked_timestamp_ms(timestamp_ms)
        cdef int32_t index
        cdef TopicQueues known
        cdef PartitionQueue queue
        cdef ProducerBatch before
        self.check_size(size)
        if size > self.memory_bytes - self.buffered_bytes:
            self.await_room(size)
        known = self.topic_queues(topic if type(topic) is str else checked_topic(topic))
        if partition is not None:
            index = partition_index(partition)
        elif key_bytes is None:
            index = known.sticky.place(size, known.available)
        else:
            index = partition_of(key_blob.at, key_blob.size, known.partitions_count)
        queue = self.queue_of(known, index)
        before = queue.open
        self.buffered_bytes += queue.add(when_ms, key_bytes, value_bytes, header_bytes, context, self.clock)
        return before is not None and before is not queue.open

    def append_rows(self, RowsToSend rows not None):
        """Add rows until the full batches have enough bytes for a turn (BYTES_OF_A_TURN). Return True if they have.

        Raise the same errors as `append`. Except for the errors of `await_room`, they are raised before any row is
        added.
        """
        cdef TopicQueues known = self.topic_queues(rows.topic)
        cdef bint is_sticky = rows.partition is None and rows.keys is None
        cdef Py_ssize_t end = rows.count, count, size = 0, added_bytes = 0
        cdef int32_t index = 0
        cdef PartitionQueue queue
        if rows.position == 0 and rows.count:
            self.begin_rows(rows, known)
        while rows.position < rows.count:
            if rows.room_bytes > self.memory_bytes - self.buffered_bytes:
                self.await_room(rows.room_bytes)
                known = self.topic_queues(rows.topic)
            if is_sticky:
                index = known.sticky.place(0, known.available)
            elif rows.partition is not None:
                index = partition_index(rows.partition)
            else:
                while rows.ends[index] <= rows.position:
                    index += 1
                end = rows.ends[index]
            queue = self.queue_of(known, index)
            count = queue.add_rows(&rows.rows, rows.position, end, rows.context, self.clock, &size)
            self.buffered_bytes += size
            added_bytes += size
            rows.position += count
            if is_sticky:
                known.sticky.placed_bytes += size
            if queue.open is None:
                if is_sticky:
                    known.sticky.placed_bytes = known.sticky.batch_bytes    # the next batch is for another partition
                if added_bytes >= BYTES_OF_A_TURN:
                    return True
        return False

    cdef int begin_rows(self, RowsToSend rows, TopicQueues known) except -1:
        """Check the rows before the first row is added. Sort the rows by partition if they have keys."""
        cdef Py_ssize_t largest_bytes = RECORD_OVERHEAD_BYTES + rows.largest_bytes()
        self.check_size(largest_bytes)
        rows.room_bytes = max(largest_bytes, self.batch_bytes)
        if rows.rows.timestamps_ms == NULL:
            rows.rows.timestamp_ms = self.clock.wall_ms()
        if rows.partition is not None:
            self.queue_of(known, partition_index(rows.partition))
        elif rows.keys is not None and rows.rows.order == NULL:
            rows.place(known.partitions_count, known.sticky, known.available)
        return 0

    def release(self, ProducerBatch batch not None):
        """Free the part of buffer.memory that a finished batch has reserved. The bytes of the batch are dropped."""
        self.buffered_bytes -= batch.reserved_bytes
        batch.buffer.release()

    def topic_names(self):
        """Return the topics in use."""
        return list(self.topics)

    def adopt(self, str topic not None, metadata):
        """Adopt new metadata of a topic in use. None means that the topic was deleted."""
        cdef TopicQueues known = self.topics[topic]
        if metadata is None:
            self.deleted_topics[topic] = self.topics.pop(topic)
        else:
            known.adopt(metadata)

    def idle_queues(self, int64_t idle_ms):
        """Return {topic: queues} for the topics that had no record for `idle_ms` and have no batch.

        The time of a record is only measured by the next call of this method. So calls must be more frequent than
        `idle_ms`.
        """
        cdef TopicQueues known
        cdef int64_t now_ms = self.clock.monotonic_ms()
        idle = {}
        for known in [*self.topics.values(), *self.deleted_topics.values()]:
            if known.is_used:
                known.is_used, known.idle_since_ms = False, now_ms
            elif now_ms - known.idle_since_ms >= idle_ms and all(queue.is_empty for queue in known.all_queues()):
                idle[known.topic] = known.all_queues()
        return idle

    def forget(self, topics):
        """Forget topics that have no batches. If such a topic is used again, the sequence numbers of its partitions
        begin at 0.
        """
        gone = set(topics)
        for topic in gone:
            self.topics.pop(topic, None)
            self.deleted_topics.pop(topic, None)
        self.queues[:] = [queue for queue in self.queues if queue.topic not in gone]

    cdef int check_size(self, Py_ssize_t size) except -1:
        if size > self.largest_record_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f'the record takes {size} bytes, max.request.size is '
                                                          f'{self.settings.max_request_size_bytes}')
        if size > self.memory_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f'the record takes {size} bytes, buffer.memory is '
                                                          f'{self.memory_bytes}')
        return 0

    cdef TopicQueues topic_queues(self, str topic):
        cdef TopicQueues known = self.topics.get(topic)
        if known is None:
            metadata = self.find_topic(topic)
            known = self.deleted_topics.pop(topic, None)
            if known is None:
                known = TopicQueues(topic, metadata, self.batch_bytes)
            else:
                known.adopt(metadata)
            self.topics[topic] = known
        known.is_used = True
        return known

    cdef PartitionQueue queue_of(self, TopicQueues known, int32_t partition):
        cdef PartitionQueue queue = known.last_queue
        if queue is not None and queue.partition == partition:
            return queue
        queue = known.queues.get(partition)
        if queue is None:
            if partition not in known.partitions:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'{known.topic}-{partition} does not exist: the '
                                 f'topic has {known.partitions_count} partitions')
            queue = known.retired.pop(partition, None)
            if queue is None:
                queue = PartitionQueue(known.topic, partition, self.batch_bytes, self.settings.compression,
                                       self.settings.compression_level, self.spares)
                self.queues.append(queue)
            known.queues[partition] = queue
        known.last_queue = queue
        return queue
