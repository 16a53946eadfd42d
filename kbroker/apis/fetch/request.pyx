"""A Fetch request read by hand, in all its versions, without an object for what it lists.

`read_request` walks the whole body once, so that a request that does not parse changes nothing; then the partitions are
taken from the bytes one by one, into the session that keeps them. The generic codec is the judge of both.

A request names at most MOST_NAMED topics and partitions: ten times what one broker holds.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t

from kbroker.apis.serving cimport request_bytes
from kbroker.base.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.protocol.schema import first_version, flexible_from
from kbroker.wire.bytes cimport LARGEST_TAG_COUNT, Cursor, read_int32, read_int64, take, take_unsigned_varint

cdef enum:
    CLUSTER_ID_TAG = 0
    REPLICA_STATE_TAG = 1
    REPLICA_DIRECTORY_TAG = 0
    HIGH_WATERMARK_TAG = 1
    UNKNOWN_TAG = 2
    TOPIC_ID_BYTES = 16

# The first versions with a field.
cdef int FLEXIBLE = flexible_from('FetchRequest')
cdef int SESSIONS = first_version('FetchRequest', 'session_id')
cdef int RACKS = first_version('FetchRequest', 'rack_id')
cdef int REPLICA_STATE = first_version('FetchRequest', 'replica_state')
cdef int TOPIC_IDS = first_version('FetchRequest', 'topics.topic_id')
cdef int LEADER_EPOCHS = first_version('FetchRequest', 'topics.partitions.current_leader_epoch')
cdef int LAST_FETCHED_EPOCHS = first_version('FetchRequest', 'topics.partitions.last_fetched_epoch')
cdef int LOG_START_OFFSETS = first_version('FetchRequest', 'topics.partitions.log_start_offset')
cdef int REPLICA_DIRECTORIES = first_version('FetchRequest', 'topics.partitions.replica_directory_id')
cdef int HIGH_WATERMARKS = first_version('FetchRequest', 'topics.partitions.high_watermark')


cdef int read_request(FetchRequest *request, const uint8_t *at, const uint8_t *end, int version) except -1:
    """Read the fields, and find the arrays. Other bytes may follow the request.

    Raises ProtocolError unless the bytes begin with a Fetch request of that version, KafkaError INVALID_REQUEST if it
    names too much. Versions without an error for the whole request raise ProtocolError for both.
    """
    cdef Cursor cursor
    cdef AskedTopic topic
    cdef AskedPartition partition
    cdef Py_ssize_t i, topics
    cursor.at, cursor.end = at, end
    request.version = version
    request.named = request.partitions_left = request.tags = 0
    request.topics_left = NOT_BEGUN
    request.is_forgetting = False
    request.replica_id = -1 if version >= REPLICA_STATE else read_int32(take(&cursor, 4))
    request.max_wait_ms = read_int32(take(&cursor, 4))
    request.min_bytes = read_int32(take(&cursor, 4))
    request.max_bytes = read_int32(take(&cursor, 4))
    request.isolation_level = <int8_t>take(&cursor, 1)[0]
    request.session_id = read_int32(take(&cursor, 4)) if version >= SESSIONS else 0
    request.session_epoch = read_int32(take(&cursor, 4)) if version >= SESSIONS else -1
    request.topics = cursor
    topics = take_count(&cursor, version, 3)
    count_named(request, topics)
    for topics in range(topics, 0, -1):
        take_topic(&cursor, version, &topic)
        count_named(request, topic.partitions)
        for i in range(topic.partitions):
            count_tags(request, take_partition(&cursor, version, &partition))
        count_tags(request, end_struct(&cursor, version))
    request.forgotten_topics = cursor
    if version >= SESSIONS:
        topics = take_count(&cursor, version, 3)
        count_named(request, topics)
        for topics in range(topics, 0, -1):
            take_forgotten_topic(&cursor, version, &topic)
            count_named(request, topic.partitions)
            take(&cursor, 4 * topic.partitions)
            count_tags(request, end_struct(&cursor, version))
    if version >= RACKS:
        take_string(&cursor, version, False, &topic)
    if version >= FLEXIBLE:
        take_request_tags(&cursor, request)
    return 0


cdef int count_named(FetchRequest *request, Py_ssize_t count) except -1:
    request.named += count
    if request.named > MOST_NAMED:
        problem = f'at most {MOST_NAMED} topics and partitions expected, found {request.named} or more'
        if request.version < SESSIONS:
            raise ProtocolError(problem)
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    return 0


cdef int count_tags(FetchRequest *request, int count) except -1:
    request.tags += count
    if request.tags > request_bytes.MOST_REQUEST_TAGS:
        raise ProtocolError(f'at most {request_bytes.MOST_REQUEST_TAGS} tagged fields expected, found {request.tags} '
                            'or more')
    return 0


cdef Py_ssize_t take_count(Cursor *cursor, int version, Py_ssize_t element_bytes) except -1:
    """The number of elements of an array, none of them smaller than that."""
    return request_bytes.take_count(cursor, version >= FLEXIBLE, element_bytes)


cdef int take_string(Cursor *cursor, int version, bint nullable, AskedTopic *topic) except -1:
    """Into the key of `topic`; no bytes for null."""
    topic.key_bytes = max(<Py_ssize_t>0, request_bytes.take_string(cursor, version >= FLEXIBLE, nullable, &topic.key))
    return 0


cdef int take_key(Cursor *cursor, int version, AskedTopic *topic) except -1:
    if version < TOPIC_IDS:
        return take_string(cursor, version, False, topic)
    topic.key = take(cursor, TOPIC_ID_BYTES)
    topic.key_bytes = TOPIC_ID_BYTES
    return 0


cdef int take_topic(Cursor *cursor, int version, AskedTopic *topic) except -1:
    """A topic up to its partitions; behind those comes `end_struct`."""
    take_key(cursor, version, topic)
    topic.partitions = take_count(cursor, version, 16)
    return 0


cdef int take_forgotten_topic(Cursor *cursor, int version, AskedTopic *topic) except -1:
    """A forgotten topic up to its partitions, which are int32s; behind those comes `end_struct`."""
    take_key(cursor, version, topic)
    topic.partitions = take_count(cursor, version, 4)
    return 0


cdef int take_partition(Cursor *cursor, int version, AskedPartition *partition) except -1:
    """Return the number of its tags."""
    partition.index = read_int32(take(cursor, 4))
    partition.current_leader_epoch = read_int32(take(cursor, 4)) if version >= LEADER_EPOCHS else -1
    partition.fetch_offset = read_int64(take(cursor, 8))
    partition.last_fetched_epoch = read_int32(take(cursor, 4)) if version >= LAST_FETCHED_EPOCHS else -1
    if version >= LOG_START_OFFSETS:
        take(cursor, 8)         # the log start of a follower
    partition.max_bytes = read_int32(take(cursor, 4))
    return take_partition_tags(cursor, version) if version >= FLEXIBLE else 0


cdef int take_tag(Cursor *cursor, Cursor *value) except -1:
    """The number of the next tag, and its bytes."""
    cdef uint64_t tag = take_unsigned_varint(cursor, 5)
    cdef Py_ssize_t size = <Py_ssize_t>take_unsigned_varint(cursor, 5)
    value.at = take(cursor, size)
    value.end = value.at + size
    return <int>min(tag, <uint64_t>UNKNOWN_TAG)


cdef int expect_end_of_tag(Cursor *value) except -1:
    if value.at != value.end:
        raise ProtocolError(f'{value.end - value.at} bytes left over in a tag')
    return 0


cdef int take_tag_count(Cursor *cursor) except -1:
    cdef uint64_t count = take_unsigned_varint(cursor, 5)
    if count > LARGEST_TAG_COUNT:
        raise ProtocolError(f'{count} tagged fields, at most {LARGEST_TAG_COUNT} expected')
    return <int>count


cdef int end_struct(Cursor *cursor, int version) except -1:
    """Skip the tags of a struct that knows none. Return their number."""
    cdef Cursor value
    cdef int count = 0
    if version >= FLEXIBLE:
        count = take_tag_count(cursor)
        for _ in range(count):
            take_tag(cursor, &value)
    return count


cdef int take_partition_tags(Cursor *cursor, int version) except -1:
    """Check and skip the tags, which only followers send. Return their number."""
    cdef Cursor value
    cdef int count = take_tag_count(cursor)
    cdef int left = count
    cdef int tag
    while left:
        tag = take_tag(cursor, &value)
        if tag == REPLICA_DIRECTORY_TAG and version >= REPLICA_DIRECTORIES:
            take(&value, TOPIC_ID_BYTES)
            expect_end_of_tag(&value)
        elif tag == HIGH_WATERMARK_TAG and version >= HIGH_WATERMARKS:
            take(&value, 8)
            expect_end_of_tag(&value)
        left -= 1
    return count


cdef int take_request_tags(Cursor *cursor, FetchRequest *request) except -1:
    cdef Cursor value
    cdef AskedTopic cluster_id
    cdef int left = take_tag_count(cursor)
    cdef int tag
    while left:
        tag = take_tag(cursor, &value)
        if tag == CLUSTER_ID_TAG:
            take_string(&value, request.version, True, &cluster_id)
            expect_end_of_tag(&value)
        elif tag == REPLICA_STATE_TAG and request.version >= REPLICA_STATE:
            request.replica_id = read_int32(take(&value, 4))
            take(&value, 8)
            end_struct(&value, request.version)
            expect_end_of_tag(&value)
        left -= 1
    return 0


def read(const uint8_t[::1] frame, int version, Py_ssize_t position=0):
    """Return (fields, topics, forgotten topics) of a request as plain Python, for the judge. Raises ProtocolError."""
    cdef FetchRequest request
    cdef Cursor cursor
    cdef AskedTopic topic
    cdef AskedPartition asked
    cdef const uint8_t *at = &frame[0] if frame.shape[0] else NULL
    cdef list topics = [], forgotten = [], partitions
    read_request(&request, at + position, at + frame.shape[0], version)
    cursor = request.topics
    for _ in range(take_count(&cursor, version, 3)):
        take_topic(&cursor, version, &topic)
        partitions = []
        for _ in range(topic.partitions):
            take_partition(&cursor, version, &asked)
            partitions.append((asked.index, asked.current_leader_epoch, asked.fetch_offset, asked.last_fetched_epoch,
                               asked.max_bytes))
        end_struct(&cursor, version)
        topics.append((PyBytes_FromStringAndSize(<const char *>topic.key, topic.key_bytes), partitions))
    if version >= SESSIONS:
        cursor = request.forgotten_topics
        for _ in range(take_count(&cursor, version, 3)):
            take_forgotten_topic(&cursor, version, &topic)
            partitions = [read_int32(take(&cursor, 4)) for _ in range(topic.partitions)]
            end_struct(&cursor, version)
            forgotten.append((PyBytes_FromStringAndSize(<const char *>topic.key, topic.key_bytes), partitions))
    fields = (request.replica_id, request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level,
              request.session_id, request.session_epoch)
    return fields, topics, forgotten
