"""The encoding of keys and values of `__transaction_state`, directly from rows.

`protocol.rows` encodes the same bytes from messages. A transaction writes three rows. Encoding them from messages would
take longer than all other steps of the transaction.

The tag LAST_PRODUCER_EPOCH_TAG of an Empty row has the epoch with which the client asked for the next one. If the
answer is lost and the broker restarts, the client asks again with that epoch and gets the same answer. Without the tag,
it would be fenced, although no other client has taken its place (KAFKA-20357). The row of a new client has no such tag,
so a restart never lets a fenced client in again.

The tag is kbroker's own, because the released Kafka 4.4 stores no such epoch. A change of a later Kafka adds a tag
for it, but no release confirms the number and the type of that tag. A guessed number could become that of a field of
another type, and this Kafka could not read the row. Kafka numbers its tags without gaps and skips unknown tags, so a
high number is safe. When Kafka replaces the row, the tag is gone, and the client is fenced as in Kafka.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

from kbroker.transaction.state cimport NO_PRODUCER_EPOCH, NO_PRODUCER_ID, STATUS_EMPTY, RowFields, TransactionRow
from kbroker.wire.bytes cimport put_unsigned_varint, write_int16, write_int32, write_int64

from kbroker.base.errors import ErrorCode, KafkaError

cdef enum:
    FIXED_BYTES = 80            # more than a row takes without its partitions
    TOPIC_OVERHEAD_BYTES = 16   # more than a topic takes without its name and partitions
    MAX_STRING_BYTES = 32767
    LAST_PRODUCER_EPOCH_TAG = 20357     # after the number of the defect


def encode_key(str transactional_id not None):
    """Return the key of the rows of a transactional.id: type 0 and the id.

    Raise KafkaError INVALID_REQUEST for an id that is too long for a row.
    """
    cdef bytes encoded = checked(transactional_id)
    cdef bytes key = PyBytes_FromStringAndSize(NULL, 4 + len(encoded))
    cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(key)
    write_int16(at, 0)
    write_int16(at + 2, <int16_t>len(encoded))
    memcpy(at + 4, PyBytes_AS_STRING(encoded), len(encoded))
    return key


def encode_value(TransactionRow row not None, int version):
    """Return the value of a row in version 0 or 1.

    Only version 1 has the tagged fields: the previous and next producer id, the last and next epoch and the client's
    transaction version.
    """
    cdef list topics = topics_of(row)
    cdef bytearray value = bytearray(value_room(topics))
    cdef uint8_t *start = <uint8_t *>PyByteArray_AS_STRING(value)
    cdef uint8_t *end = put_value(start, row, topics, version)
    return PyBytes_FromStringAndSize(<char *>start, end - start)


cdef Py_ssize_t value_room(list topics) except -1:
    """Return a number of bytes that suffices for the value of a row with these partitions."""
    cdef Py_ssize_t room = FIXED_BYTES
    for name, partitions in topics:
        room += len(<bytes>name) + 4 * len(<list>partitions) + TOPIC_OVERHEAD_BYTES
    return room


cdef uint8_t *put_value(uint8_t *at, TransactionRow row, list topics, int version) except NULL:
    cdef bint flexible = version > 0
    write_int16(at, <int16_t>version)
    write_int64(at + 2, row.fields.producer_id)
    write_int16(at + 10, row.fields.producer_epoch)
    write_int32(at + 12, row.fields.timeout_ms)
    at[16] = <uint8_t>row.fields.state
    at = write_topics(at + 17, None if row.fields.state == STATUS_EMPTY else topics, flexible)
    write_int64(at, row.fields.last_update_timestamp_ms)
    write_int64(at + 8, row.fields.start_timestamp_ms)
    at += 16
    if flexible:
        at = write_tags(at, &row.fields)
    return at


cdef bytes checked(str text):
    cdef bytes encoded = text.encode()
    if len(encoded) > MAX_STRING_BYTES:
        raise KafkaError(ErrorCode.INVALID_REQUEST,
                         f'found a string of {len(encoded)} bytes, expected {MAX_STRING_BYTES} at most')
    return encoded


cdef list topics_of(TransactionRow row):
    if row.partition_set.topics is None:
        row.partition_set.topics = grouped(row.partition_set.in_order())
    return row.partition_set.topics


cdef list grouped(tuple partitions):
    """Return [(encoded topic, [partitions])] for sorted (topic, partition) pairs."""
    cdef list topics = []
    cdef list indexes = None
    cdef str last = None
    for topic, partition in partitions:
        if topic != last:
            indexes = []
            topics.append((checked(topic), indexes))
            last = topic
        indexes.append(partition)
    return topics


cdef uint8_t *write_length(uint8_t *at, Py_ssize_t length, bint flexible) noexcept:
    """Write the length of an array. -1 means null.

    If `flexible`, write the length plus one as a varint, else the length as 32 bits.
    """
    if flexible:
        return put_unsigned_varint(at, length + 1)
    write_int32(at, <int32_t>length)
    return at + 4


cdef uint8_t *write_topics(uint8_t *at, list topics, bint flexible) except NULL:
    cdef bytes name
    if topics is None:
        return write_length(at, -1, flexible)
    at = write_length(at, len(topics), flexible)
    for name, partitions in topics:
        if flexible:
            at = write_length(at, len(name), True)
        else:
            write_int16(at, <int16_t>len(name))
            at += 2
        memcpy(at, PyBytes_AS_STRING(name), len(name))
        at = write_length(at + len(name), len(partitions), flexible)
        for partition in partitions:
            write_int32(at, partition)
            at += 4
        if flexible:
            at[0] = 0           # no tags in the topic
            at += 1
    return at


cdef uint8_t *write_tags(uint8_t *at, const RowFields *fields) noexcept:
    """Write the number of tagged fields.

    Then write the tag, size and value of each field whose value is not its default.
    """
    cdef uint8_t *count = at
    count[0] = 0
    at += 1
    if fields.previous_producer_id != NO_PRODUCER_ID:
        at = write_tagged_id(at, 0, fields.previous_producer_id)
        count[0] += 1
    if fields.next_producer_id != NO_PRODUCER_ID:
        at = write_tagged_id(at, 1, fields.next_producer_id)
        count[0] += 1
    if fields.client_transaction_version != 0:
        at = write_tagged_int16(at, 2, <int16_t>fields.client_transaction_version)
        count[0] += 1
    if fields.next_producer_epoch != NO_PRODUCER_EPOCH:
        at = write_tagged_int16(at, 3, fields.next_producer_epoch)
        count[0] += 1
    if fields.state == STATUS_EMPTY and fields.last_producer_epoch != NO_PRODUCER_EPOCH:
        at = write_tagged_int16(at, LAST_PRODUCER_EPOCH_TAG, fields.last_producer_epoch)
        count[0] += 1
    return at


cdef uint8_t *write_tagged_int16(uint8_t *at, int tag, int16_t number) noexcept:
    at = put_unsigned_varint(at, tag)
    at[0] = 2
    write_int16(at + 1, number)
    return at + 3


cdef uint8_t *write_tagged_id(uint8_t *at, uint8_t tag, int64_t producer_id) noexcept:
    at[0] = tag
    at[1] = 8
    write_int64(at + 2, producer_id)
    return at + 10
