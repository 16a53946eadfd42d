"""Shared by OffsetCommit and TxnOffsetCommit: the lookup of the partitions that they name."""
from libc.stdint cimport int32_t, int64_t

from kbroker.group.offsets cimport NewOffset


from kbroker.errors import ErrorCode, KafkaError

cdef enum:
    LEAST_ROW_BYTES = 50        # less than the row of any offset


cdef Py_ssize_t count_partitions(groups, str group_id, list topics) except -1:
    """Return how many partitions a request names. Raises UNKNOWN_SERVER_ERROR if their rows cannot fit into a batch."""
    cdef Py_ssize_t count = 0
    for topic in topics:
        count += 1 + len(topic.partitions)
    if count > 1_000 and count * LEAST_ROW_BYTES > <int64_t>groups.max_message_bytes(group_id):
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f'found {count} topics and partitions, max.message.bytes allows {groups.max_message_bytes(group_id)} bytes '
            f'of rows, {LEAST_ROW_BYTES} or more for each')
    return count


cdef dict offsets_to_commit(list topics, list hosted):
    """Return a NewOffset for each of the partitions that exist, by topic and partition.

    `topics` are those of the request, `hosted` has each of them as it is hosted, or None.
    """
    cdef dict found = {}
    cdef NewOffset new
    cdef int32_t index
    cdef Py_ssize_t i, count
    for i in range(len(topics)):
        known = hosted[i]
        if known is None:
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
