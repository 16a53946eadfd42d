"""The path of a record from `send` into the open batch of its partition."""
from libc.stdint cimport int32_t, int64_t

from kbroker.client.accumulator cimport PartitionQueue, ProducerBatch
from kbroker.client.columns_to_send cimport RowsToSend
from kbroker.client.partitioner cimport StickyPartitions, partition_of
from kbroker.clock cimport Clock
from kbroker.record.batch cimport HEADER_BYTES
from kbroker.record.record_writer cimport Blob, as_bytes, as_headers, blob_of

from kbroker.errors import ErrorCode, KafkaError

cdef enum:
    # The most bytes that a record adds to its key, value and headers, if each of these is shorter than 2 MiB.
    RECORD_OVERHEAD_BYTES = 16
    HEADER_OVERHEAD_BYTES = 10


cdef Py_ssize_t most_bytes(bytes key, bytes value, list headers) except -1:
    cdef Py_ssize_t size = RECORD_OVERHEAD_BYTES
    size += max(blob_of(key).size, <Py_ssize_t>0) + max(blob_of(value).size, <Py_ssize_t>0)
    for name, content in headers:
        size += HEADER_OVERHEAD_BYTES + len(<bytes>name) + max(blob_of(<bytes>content).size, <Py_ssize_t>0)
    return size


def record_bytes(key, value, headers):
    """Return the most bytes that the record takes in a batch. max.request.size limits this number."""
    return most_bytes(as_bytes(key), as_bytes(value), as_headers(headers))


cdef class TopicQueues:
    """The partitions of one topic, the choice between them, and the queues of those in use."""

    def __cinit__(self, str topic not None, metadata, Py_ssize_t batch_bytes):
        self.topic = topic
        self.partitions = metadata.partitions
        self.partitions_count = len(metadata.partitions)
        self.available = [index for index, partition in metadata.partitions.items() if partition.leader_id >= 0]
        if not self.available:
            self.available = list(metadata.partitions)
        self.sticky = StickyPartitions(batch_bytes)
        self.queues = {}


cdef class RecordAppender:
    """Chooses the partition of each record and adds the record to its queue.

    `find_topic` returns the metadata of a topic. It is called once for each topic.
    """

    def __init__(self, settings, Clock clock not None, find_topic):
        self.settings = settings
        self.clock = clock
        self.find_topic = find_topic
        self.topics = {}
        self.queues = []
        self.largest_record_bytes = settings.max_request_size_bytes - HEADER_BYTES

    def append(self, str topic not None, value, key, headers, partition, timestamp_ms, context):
        """Add a record. Returns True if a batch became full and now waits.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, or MESSAGE_TOO_LARGE for a record over max.request.size.
        """
        cdef bytes value_bytes = as_bytes(value), key_bytes = as_bytes(key)
        cdef list header_bytes = as_headers(headers)
        cdef Blob key_blob = blob_of(key_bytes)
        cdef Py_ssize_t size = most_bytes(key_bytes, value_bytes, header_bytes)
        cdef int64_t when_ms = self.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        cdef int32_t index
        cdef TopicQueues known
        cdef PartitionQueue queue
        cdef ProducerBatch before
        self.check_size(size)
        known = self.topic_queues(topic)
        if partition is not None:
            index = partition
        elif key_bytes is None:
            index = known.sticky.place(size, known.available)
        else:
            index = partition_of(key_blob.at, key_blob.size, known.partitions_count)
        queue = self.queue_of(known, index)
        before = queue.open
        self.buffered_bytes += queue.add(when_ms, key_bytes, value_bytes, header_bytes, context, self.clock)
        return before is not None and before is not queue.open

    def append_rows(self, RowsToSend rows not None):
        """Add rows until a batch is full. Returns True if rows are left. Raises as `append`, before it adds any."""
        cdef TopicQueues known = self.topic_queues(rows.topic)
        cdef bint is_sticky = rows.partition is None and rows.keys is None
        cdef Py_ssize_t end = rows.count, count, size = 0
        cdef int32_t index = 0
        cdef PartitionQueue queue
        if rows.position == 0 and rows.count:
            self.begin_rows(rows, known)
        while rows.position < rows.count:
            if is_sticky:
                index = known.sticky.place(0, known.available)
            elif rows.partition is not None:
                index = rows.partition
            else:
                while rows.ends[index] <= rows.position:
                    index += 1
                end = rows.ends[index]
            queue = self.queue_of(known, index)
            count = queue.add_rows(&rows.rows, rows.position, end, rows.context, self.clock, &size)
            self.buffered_bytes += size
            rows.position += count
            if is_sticky:
                known.sticky.placed_bytes += size
            if queue.open is None:
                if is_sticky:
                    known.sticky.placed_bytes = known.sticky.batch_bytes    # the next batch goes to another partition
                return True
        return False

    cdef int begin_rows(self, RowsToSend rows, TopicQueues known) except -1:
        """Check the rows, and sort them by partition if they have keys."""
        self.check_size(RECORD_OVERHEAD_BYTES + rows.largest_bytes())
        if rows.rows.timestamps_ms == NULL:
            rows.rows.timestamp_ms = self.clock.wall_ms()
        if rows.partition is not None:
            self.queue_of(known, rows.partition)
        elif rows.keys is not None and rows.rows.order == NULL:
            rows.place(known.partitions_count, known.sticky, known.available)
        return 0

    def release(self, Py_ssize_t reserved_bytes):
        """Note that a batch no longer takes this part of buffer.memory."""
        self.buffered_bytes -= reserved_bytes

    cdef int check_size(self, Py_ssize_t size) except -1:
        if size > self.largest_record_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f'the record takes {size} bytes, max.request.size is '
                                                          f'{self.settings.max_request_size_bytes}')
        return 0

    cdef TopicQueues topic_queues(self, str topic):
        cdef TopicQueues known = self.topics.get(topic)
        if known is None:
            known = self.topics[topic] = TopicQueues(topic, self.find_topic(topic), self.settings.batch_size_bytes)
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
            settings = self.settings
            queue = PartitionQueue(known.topic, partition, settings.batch_size_bytes, settings.compression,
                                   settings.compression_level)
            known.queues[partition] = queue
            self.queues.append(queue)
        known.last_queue = queue
        return queue
