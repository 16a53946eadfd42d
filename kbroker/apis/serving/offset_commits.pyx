"""Looks up the topics and partitions of OffsetCommit and TxnOffsetCommit requests."""
from libc.stdint cimport int32_t, int64_t

from kbroker.apis.serving.request cimport Request
from kbroker.group.commits cimport NewOffset

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.security.acl_codes import Operation, ResourceType

cdef enum:
    LEAST_ROW_BYTES = 50        # less than the row of any offset
    FEW = 1_000                 # topics and partitions whose rows fit in any case

cdef object ERROR_CODE = ErrorCode
cdef object TOPIC_AUTHORIZATION_FAILED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
cdef object UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
cdef object UNKNOWN_TOPIC_ID = ErrorCode.UNKNOWN_TOPIC_ID
cdef int READ = Operation.READ
cdef int TOPIC = ResourceType.TOPIC


cdef Py_ssize_t count_partitions(groups, str group_id, list topics) except -1:
    """Return how many topics and partitions a request names. Raise KafkaError UNKNOWN_SERVER_ERROR if their rows cannot
    fit into one batch."""
    cdef Py_ssize_t count = 0, most = FEW
    for topic in topics:
        count += 1 + len(topic.partitions)
        if count > most:
            most = max(most, <Py_ssize_t>(groups.max_message_bytes(group_id) // LEAST_ROW_BYTES))
            if count > most:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f'found {count} topics and partitions or more, max.message.bytes allows '
                    f'{groups.max_message_bytes(group_id)} bytes of rows, {LEAST_ROW_BYTES} or more for each')
    return count


cdef list topics_to_commit(Request request, list topics, bint by_id):
    """Return a list with the Topic for each topic of a request, or the ErrorCode with which its offsets are refused.

    Callers keep the Topic, because it may be deleted while the commit waits.
    """
    registry = request.node.topics
    cdef list hosted = []
    for topic in topics:
        name = None
        if by_id:
            found = registry.topic_by_id(topic.topic_id)
            if found is not None and request.access is not None:
                name = found.name
        else:
            name = topic.name
            found = registry.topic(name)
        if name is not None and not request.may(READ, TOPIC, name):
            found = TOPIC_AUTHORIZATION_FAILED
        elif found is None:
            found = UNKNOWN_TOPIC_ID if by_id else UNKNOWN_TOPIC_OR_PARTITION
        hosted.append(found)
    return hosted


cdef dict offsets_to_commit(list topics, list hosted):
    """Return {(topic, partition): NewOffset} for all partitions that exist.

    `topics` are the topics of the request. `hosted` is the result of `topics_to_commit`.
    """
    cdef dict found = {}
    cdef NewOffset new
    cdef int32_t index
    cdef Py_ssize_t i, count
    for i in range(len(topics)):
        known = hosted[i]
        if type(known) is ERROR_CODE:
            continue
        name, topic_id, count = known.name, known.topic_id, len(known.partitions)
        for partition in <list?>topics[i].partitions:
            index = partition.partition_index
            if 0 <= index < count:
                new = NewOffset.__new__(NewOffset)
                new.offset = partition.committed_offset
                new.leader_epoch = partition.committed_leader_epoch
                new.metadata = partition.committed_metadata
                new.topic_id = topic_id
                found[name, index] = new
    return found
