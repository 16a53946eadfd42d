"""Reads Fetch requests without creating objects for their partitions.

`read_request` first reads the whole body, so that a request that does not parse has no effect. After that, the session
reads the partitions from the bytes a second time, one by one, and keeps them. A request names at most MOST_NAMED topics
and partitions, which is ten times what one broker holds.
"""
from libc.stdint cimport int32_t

from kbroker.apis.serving.request_fields cimport (
    FieldReader, RequestFields, end_struct, fields_of, open_tagged, pull_count, pull_int8, pull_int32, pull_int64,
    pull_name_or_id,
)
from kbroker.wire.bytes cimport Cursor, read_int32, take

cdef RequestFields REQUEST = fields_of('FetchRequest')
cdef Py_ssize_t REPLICA_ID = REQUEST.field('replica_id', 'int32')
cdef Py_ssize_t REPLICA_STATE = REQUEST.field('replica_state', 'struct')
cdef Py_ssize_t STATE_REPLICA_ID = REQUEST.field('replica_state.replica_id', 'int32')
cdef Py_ssize_t MAX_WAIT_MS = REQUEST.field('max_wait_ms', 'int32')
cdef Py_ssize_t MIN_BYTES = REQUEST.field('min_bytes', 'int32')
cdef Py_ssize_t MAX_BYTES = REQUEST.field('max_bytes', 'int32')
cdef Py_ssize_t ISOLATION_LEVEL = REQUEST.field('isolation_level', 'int8')
cdef Py_ssize_t SESSION_ID = REQUEST.field('session_id', 'int32')
cdef Py_ssize_t SESSION_EPOCH = REQUEST.field('session_epoch', 'int32')
cdef Py_ssize_t TOPICS = REQUEST.field('topics', '[]struct')
cdef Py_ssize_t TOPIC = REQUEST.field('topics.topic', 'string')
cdef Py_ssize_t TOPIC_ID = REQUEST.field('topics.topic_id', 'uuid')
cdef Py_ssize_t PARTITIONS = REQUEST.field('topics.partitions', '[]struct')
cdef Py_ssize_t PARTITION = REQUEST.field('topics.partitions.partition', 'int32')
cdef Py_ssize_t CURRENT_LEADER_EPOCH = REQUEST.field('topics.partitions.current_leader_epoch', 'int32')
cdef Py_ssize_t FETCH_OFFSET = REQUEST.field('topics.partitions.fetch_offset', 'int64')
cdef Py_ssize_t LAST_FETCHED_EPOCH = REQUEST.field('topics.partitions.last_fetched_epoch', 'int32')
cdef Py_ssize_t PARTITION_MAX_BYTES = REQUEST.field('topics.partitions.partition_max_bytes', 'int32')
cdef Py_ssize_t FORGOTTEN_TOPICS = REQUEST.field('forgotten_topics_data', '[]struct')
cdef Py_ssize_t FORGOTTEN_TOPIC = REQUEST.field('forgotten_topics_data.topic', 'string')
cdef Py_ssize_t FORGOTTEN_TOPIC_ID = REQUEST.field('forgotten_topics_data.topic_id', 'uuid')
cdef Py_ssize_t FORGOTTEN_PARTITIONS = REQUEST.field('forgotten_topics_data.partitions', '[]int32')


cdef int read_request(FetchRequest *request, const Cursor *body, int version) except -1:
    """Read the fields of a Fetch request, and store the positions of its arrays. The request may be followed by other
    bytes.

    Raise ProtocolError unless the bytes begin with a Fetch request of this version, or BoundError if it names too many
    topics and partitions.
    """
    cdef FieldReader reader, replica_state
    cdef AskedTopic topic
    cdef AskedPartition partition
    REQUEST.begin(&reader, body, version)
    request.version = version
    request.partitions_left = 0
    request.topics_left = NOT_BEGUN
    request.is_forgetting = False
    request.replica_id = pull_int32(&reader, REPLICA_ID)
    request.max_wait_ms = pull_int32(&reader, MAX_WAIT_MS)
    request.min_bytes = pull_int32(&reader, MIN_BYTES)
    request.max_bytes = pull_int32(&reader, MAX_BYTES)
    request.isolation_level = pull_int8(&reader, ISOLATION_LEVEL)
    request.session_id = pull_int32(&reader, SESSION_ID)
    request.session_epoch = pull_int32(&reader, SESSION_EPOCH)
    request.topics = reader
    for _ in range(begin_topics(&reader)):
        take_topic(&reader, &topic)
        for _ in range(topic.partitions):
            take_partition(&reader, &partition)
        end_topic(&reader)
    request.forgotten_topics = reader
    for _ in range(begin_forgotten_topics(&reader)):
        take_forgotten_topic(&reader, &topic)
        take(&reader.cursor, 4 * topic.partitions)
        end_forgotten_topic(&reader)
    end_struct(&reader, 0)
    if open_tagged(&reader, &replica_state):
        request.replica_id = pull_int32(&replica_state, STATE_REPLICA_ID)
    request.named = MOST_NAMED - reader.left[0]
    return 0


cdef Py_ssize_t begin_topics(FieldReader *reader) except -1:
    """Begin to read the array of topics. Return their number."""
    return pull_count(reader, TOPICS)


cdef int take_topic(FieldReader *reader, AskedTopic *topic) except -1:
    """Read a topic up to its partitions. After reading the partitions, the caller calls `end_topic`."""
    topic.key_bytes = pull_name_or_id(reader, TOPIC, TOPIC_ID, &topic.key)
    topic.partitions = pull_count(reader, PARTITIONS)
    return 0


cdef int take_partition(FieldReader *reader, AskedPartition *partition) except -1:
    """Read a partition. Skip the fields that only followers set."""
    partition.index = pull_int32(reader, PARTITION)
    partition.current_leader_epoch = pull_int32(reader, CURRENT_LEADER_EPOCH)
    partition.fetch_offset = pull_int64(reader, FETCH_OFFSET)
    partition.last_fetched_epoch = pull_int32(reader, LAST_FETCHED_EPOCH)
    partition.max_bytes = pull_int32(reader, PARTITION_MAX_BYTES)
    return end_struct(reader, PARTITIONS)


cdef int end_topic(FieldReader *reader) except -1:
    return end_struct(reader, TOPICS)


cdef Py_ssize_t begin_forgotten_topics(FieldReader *reader) except -1:
    """Begin to read the array of forgotten topics. Return their number, which is 0 in versions without sessions."""
    return pull_count(reader, FORGOTTEN_TOPICS)


cdef int take_forgotten_topic(FieldReader *reader, AskedTopic *topic) except -1:
    """Read a forgotten topic up to its partitions. After reading the partitions, the caller calls
    `end_forgotten_topic`."""
    topic.key_bytes = pull_name_or_id(reader, FORGOTTEN_TOPIC, FORGOTTEN_TOPIC_ID, &topic.key)
    topic.partitions = pull_count(reader, FORGOTTEN_PARTITIONS)
    return 0


cdef int32_t take_forgotten_partition(FieldReader *reader) except? -2147483001:
    return read_int32(take(&reader.cursor, 4))


cdef int end_forgotten_topic(FieldReader *reader) except -1:
    return end_struct(reader, FORGOTTEN_TOPICS)
