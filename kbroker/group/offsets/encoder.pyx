"""The encoder of the batch of an offset commit. It makes no object for each row. `protocol.rows` and `record.batch`
encode the same bytes from objects.

* Fields of a record: length, attributes, timestamp delta, offset delta, key, value, number of headers.
* Fields of a key: type int16, group, topic, partition int32.
* Fields of a value in version 4: version int16, offset int64, leader epoch int32, metadata, commit timestamp int64, and
  the topic's id as a tagged field.
* Fields of a value in version 1: version int16, offset int64, metadata, commit timestamp int64, expiry timestamp int64.
"""
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport int16_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from kbroker.group.records cimport CommittedOffset, OffsetKey
from kbroker.record.batch cimport HEADER_BYTES, TRANSACTIONAL_BIT, BatchFields, write_header
from kbroker.wire.bytes cimport (
    put_unsigned_varint, unsigned_varint_size, write_int16, write_int32, write_int64, zigzag,
)

from kbroker.group.records import EXPIRING_OFFSET_VERSION, NO_TOPIC_ID, OFFSET_VERSION

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    OFFSET_TYPE = 1
    FIXED_BYTES = 96                # more than a record takes without its strings
    KEY_BYTES = 10                  # a key without its strings
    EXPIRING_BYTES = 28             # a value in version 1 without the metadata
    LEAST_BYTES = 23                # a value in version 4 without the metadata, its length and the topic's id
    TOPIC_ID_BYTES = 16
    TAG_BYTES = 2 + TOPIC_ID_BYTES  # tag, size, value
    MAX_STRING_BYTES = 32767

cdef int16_t version_of_offset = OFFSET_VERSION
cdef int16_t version_with_expiry = EXPIRING_OFFSET_VERSION


cdef Text text_of(str value) except *:
    cdef Text text
    text.start = PyUnicode_AsUTF8AndSize(value, &text.size)
    if text.size > MAX_STRING_BYTES:
        raise ValueError(f'a string of {text.size} bytes, at most {MAX_STRING_BYTES} expected')
    return text


cdef bytearray encode_offsets(list keys, list offsets, int64_t now_ms, int64_t producer_id, int16_t producer_epoch):
    """Encode the batch of a commit or of tombstones. `offsets` has an entry for each OffsetKey in `keys`: a
    CommittedOffset, or None for a tombstone.

    `producer_id` is the producer of the transaction; it is -1 outside a transaction. The batch's base offset and leader
    epoch are set later, by the log.
    """
    cdef Py_ssize_t i, used = HEADER_BYTES
    cdef BatchFields fields
    cdef bytearray batch = PyByteArray_FromStringAndSize(NULL, HEADER_BYTES)
    cdef uint8_t *start
    cdef Text group, topic, metadata
    for i in range(PyList_GET_SIZE(keys)):
        group = text_of((<OffsetKey>keys[i]).group_id)
        topic = text_of((<OffsetKey>keys[i]).topic)
        metadata = text_of('' if offsets[i] is None else (<CommittedOffset>offsets[i]).metadata)
        PyByteArray_Resize(batch, used + FIXED_BYTES + group.size + topic.size + metadata.size)
        start = <uint8_t *>PyByteArray_AS_STRING(batch)
        used = put_row(start + used, i, group, topic, metadata, keys[i], offsets[i]) - start
    PyByteArray_Resize(batch, used)
    memset(&fields, 0, sizeof(fields))
    fields.base_timestamp_ms = fields.max_timestamp_ms = now_ms
    fields.partition_leader_epoch = fields.base_sequence = -1
    fields.producer_id = producer_id
    fields.producer_epoch = producer_epoch
    fields.attributes = TRANSACTIONAL_BIT if producer_id >= 0 else 0
    fields.records_count = <int>PyList_GET_SIZE(keys)
    fields.last_offset_delta = fields.records_count - 1
    write_header(<uint8_t *>PyByteArray_AS_STRING(batch), used, &fields)
    return batch


cdef uint8_t *put_row(uint8_t *at, Py_ssize_t offset_delta, Text group, Text topic, Text metadata, OffsetKey key,
                      CommittedOffset committed) except NULL:
    cdef bint expires, has_topic_id
    cdef Py_ssize_t key_bytes = KEY_BYTES + group.size + topic.size
    cdef Py_ssize_t value_bytes = metadata.size
    if committed is None:
        return put_tombstone(at, offset_delta, group, topic, key)
    expires, has_topic_id = committed.expire_timestamp_ms is not None, committed.topic_id != NO_TOPIC_ID
    if expires:
        value_bytes += EXPIRING_BYTES
    else:
        value_bytes += LEAST_BYTES + unsigned_varint_size(metadata.size + 1) + (TAG_BYTES if has_topic_id else 0)
    at = put_unsigned_varint(at, zigzag(
        3 + unsigned_varint_size(zigzag(offset_delta)) + unsigned_varint_size(zigzag(key_bytes)) + key_bytes
        + unsigned_varint_size(zigzag(value_bytes)) + value_bytes))
    at[0] = at[1] = 0               # attributes, timestamp delta
    at = put_key(put_unsigned_varint(at + 2, zigzag(offset_delta)), key_bytes, group, topic, key)
    at = put_unsigned_varint(at, zigzag(value_bytes))
    at = put_expiring(at, committed, metadata) if expires else put_value(at, committed, metadata, has_topic_id)
    at[0] = 0                       # headers
    return at + 1


cdef uint8_t *put_tombstone(uint8_t *at, Py_ssize_t offset_delta, Text group, Text topic, OffsetKey key) noexcept:
    """Write a tombstone at `at`: a record whose value has the length -1, which means null."""
    cdef Py_ssize_t key_bytes = KEY_BYTES + group.size + topic.size
    at = put_unsigned_varint(at, zigzag(
        4 + unsigned_varint_size(zigzag(offset_delta)) + unsigned_varint_size(zigzag(key_bytes)) + key_bytes))
    at[0] = at[1] = 0               # attributes, timestamp delta
    at = put_key(put_unsigned_varint(at + 2, zigzag(offset_delta)), key_bytes, group, topic, key)
    at = put_unsigned_varint(at, zigzag(-1))
    at[0] = 0                       # headers
    return at + 1


cdef uint8_t *put_key(uint8_t *at, Py_ssize_t key_bytes, Text group, Text topic, OffsetKey key) noexcept:
    at = put_unsigned_varint(at, zigzag(key_bytes))
    write_int16(at, OFFSET_TYPE)
    at = put_text(put_text(at + 2, group), topic)
    write_int32(at, key.partition)
    return at + 4


cdef uint8_t *put_text(uint8_t *at, Text text) noexcept:
    write_int16(at, <int16_t>text.size)
    memcpy(at + 2, text.start, text.size)
    return at + 2 + text.size


cdef uint8_t *put_value(uint8_t *at, CommittedOffset committed, Text metadata, bint has_topic_id) noexcept:
    write_int16(at, version_of_offset)
    write_int64(at + 2, committed.offset)
    write_int32(at + 10, committed.leader_epoch)
    at = put_unsigned_varint(at + 14, metadata.size + 1)
    memcpy(at, metadata.start, metadata.size)
    at += metadata.size
    write_int64(at, committed.commit_timestamp_ms)
    at[8] = has_topic_id            # the number of tagged fields
    at += 9
    if has_topic_id:
        at[0] = 0
        at[1] = TOPIC_ID_BYTES
        memcpy(at + 2, PyBytes_AS_STRING(committed.topic_id), TOPIC_ID_BYTES)
        at += TAG_BYTES
    return at


cdef uint8_t *put_expiring(uint8_t *at, CommittedOffset committed, Text metadata) except NULL:
    write_int16(at, version_with_expiry)
    write_int64(at + 2, committed.offset)
    at = put_text(at + 10, metadata)
    write_int64(at, committed.commit_timestamp_ms)
    write_int64(at + 8, committed.expire_timestamp_ms)
    return at + 16
