"""The encoder of the value of a classic group's row. It makes no object for each member. `protocol.rows` encodes the
same bytes from message objects.

Fields of version 3: version int16, protocol type, generation int32, protocol, leader, timestamp int64, number of
members int32. Fields of each member: member id, group.instance.id, client id, client host, rebalance timeout int32,
session timeout int32, subscription, assignment. Subscription and assignment are bytes with an int32 length. The fields
without a type are strings with an int16 length; the length -1 means null.
"""
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker.group.classic.group cimport ClassicGroup
from kbroker.group.classic.members cimport Member
from kbroker.group.offsets.encoder cimport Text, put_text, text_of
from kbroker.wire.bytes cimport write_int16, write_int32, write_int64

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.records import GROUP_VERSION
from kbroker.protocol.messages import GroupMetadataKey
from kbroker.protocol.rows import encode_row_key

cdef enum:
    FIXED_BYTES = 24            # the size of a value without its strings and members
    MEMBER_FIXED_BYTES = 24     # the size of a member without its strings and bytes

cdef int16_t version_of_group = GROUP_VERSION


def group_row(ClassicGroup group not None, dict assignments not None, Py_ssize_t max_bytes):
    """Return the key and the value of the row that stores the group's current generation. Raise MESSAGE_TOO_LARGE as
    `encode_group` does."""
    return encode_row_key(GroupMetadataKey(group=group.group_id)), encode_group(group, assignments, max_bytes)


cdef bytes encode_group(ClassicGroup group, dict assignments, Py_ssize_t max_bytes):
    """Encode the value of the row that stores the group's current generation. `assignments` maps member ids to
    assignments; a member without an entry gets an empty assignment.

    Raise MESSAGE_TOO_LARGE for a value of more than `max_bytes` bytes.
    """
    cdef Member member
    cdef bytes subscription, assignment
    cdef Text member_id, instance_id, client_id, client_host
    cdef Text protocol_type = nullable_text_of(group.protocol_type or '')
    cdef Text protocol_name = nullable_text_of(group.protocol_name), leader_id = nullable_text_of(group.leader_id)
    cdef Py_ssize_t used = FIXED_BYTES + protocol_type.size + protocol_name.size + leader_id.size
    cdef bytearray value = PyByteArray_FromStringAndSize(NULL, used)
    cdef uint8_t *at = <uint8_t *>PyByteArray_AS_STRING(value)
    write_int16(at, version_of_group)
    at = put_nullable(at + 2, protocol_type)
    write_int32(at, group.generation)
    at = put_nullable(put_nullable(at + 4, protocol_name), leader_id)
    write_int64(at, -1 if group.state_since_ms is None else <int64_t>group.state_since_ms)
    write_int32(at + 8, <int32_t>len(group.members))
    used = at + 12 - <uint8_t *>PyByteArray_AS_STRING(value)
    for member in group.members.values():
        member_id, instance_id = nullable_text_of(member.member_id), nullable_text_of(member.group_instance_id)
        client_id, client_host = nullable_text_of(member.client_id), nullable_text_of(member.client_host)
        subscription = subscription_of(member, group.protocol_name)
        assignment = assignments.get(member.member_id, b'')
        PyByteArray_Resize(value, used + MEMBER_FIXED_BYTES + member_id.size + instance_id.size + client_id.size
                           + client_host.size + PyBytes_GET_SIZE(subscription) + PyBytes_GET_SIZE(assignment))
        at = <uint8_t *>PyByteArray_AS_STRING(value) + used
        at = put_nullable(put_nullable(put_nullable(put_nullable(at, member_id), instance_id), client_id), client_host)
        write_int32(at, member.rebalance_timeout_ms)
        write_int32(at + 4, member.session_timeout_ms)
        at = put_bytes(put_bytes(at + 8, subscription), assignment)
        used = at - <uint8_t *>PyByteArray_AS_STRING(value)
        if used > max_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f'group {group.group_id}: the row of its {len(group.members)} members exceeds the {max_bytes} bytes of '
                f'max.message.bytes')
    PyByteArray_Resize(value, used)
    return bytes(value)


cdef bytes subscription_of(Member member, str protocol_name):
    for name, metadata in member.protocols:
        if name == protocol_name:
            return metadata
    return b''


cdef Text nullable_text_of(str value) except *:
    """Return a view of the UTF-8 bytes of a string. If the string is None, the view's `start` is NULL."""
    cdef Text text
    if value is not None:
        return text_of(value)
    text.start = NULL
    text.size = 0
    return text


cdef uint8_t *put_nullable(uint8_t *at, Text text) noexcept:
    if text.start == NULL:
        write_int16(at, -1)
        return at + 2
    return put_text(at, text)


cdef uint8_t *put_bytes(uint8_t *at, bytes value) noexcept:
    write_int32(at, <int32_t>PyBytes_GET_SIZE(value))
    memcpy(at + 4, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    return at + 4 + PyBytes_GET_SIZE(value)
