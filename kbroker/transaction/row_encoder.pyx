"""Keys and values of `__transaction_state` as bytes: what `protocol.rows` would make of them, without the messages.

A transaction writes three rows, and through the messages they would cost more than anything else that it does.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

from kbroker.wire.bytes cimport write_int16, write_int32, write_int64

from kbroker.errors import ErrorCode, KafkaError

cdef enum:
    FIXED_BYTES = 80            # more than everything beside the partitions
    TOPIC_OVERHEAD_BYTES = 16   # more than everything of a topic beside its name and its partitions
    MAX_STRING_BYTES = 32767
    EMPTY = 0
    NO_PRODUCER_ID = -1


def encode_key(str transactional_id not None):
    """The key: type 0 and the id. Raises KafkaError INVALID_REQUEST for an id that no row can hold."""
    cdef bytes encoded = checked(transactional_id)
    cdef bytes key = PyBytes_FromStringAndSize(NULL, 4 + len(encoded))
    cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(key)
    write_int16(at, 0)
    write_int16(at + 2, <int16_t>len(encoded))
    memcpy(at + 4, PyBytes_AS_STRING(encoded), len(encoded))
    return key


def encode_value(row, int version):
    """The value of a TransactionRow in version 0 or 1. Version 0 has no room for what version 1 has as tagged fields:
    the neighbouring producer ids and the client's version."""
    cdef list topics = grouped(row.partitions)
    cdef Py_ssize_t room = FIXED_BYTES
    for name, partitions in topics:
        room += len(name) + 4 * len(partitions) + TOPIC_OVERHEAD_BYTES
    cdef bytearray value = bytearray(room)
    cdef uint8_t *start = value
    cdef uint8_t *at = start
    cdef int state = row.state
    cdef bint flexible = version > 0
    write_int16(at, <int16_t>version)
    write_int64(at + 2, row.producer_id)
    write_int16(at + 10, row.producer_epoch)
    write_int32(at + 12, row.timeout_ms)
    at[16] = <uint8_t>state
    at = write_topics(at + 17, None if state == EMPTY else topics, flexible)
    write_int64(at, row.last_update_timestamp_ms)
    write_int64(at + 8, row.start_timestamp_ms)
    at += 16
    if flexible:
        at = write_tags(at, row.previous_producer_id, row.next_producer_id, row.client_transaction_version)
    return bytes(memoryview(value)[:at - start])


cdef bytes checked(str text):
    cdef bytes encoded = text.encode()
    if len(encoded) > MAX_STRING_BYTES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f'found a string of {len(encoded)} bytes, expected {MAX_STRING_BYTES} at most')
    return encoded


cdef list grouped(partitions):
    """[(topic, [partitions])], sorted."""
    cdef list topics = []
    cdef list indexes = None
    cdef str last = None
    for topic, partition in sorted(partitions) if len(partitions) > 1 else partitions:
        if topic != last:
            indexes = []
            topics.append((checked(topic), indexes))
            last = topic
        indexes.append(partition)
    return topics


cdef uint8_t *write_length(uint8_t *at, Py_ssize_t length, bint flexible) noexcept:
    """The length of an array, -1 for null: one more as a varint, or 32 bits."""
    cdef Py_ssize_t group = length + 1
    if not flexible:
        write_int32(at, <int32_t>length)
        return at + 4
    while group >= 0x80:
        at[0] = <uint8_t>(group & 0x7f | 0x80)
        group >>= 7
        at += 1
    at[0] = <uint8_t>group
    return at + 1


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


cdef uint8_t *write_tags(uint8_t *at, int64_t previous_producer_id, int64_t next_producer_id,
                         int16_t client_transaction_version) noexcept:
    """Count, then tag, size and value of each field that is not at its default."""
    cdef uint8_t *count = at
    count[0] = 0
    at += 1
    if previous_producer_id != NO_PRODUCER_ID:
        at = write_tagged_id(at, 0, previous_producer_id)
        count[0] += 1
    if next_producer_id != NO_PRODUCER_ID:
        at = write_tagged_id(at, 1, next_producer_id)
        count[0] += 1
    if client_transaction_version != 0:
        at[0] = 2
        at[1] = 2
        write_int16(at + 2, client_transaction_version)
        at += 4
        count[0] += 1
    return at


cdef uint8_t *write_tagged_id(uint8_t *at, uint8_t tag, int64_t producer_id) noexcept:
    at[0] = tag
    at[1] = 8
    write_int64(at + 2, producer_id)
    return at + 10
