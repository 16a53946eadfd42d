"""A client that sends any request and records the answers, and functions that compare the answers of two brokers."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from support.messages import message_builder
from support.messages.message_builder import batch_of, build

from kbroker.base.errors import ErrorCode
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey, request_header_version, response_header_version
from kbroker.protocol.codec import decode, encode
from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records

ANSWER_LIMIT_S = 60
MOMENT_MS = 20
CLOSED = 'the connection was closed'
NO_ANSWER = 'there was no answer'
CLIENT_ID = 'judge'
NOW_MS = int(time.time() * 1000)
DAY_MS = 86_400_000

UNSETTLED = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS}
"""Errors that disappear when a coordinator has completed an earlier request."""
UNPREPARED = UNSETTLED | {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_ID}
"""Errors that disappear once all brokers know a new topic."""

ANYTHING = {
    'throttle_time_ms',
    'host',
    'port',
    'cluster_id',
    'log_dir',
    'total_bytes',
    'usable_bytes',
    'documentation',
    'finalized_features_epoch',
}
"""Fields whose values may differ between brokers."""
CODE_OF = {
    'error_message': 'error_code', 'acknowledge_error_message': 'acknowledge_error_code',
    'batch_index_error_message': None}
"""Maps fields with error messages to the fields with their error codes. Each broker words its messages differently, so
a message is compared only if the code is 0, and never if the code's field is None.
"""
NAMED_BY_BROKER = {'topic_id', 'producer_id', 'member_id', 'leader', 'session_id'}
"""Fields whose values the broker chooses. The comparison only checks which fields have a value, and which have the same
value.
"""
MADE_UP_FROM = {'producer_id': 0, 'session_id': 1}


class Made(NamedTuple):
    """A value that a broker chose. In sorted lists, all such values of a field count as equal."""

    field: str
    value: Any

    def __repr__(self) -> str:
        return f'<{self.field}>'


class Step(NamedTuple):
    note: str
    request: Any
    version: int
    answer: Any

    def __str__(self) -> str:
        if isinstance(self.request, bytes):
            return f'{self.note} {self.request.hex()}'
        return f'{self.note} {type(self.request).__name__} v{self.version} {in_words(self.request)}'


class RawPeer:
    """The connection of one case to one broker. `ask` adds each request and answer to `steps`.

    If `login` has a user and a password, the peer logs in by SASL/PLAIN.
    """

    def __init__(self, address: str, topic: str, login: tuple[str, str] | None = None, partition: int = 0):
        self.topic = topic
        self.partition = partition
        """The partition of the topic in which the peer waits for records."""
        self.note = ''
        """A description of the steps that follow. The comparison shows it with their differences."""
        self.steps: list[Step] = []
        self.address = address
        self._login = login
        self._socket: socket.socket | None = None
        self._correlation_ids = itertools.count(1)

    def ask(self, api: str, version: int | None = None, *, client_id: str = CLIENT_ID, **fields: Any) -> Any:
        """Send a request with these fields (structs as dicts). Return the answer, or CLOSED if the broker closes the
        connection.

        The default version is the newest one.
        """
        request = build(api + 'Request', **fields)
        version = request.versions[1] if version is None else version
        answer = self._exchange(request, version, client_id)
        self.steps.append(Step(self.note, request, version, answer))
        return answer

    def ask_during(self, action: Callable[[], None], api: str, version: int, **fields: Any) -> Any:
        """Send a request, then call `action`, then read and return the answer."""
        request = build(api + 'Request', **fields)
        self._send(request, version, CLIENT_ID)
        action()
        answer = self._answer(request, version)
        self.steps.append(Step(self.note, request, version, answer))
        return answer

    def another(self) -> RawPeer:
        """Return a second peer, with a new connection to the same broker."""
        return RawPeer(self.address, self.topic, self._login, self.partition)

    def ask_until(self, settled: Any, api: str, version: int | None = None, **fields: Any) -> Any:
        """Call `ask` until `settled(answer)` is true. Only the last answer remains in `steps`."""
        deadline = time.monotonic() + ANSWER_LIMIT_S
        while not settled(answer := self.ask(api, version, **fields)) and time.monotonic() < deadline:
            self.steps.pop()
            self.wait_for_a_record()
        return answer

    def ask_settled(self, api: str, version: int | None = None, **fields: Any) -> Any:
        """Call `ask` until the coordinator has completed earlier requests."""
        return self.ask_until(lambda answer: not error_codes(answer) & UNSETTLED, api, version, **fields)

    def prepare(self, api: str, version: int | None = None, **fields: Any) -> Any:
        """Call `ask` until it succeeds. Leave no step, so that the answer is not compared."""
        return self.prepare_until(lambda answer: not error_codes(answer) & UNPREPARED, api, version, **fields)

    def prepare_until(self, settled: Any, api: str, version: int | None = None, **fields: Any) -> Any:
        """Call `ask` until `settled(answer)` is true. Leave no step, so that the answer is not compared."""
        answer = self.ask_until(settled, api, version, **fields)
        self.steps.pop()
        return answer

    def send_only(self, api: str, version: int, **fields: Any) -> None:
        """Send a request for which the broker sends no answer."""
        request = build(api + 'Request', **fields)
        self._connected().sendall(self._frame(request, version, CLIENT_ID))

    def send_bytes(self, body: bytes) -> None:
        """Send a frame unchanged. The bytes of the answer are compared."""
        connection = self._connected()
        connection.sendall(len(body).to_bytes(4, 'big') + body)
        self.steps.append(Step(self.note, body, 0, self._receive(connection)))

    def create_topic(self, name: str | None = None, partitions: int = 1, **configs: str) -> bytes:
        """Create a topic (configs with _ for .), wait until it can be used, and return its id."""
        name = name or self.topic
        self.prepare(
            'CreateTopics',
            topics=[dict(
                name=name, num_partitions=partitions, replication_factor=1,
                configs=[dict(name=key.replace('_', '.'), value=value) for key, value in configs.items()])],
            timeout_ms=30000)
        return self.await_topic(name, partitions)

    def await_topic(self, name: str, partitions: int = 1) -> bytes:
        answer = self.prepare('Metadata', topics=[dict(name=name)], allow_auto_topic_creation=False)
        self.prepare(
            'ListOffsets', 9, replica_id=-1, topics=[
                dict(name=name, partitions=[dict(partition_index=index, timestamp=-1) for index in range(partitions)])])
        return answer.topics[0].topic_id

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def wait_for_a_record(self) -> None:
        """Wait for an append to the partition of the case with a Fetch. Most often, the append is a marker that
        completes an earlier request. The broker answers immediately if the topic does not exist, and after MOMENT_MS if
        nothing is appended.
        """
        found = self._exchange(
            build(
                'ListOffsetsRequest', replica_id=-1,
                topics=[dict(name=self.topic, partitions=[dict(partition_index=self.partition, timestamp=-1)])]), 7,
            CLIENT_ID)
        end = 0 if isinstance(found, str) else max(0, found.topics[0].partitions[0].offset)
        partition = dict(partition=self.partition, fetch_offset=end, partition_max_bytes=1 << 20)
        topics = [dict(topic=self.topic, partitions=[partition])]
        fetch = build(
            'FetchRequest', replica_id=-1, max_wait_ms=MOMENT_MS, min_bytes=1, max_bytes=1 << 20, topics=topics)
        self._exchange(fetch, 12, CLIENT_ID)

    def _exchange(self, request: Any, version: int, client_id: str) -> Any:
        self._send(request, version, client_id)
        return self._answer(request, version)

    def _send(self, request: Any, version: int, client_id: str) -> None:
        self._connected().sendall(self._frame(request, version, client_id))

    def _answer(self, request: Any, version: int) -> Any:
        reply = self._receive(self._connected())
        if isinstance(reply, str):
            return reply
        key = ApiKey(request.api_key)
        response_class = getattr(messages, type(request).__name__.removesuffix('Request') + 'Response')
        return decode(response_class, reply, version, 5 if response_header_version(key, version) else 4)

    def _frame(self, request: Any, version: int, client_id: str) -> bytes:
        key = ApiKey(request.api_key)
        header = key.to_bytes(2, 'big') + version.to_bytes(2, 'big') + next(self._correlation_ids).to_bytes(4, 'big')
        header += len(client_id).to_bytes(2, 'big') + client_id.encode()
        if request_header_version(key, version) >= 2:
            header += b'\0'
        frame = header + encode(request, version)
        return len(frame).to_bytes(4, 'big') + frame

    def _connected(self) -> socket.socket:
        if self._socket is None:
            host, _, port = self.address.rpartition(':')
            self._socket = socket.create_connection((host, int(port)), ANSWER_LIMIT_S)
            if self._login is not None:
                self._log_in(*self._login)
        return self._socket

    def _log_in(self, user: str, password: str) -> None:
        found = self._exchange(build('SaslHandshakeRequest', mechanism='PLAIN'), 1, CLIENT_ID)
        assert found.error_code == 0, found
        token = f'\0{user}\0{password}'.encode()
        found = self._exchange(build('SaslAuthenticateRequest', auth_bytes=token), 2, CLIENT_ID)
        assert found.error_code == 0, found

    def _receive(self, connection: socket.socket) -> bytes | str:
        problem = CLOSED
        try:
            size = self._exactly(connection, 4)
            if size is not None:
                reply = self._exactly(connection, int.from_bytes(size, 'big'))
                if reply is not None:
                    return reply
        except ConnectionError:
            pass
        except TimeoutError:
            problem = NO_ANSWER
        self.close()
        return problem

    @staticmethod
    def _exactly(connection: socket.socket, size: int) -> bytes | None:
        received = b''
        while len(received) < size:
            more = connection.recv(size - len(received))
            if not more:
                return None
            received += more
        return received


def batch(*values: Any, **options: Any) -> bytes:
    """Encode a batch with the timestamp NOW_MS."""
    return batch_of(NOW_MS, *values, **options)


def error_codes(answer: Any) -> set[int]:
    """Return every error code in an answer, except those of partitions in AddPartitionsToTxn: a case compares these,
    and does not wait until they disappear.
    """
    return message_builder.error_codes(answer, ('error_code',))


def comparable(answer: Any) -> Any:
    """Return an answer as dicts and sorted lists. Omit values that may differ between brokers."""
    return _numbered(plain(answer), {})


def plain(value: Any, name: str = '') -> Any:
    if isinstance(value, list):
        return sorted((plain(item, name) for item in value), key=repr)
    names = getattr(getattr(value, '_layout', None), 'names', None)
    if names is not None:
        return {field: '*' if is_worded(value, field) else plain(getattr(value, field), field) for field in names}
    if name in ANYTHING:
        return '*'
    if name == 'error_code':
        return ErrorCode(value).name if value in ErrorCode.__members__.values() else value
    if name == 'records':
        return None if value is None else [_batch_in_words(header, data) for header, data in iter_batches(value)]
    if isinstance(value, int) and abs(value - NOW_MS) < DAY_MS:
        return 'now'
    if name in NAMED_BY_BROKER and (
            value >= MADE_UP_FROM[name] if isinstance(value, int) else value and value != bytes(16)):
        return Made(name, value)
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def is_worded(struct: Any, field: str) -> bool:
    """Return whether a field of an answer is an error message whose words are not compared."""
    return field in CODE_OF and (CODE_OF[field] is None or getattr(struct, CODE_OF[field], 0) != 0)


def in_words(value: Any) -> str:
    """Return a request as text. Omit the fields that have their defaults."""
    if isinstance(value, list):
        return f'[{", ".join(map(in_words, value))}]'
    layout = getattr(value, '_layout', None)
    if layout is None:
        return repr(value) if not isinstance(value, bytes) or len(value) < 40 else f'{len(value)} bytes'
    usual = type(value)()
    given = ((name, getattr(value, name)) for name in layout.names)
    return f'({", ".join(f"{name}={in_words(item)}" for name, item in given if item != getattr(usual, name))})'


def _batch_in_words(header: Any, data: Any) -> dict[str, Any]:
    fields = (
        'base_offset',
        'partition_leader_epoch',
        'attributes',
        'last_offset_delta',
        'producer_epoch',
        'base_sequence',
        'records_count',
    )
    return {
        **{name: getattr(header, name) for name in fields}, 'producer_id': plain(header.producer_id, 'producer_id'),
        'records': [
            (record.offset, plain(record.timestamp_ms), record.key, record.value, record.headers)
            for record in decode_records(data)]}


def _numbered(value: Any, seen: dict[Made, str]) -> Any:
    if isinstance(value, Made):
        return seen.setdefault(value, f'{value.field} {sum(made.field == value.field for made in seen) + 1}')
    if isinstance(value, dict):
        return {name: _numbered(item, seen) for name, item in value.items()}
    if isinstance(value, list):
        return [_numbered(item, seen) for item in value]
    return value


def differences(kafka: Any, ours: Any, path: str = '') -> list[str]:
    """Return the differences between two comparable answers. A difference is a line."""
    if isinstance(kafka, dict) and isinstance(ours, dict):
        return [
            line for name in kafka for line in differences(kafka[name], ours[name], f'{path}.{name}' if path else name)]
    if isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        return [
            line for index, (left, right) in enumerate(zip(kafka, ours, strict=True))
            for line in differences(left, right, f'{path}[{index}]')]
    return [] if kafka == ours else [f'{path}: Kafka {kafka!r}, kbroker {ours!r}']
