"""The handler that reads and answers heartbeats of idle members without decoding them to a message object.

Most heartbeats only name the group, the member and its epoch, and change nothing. A static member of a consumer or
streams group also sends its instance id. A member of a streams group also sends the epoch of the endpoints that it
knows. `group/modern/idle_members` decides whether a heartbeat with only these fields changes nothing. All other
heartbeats are decoded and run as operations in a turn of their group.
"""
from functools import partial

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcmp, memcpy

from kbroker.apis.serving.request cimport DecodingHandler, Handler, Request
from kbroker.apis.serving.request_bytes cimport LONGEST_STRING_BYTES, take_string
from kbroker.group.modern.idle_members cimport IdleBeat, IdleMembers, Sender
from kbroker.wire.bytes cimport Cursor, put_unsigned_varint, read_int32, take, write_int16, write_int32, write_int64

from kbroker.apis.serving.authorization import refusal
from kbroker.apis.serving.group_protocols import is_served
from kbroker.apis.serving.heartbeat_calls import serve
from kbroker.base.errors import ProtocolError
from kbroker.protocol import messages
from kbroker.protocol.codec import encode
from kbroker.security.acl_codes import Operation, ResourceType

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    # The length of a UUID. A request with a longer member id is decoded, because the id's length could take two bytes
    # in the response.
    MOST_ID_BYTES = 36
    # The size of the longest end of a response, which is that of a streams group in version 1: the interval of task
    # offsets, the acceptable lag, an empty status, null for the tasks of the three roles, whether the broker asks for
    # a description of the topology, the epoch of the endpoints, null for the endpoints, and the tagged fields. In
    # consumer and share groups, the end is a null assignment and the tagged fields.
    MOST_REST_BYTES = 4 + 8 + 1 + 3 + 1 + 4 + 1 + 1
    # The size of the longest response: the header, the throttle time, the error code, the error message, the length of
    # the member id, the member id, the epoch, the heartbeat interval, and the end.
    MOST_ANSWER_BYTES = 5 + 4 + 2 + 1 + 1 + MOST_ID_BYTES + 4 + 4 + MOST_REST_BYTES
    NO_ARRAY = 0
    EMPTY_ARRAY = 1
    NO_STRUCT = 0xff
    NO_DESCRIPTION = 0

cdef int READ = Operation.READ
cdef int GROUP = ResourceType.GROUP


cdef class HeartbeatHandler(Handler):
    """The handler of heartbeats. It replies to heartbeats of idle members. It decodes all other heartbeats, and passes
    them to `heartbeat_calls.serve`.

    A request begins with the group id, the member id and the member epoch. In a streams group, the next field is the
    epoch of the endpoints that the member knows. In consumer and streams groups, the next field is the instance id. All
    versions of the messages are flexible.
    """
    cdef DecodingHandler whole
    cdef str kind
    cdef str request_name
    cdef bint has_instance_id
    cdef bint has_endpoints
    cdef list tails         # for each version: the encoded rest of a request with default values only

    def __init__(self, kind, str request_name):
        self.whole = DecodingHandler(partial(serve, kind), request_name)
        self.kind = kind.group_type
        self.request_name = request_name
        self.has_instance_id = self.kind in ('consumer', 'streams')
        self.has_endpoints = self.kind == 'streams'
        self.tails = []

    cdef int serve(self, Request request, Cursor *body) except -1:
        cdef Cursor start = body[0]
        if self.answer_idle(request, body):
            return 0
        body[0] = start
        return self.whole.serve(request, body)

    cdef bint answer_idle(self, Request request, Cursor *body) except -1:
        """Reply to the heartbeat and return True if its member is idle. Otherwise, return False and change nothing."""
        cdef Sender sender = Sender.__new__(Sender)
        cdef int32_t endpoint_epoch = 0
        cdef IdleBeat found
        cdef IdleMembers members
        try:
            sender.group_id = take_text(body, LONGEST_STRING_BYTES, False)
            sender.member_id = take_text(body, MOST_ID_BYTES, False)
            sender.epoch = read_int32(take(body, 4))
            if self.has_endpoints:
                endpoint_epoch = read_int32(take(body, 4))
            if self.has_instance_id:
                sender.instance_id = take_text(body, LONGEST_STRING_BYTES, True)
        except ProtocolError:
            return False
        if not self.is_bare(request.version, body):
            return False
        members = request.node.groups.idle_members(self.kind, sender.group_id)
        if members is None or not is_served(request.node, self.kind) or (
                sender.group_id.isspace() or sender.member_id.isspace()):
            return False
        sender.client_id = request.name_of_client() or ''
        sender.client_host = '/' + <str>request.connection.client_host
        if not members.find(sender, &found) or (self.has_endpoints and found.endpoint_epoch != endpoint_epoch):
            return False
        if request.access is not None and not request.may(READ, GROUP, sender.group_id):
            raise refusal(GROUP)
        members.serve(sender.group_id, sender.member_id, &found)
        request.send(self.encoded(request, sender, &found))
        return True

    cdef bint is_bare(self, int version, Cursor *body) except -1:
        """Return whether the rest of the request has only default values, and no bytes follow it. Kafka ignores bytes
        after a request.
        """
        cdef bytes tail
        while len(self.tails) <= version:
            self.tails.append(None)
        tail = self.tails[version]
        if tail is None:
            tail = encode(getattr(messages, self.request_name)(), version)
            tail = self.tails[version] = tail[1 + 1 + 4 + 4 * self.has_endpoints + self.has_instance_id:]
        return (body.end - body.at == PyBytes_GET_SIZE(tail)
                and memcmp(body.at, PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail)) == 0)

    cdef bytes encoded(self, Request request, Sender sender, IdleBeat *found):
        """Return the encoded response with its header. The response has no error and no assignment."""
        cdef uint8_t answer[MOST_ANSWER_BYTES]
        cdef uint8_t *at = request.put_header(answer)
        cdef Py_ssize_t length
        cdef const char *text = PyUnicode_AsUTF8AndSize(sender.member_id, &length)
        write_int32(at, request.throttle_ms)
        write_int16(at + 4, 0)
        at[6] = 0       # no error message
        at = put_unsigned_varint(at + 7, length + 1)
        memcpy(at, text, length)
        write_int32(at + length, sender.epoch)
        write_int32(at + length + 4, <int32_t>found.interval_ms)
        at += length + 8
        if self.has_endpoints:
            at = put_rest_of_streams(at, request.version, found)
        else:
            at[0] = NO_STRUCT
            at += 1
        at[0] = 0       # no tags
        return PyBytes_FromStringAndSize(<char *>answer, at + 1 - answer)


cdef uint8_t *put_rest_of_streams(uint8_t *at, int version, IdleBeat *found):
    """Write the end of a response in a streams group, without its tagged fields. Return the address after it. Version 0
    has a lag of 32 bits, which is always 0, and no field for the description of the topology."""
    if version == 0:
        write_int32(at, 0)
        write_int32(at + 4, found.task_offset_interval_ms)
        at += 8
    else:
        write_int32(at, found.task_offset_interval_ms)
        write_int64(at + 4, found.recovery_lag)
        at += 12
    at[0] = EMPTY_ARRAY
    at[1] = at[2] = at[3] = NO_ARRAY
    at += 4
    if version > 0:
        at[0] = NO_DESCRIPTION
        at += 1
    write_int32(at, found.endpoint_epoch)
    at[4] = NO_ARRAY
    return at + 5


cdef str take_text(Cursor *cursor, Py_ssize_t most_bytes, bint nullable):
    """Read a string at the cursor and return it; return None for null. Raise ProtocolError for a string of more than
    `most_bytes` bytes."""
    cdef const uint8_t *text
    cdef Py_ssize_t length = take_string(cursor, True, nullable, &text)
    if length < 0:
        return None
    if length > most_bytes:
        raise ProtocolError(f'a string of {length} bytes, {most_bytes} expected at most')
    return PyUnicode_DecodeUTF8(<const char *>text, length, NULL)
