"""Dispatch of frames: headers, versions, failures of handlers, and errors that close a connection."""
import logging
from types import SimpleNamespace

import pytest

from kbroker.apis.serving.dispatch import Dispatcher
from kbroker.apis.serving.request import Api, RequestCounts
from kbroker.base.clock import ManualClock, Timers
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import LongWork
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.codec import decode, encode
from kbroker.protocol.messages import HeartbeatRequest, HeartbeatResponse

NODE = SimpleNamespace(long_work=LongWork(Timers(ManualClock())), request_counts=RequestCounts())


class Connection:
    connection_id = 1
    client_host = '127.0.0.1'
    listener_name = 'PLAINTEXT'
    session = None

    def __init__(self):
        self.replies = []
        self.passed = []
        self.closed = None

    def reply(self, sequence, segments):
        self.replies.append((sequence, b''.join(segments) if isinstance(segments, list) else segments))

    def let_next_pass(self, sequence):
        self.passed.append(sequence)

    def close(self, reason):
        self.closed = reason


def heartbeat(version=4, correlation_id=7, tags=b'\0', client_id=b'\0\2me'):
    header = (ApiKey.HEARTBEAT.to_bytes(2, 'big') + version.to_bytes(2, 'big') + correlation_id.to_bytes(4, 'big')
              + client_id + (tags if version >= 4 else b''))
    body = encode(HeartbeatRequest(group_id='g', generation_id=1, member_id='m'), min(version, 4))
    return memoryview(header + body)


def dispatch(frame, handle, **declared):
    connection = Connection()
    Dispatcher(NODE, [Api(ApiKey.HEARTBEAT, 0, 4, handle, **declared)]).handle(
        connection, 3, memoryview(bytearray(frame)))
    return connection


def respond(request, body):
    return HeartbeatResponse(error_code=27)


@pytest.mark.parametrize('version', range(5))
def test_the_answer_carries_the_correlation_id_and_the_header_of_its_version(version):
    (sequence, reply), = dispatch(heartbeat(version), respond).replies
    header_bytes = 5 if version >= 4 else 4
    assert sequence == 3 and reply[:header_bytes] == b'\0\0\0\7\0'[:header_bytes]
    assert decode(HeartbeatResponse, reply, version, header_bytes).error_code == 27


def test_a_handler_sees_the_client():
    seen = []
    dispatch(heartbeat(), lambda request, body: seen.append((request, body)))
    (request, body), = seen
    assert (request.node, request.client_id, request.client_host, request.version, body.group_id) == (
        NODE, 'me', '127.0.0.1', 4, 'g')


@pytest.mark.parametrize('name', ['x' * 1024, 'x' * 1025, 'x' * 30_000 + '\U0001f600'])
def test_a_long_client_id_is_kept_as_its_bytes(name):
    """As a Python string, a name with an emoji would take four times as much memory while the request waits."""
    seen = []
    dispatch(heartbeat(client_id=len(name.encode()).to_bytes(2, 'big') + name.encode()),
             lambda request, _: seen.append(request))
    assert seen[0].client_id == name
    assert (seen[0].client_id is seen[0].client_id) == (len(name) <= 1024), 'each use makes the string'


def test_a_null_client_id_is_none():
    seen = []
    dispatch(heartbeat(client_id=b'\xff\xff'), lambda request, _: seen.append(request.client_id))
    assert seen == [None]


def test_tags_of_the_request_header_are_skipped():
    assert dispatch(heartbeat(tags=b'\2\0\1x\5\0'), respond).replies


def test_a_parked_request_is_answered_later():
    parked = []
    connection = dispatch(heartbeat(), lambda request, _: parked.append(request))
    assert connection.replies == []
    parked[0].let_next_pass()
    parked[0].reply(HeartbeatResponse(error_code=0))
    assert connection.passed == [3] and len(connection.replies) == 1


def test_a_second_answer_is_logged_as_a_failure(caplog):
    def answer_twice(request, body):
        request.reply(respond(request, body))
        return respond(request, body)
    (_, reply), = dispatch(heartbeat(), answer_twice).replies
    assert decode(HeartbeatResponse, reply, 4, 5).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert 'HEARTBEAT v4 is answered already' in caplog.text


def test_each_version_has_the_handler_that_the_table_names():
    seen = []

    def note(name):
        return lambda *_: seen.append(name)
    for version in range(5):
        dispatch(heartbeat(version), {(0, 2): note('old'), (3, 4): note('new')})
    assert seen == ['old', 'old', 'old', 'new', 'new']


@pytest.mark.parametrize('table', [{(0, 3): respond}, {(0, 2): respond, (2, 4): respond}, {(0, 5): respond}])
def test_a_table_that_does_not_name_each_version_once_is_refused(table):
    with pytest.raises(ValueError, match='handlers for versions 0-4 expected'):
        Api(ApiKey.HEARTBEAT, 0, 4, table)


def test_a_kafka_error_becomes_the_error_code_of_the_answer():
    def refuse(request, body):
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, 'member m expected')
    (_, reply), = dispatch(heartbeat(), refuse).replies
    assert decode(HeartbeatResponse, reply, 4, 5).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_bytes_behind_a_request_are_ignored():
    # librdkafka reserves four bytes for the number of topics of a Metadata request, and shrinks them to a varint once
    # it knows the number. In a request for all topics, it does not shrink them, so that the frame is three bytes longer
    # than the request. If kbroker refuses such a request, list_topics() and regular expressions in subscribe() fail.
    connection = dispatch(memoryview(bytes(heartbeat()) + b'\0\0\0'), respond)
    assert connection.replies and not connection.closed


def test_an_unexpected_exception_is_logged_whole_and_answered(caplog):
    def fail(request, body):
        raise RuntimeError('a bug')
    (_, reply), = dispatch(heartbeat(), fail).replies
    assert decode(HeartbeatResponse, reply, 4, 5).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert 'a bug' in caplog.text and caplog.records[0].levelno == logging.ERROR


@pytest.mark.parametrize('frame', [
    heartbeat(5), heartbeat()[:9], heartbeat()[:11], heartbeat()[:-1], b'\x7f\xff' + bytes(8),
    heartbeat(tags=b'\1\0\x7f'), heartbeat(tags=b'\xff\xff\xff\xff\xff\1'), heartbeat(client_id=b'\0\1\xff'), b'',
])
def test_what_cannot_be_parsed_closes_the_connection(frame):
    connection = dispatch(memoryview(bytes(frame)), respond)
    assert connection.closed and not connection.replies
