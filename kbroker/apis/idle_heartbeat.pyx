"""Heartbeats of idle members of consumer and share groups, read and answered by hand.

Most heartbeats name the group, the member and its epoch only, and change nothing. `group/idle_members` knows which. All
others go the whole way: they are decoded, and become operations of turns.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcmp, memcpy

from kbroker.apis.request cimport DecodingHandler, Handler, Request
from kbroker.apis.request_bytes cimport LONGEST_STRING_BYTES, take_string
from kbroker.group.idle_members cimport IdleBeat, IdleMembers
from kbroker.wire.bytes cimport Cursor, put_unsigned_varint, read_int32, take, write_int16, write_int32

from kbroker.apis.authorization import refusal
from kbroker.apis.group_protocols import is_served
from kbroker.errors import ProtocolError
from kbroker.protocol import messages
from kbroker.protocol.codec import encode
from kbroker.security.acl_codes import Operation, ResourceType

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    # A UUID: the most of a member id, whose length takes one byte then. Longer ones go the whole way.
    MOST_ID_BYTES = 36
    # The header, the throttle time, the code, two strings, epoch, interval, the missing assignment and the tags.
    MOST_ANSWER_BYTES = 5 + 4 + 2 + 1 + 1 + MOST_ID_BYTES + 4 + 4 + 1 + 1
    NO_STRUCT = 0xff

cdef int READ = Operation.READ
cdef int GROUP = ResourceType.GROUP


cdef class IdleHeartbeatHandler(Handler):
    """Answers heartbeats of idle members. All others are decoded and passed to `handle`.

    The fields of the request begin with group, member and epoch. Both messages are flexible in all versions.
    """
    cdef DecodingHandler whole
    cdef object kind
    cdef str request_name
    cdef list tails         # by version: the encoded fields behind the epoch, when none of them is given

    def __init__(self, str kind, handle, str request_name):
        self.whole = DecodingHandler(handle, request_name)
        self.kind = kind
        self.request_name = request_name
        self.tails = []

    cdef int serve(self, Request request, Cursor *body) except -1:
        cdef Cursor start = body[0]
        if self.answer_idle(request, body):
            return 0
        body[0] = start
        return self.whole.serve(request, body)

    cdef bint answer_idle(self, Request request, Cursor *body) except -1:
        """Answer the heartbeat if its member is idle. Return False for any other one: nothing has happened then."""
        cdef str group_id, member_id
        cdef int32_t epoch
        cdef IdleBeat found
        cdef IdleMembers members
        try:
            group_id, member_id = take_text(body, LONGEST_STRING_BYTES), take_text(body, MOST_ID_BYTES)
            epoch = read_int32(take(body, 4))
        except ProtocolError:
            return False
        if not self.is_bare(request.version, body):
            return False
        members = request.node.groups.idle_members(self.kind, group_id)
        if members is None or not is_served(request.node, self.kind) or group_id.isspace() or member_id.isspace():
            return False
        if not members.find(group_id, member_id, epoch, request.client_id or '',
                            '/' + <str>request.connection.client_host, &found):
            return False
        if request.access is not None and not request.may(READ, GROUP, group_id):
            raise refusal(GROUP)
        members.serve(group_id, member_id, &found)
        request.send(encoded(request, member_id, epoch, <int32_t>found.interval_ms))
        return True

    cdef bint is_bare(self, int version, Cursor *body) except -1:
        """Return whether no field behind the epoch is given. Bytes behind the request do not matter to Kafka."""
        cdef bytes tail
        while len(self.tails) <= version:
            self.tails.append(None)
        tail = self.tails[version]
        if tail is None:
            tail = self.tails[version] = encode(getattr(messages, self.request_name)(), version)[1 + 1 + 4:]
        return (body.end - body.at == PyBytes_GET_SIZE(tail)
                and memcmp(body.at, PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail)) == 0)


cdef str take_text(Cursor *cursor, Py_ssize_t most_bytes):
    """Read a string of at most this many bytes. Raises ProtocolError for any other one."""
    cdef const uint8_t *text
    cdef Py_ssize_t length = take_string(cursor, True, False, &text)
    if length > most_bytes:
        raise ProtocolError(f'a string of {length} bytes, {most_bytes} expected at most')
    return PyUnicode_DecodeUTF8(<const char *>text, length, NULL)


cdef bytes encoded(Request request, str member_id, int32_t epoch, int32_t interval_ms):
    """Return the reply with its header: no error, and no assignment."""
    cdef uint8_t answer[MOST_ANSWER_BYTES]
    cdef uint8_t *at = request.put_header(answer)
    cdef Py_ssize_t length
    cdef const char *text = PyUnicode_AsUTF8AndSize(member_id, &length)
    write_int32(at, request.throttle_ms)
    write_int16(at + 4, 0)
    at[6] = 0       # no error message
    at = put_unsigned_varint(at + 7, length + 1)
    memcpy(at, text, length)
    write_int32(at + length, epoch)
    write_int32(at + length + 4, interval_ms)
    at[length + 8] = NO_STRUCT
    at[length + 9] = 0      # no tags
    at += length + 10
    return PyBytes_FromStringAndSize(<char *>answer, at - answer)
