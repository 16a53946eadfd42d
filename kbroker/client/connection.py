"""One connection to one broker: frames, API versions, and errors that describe the broker. No threads are used.

Several requests may be in flight, because a broker answers them in order. `send` does not wait for a slow broker. If
the socket has no room for a whole request, the remaining bytes are sent by `push`, or during the wait for the next
answer. A broker that announces a huge frame does not make the client allocate memory: a buffer grows only with the
bytes that arrive. A reused buffer keeps its size between frames.
"""
from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from kbroker import __version__
from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.client.arguments import MOST_MS
from kbroker.client.config import ClientConfig
from kbroker.client.errors import AnswerTimeout, ClientError, check
from kbroker.client.time_limit import OutOfTime, TimeLimit
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey, request_header_version, response_header_version
from kbroker.protocol.codec import EncodeError, decode, decode_prefix, encode, encode_segments
from kbroker.protocol.plan import Message

__all__ = ['AnswerTimeout', 'ClientError', 'Connection']

SIZE_BYTES = 4
FIRST_READ_BYTES = 64 * 1024
LARGEST_ANSWER_BYTES = 1 << 30
"""The largest accepted response in bytes. A Fetch response stays within the limit of its request, unless its first
batch is larger than the limit.
"""
LARGEST_FIRST_ANSWER_BYTES = 1 << 20
"""The largest accepted response to ApiVersions in bytes. A peer that announces a larger response is not a broker."""
REAUTHENTICATE_AT = 0.85
"""The share of a SASL session's lifetime after which the client renews the session (KIP-368)."""

MOST_PARTS = 512
"""The largest number of parts that one system call sends. Linux allows 1024."""
IN_DOUBT = 'is it the right port, and security.protocol the one of that listener?'


class Awaited(NamedTuple):
    correlation_id: int
    response_class: Any
    version: int
    name: str


class SentInPlace:
    """The bytes of a `records` field that are sent without a copy.

    They must not change while the request is in flight.
    """

    __slots__ = ('data', 'size_bytes')

    def __init__(self, data: bytes | bytearray):
        self.data = data
        self.size_bytes = len(data)


class Unsent(NamedTuple):
    """The bytes of a request that are not sent yet, in one or more parts."""

    rest: list[Any]
    rest_bytes: int
    name: str
    size_bytes: int


class Connection:
    """A connection to a broker. It is ready after ApiVersions and, if configured, after the TLS handshake and the SASL
    login.

    Each method raises ClientError for a network failure, and KafkaError(SASL_AUTHENTICATION_FAILED) for refused
    credentials. A ClientError other than AnswerTimeout closes the connection.

    `limit` limits each wait of the connection, including the waits of a login. If the time of the call in progress ends
    before the answer arrives, OutOfTime is raised, and the request remains in flight.
    """

    def __init__(self, host: str, port: int, config: ClientConfig, node_id: int = -1, clock: Clock | None = None,
                 limit: TimeLimit | None = None):
        self.host, self.port, self.node_id = host, port, node_id
        self.address = f'[{host}]:{port}' if ':' in host else f'{host}:{port}'
        self.api_versions: dict[int, tuple[int, int]] = {}
        """Maps each API key to the versions that the broker serves. Empty until the broker has answered ApiVersions."""
        self.finalized_features: dict[str, int] = {}
        """Maps each feature of the cluster, such as `transaction.version`, to its finalized level."""
        self.config = config
        self._clock = clock or Clock()
        self._limit = limit or TimeLimit(self._clock)
        self._correlation_id = 0
        self._awaited: deque[Awaited] = deque()
        self._early: deque[Any] = deque()
        """The answers that were received before the caller asked for them, because a new login had to begin."""
        self._buffer = bytearray(SIZE_BYTES)
        self._filled = 0
        self._frame_bytes: int | None = None
        self._unsent: deque[Unsent] = deque()
        self._called: Message | None = None
        """The request of a call that ran out of time, or None. The next answer on the connection belongs to it."""
        self._call_end_ms = 0
        self._kept = bytearray()
        """The buffer of the last answer that was received with `reuses_buffer`. The next such answer overwrites it."""
        self._answers = 0
        self._answers_about_versions = 0
        """The number of answers to ApiVersions. They are the first ones, and there are two if the broker does not know
        the first requested version.
        """
        self._renewal_at_ms: float | None = None
        """The time at which to renew the SASL session, in ms of the monotonic clock; None if the session does not
        end.
        """
        self.used_ms = self._clock.monotonic_ms()
        """The time of the last request or answer, in ms of the monotonic clock."""
        self._socket: socket.socket | None = _connect(host, port, self.address, config, self._limit)
        self._no_room: tuple[type[OSError], ...] = (BlockingIOError,)
        if config.is_tls:
            import ssl
            self._no_room = (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError)
        try:
            self._learn_versions()
            if config.is_sasl:
                self._authenticate()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f'Connection({self.address}, node {self.node_id})'

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def in_flight(self) -> int:
        """The number of requests that await an answer."""
        return len(self._early) + len(self._awaited)

    @property
    def has_unfinished_call(self) -> bool:
        """True if the only request in flight is that of a call that ran out of time."""
        return self._called is not None

    @property
    def has_unsent(self) -> bool:
        """True if bytes of a request wait for room in the socket. `push` sends them when there is room."""
        return bool(self._unsent)

    @property
    def has_buffered(self) -> bool:
        """True if received bytes wait in this process, where `select` cannot see them: an early answer, or a TLS
        record.
        """
        if self._early:
            return True
        pending = getattr(self._socket, 'pending', None)
        return pending is not None and pending() > 0

    def fileno(self) -> int:
        """Return the file descriptor of the socket, or -1 if the connection is closed."""
        return -1 if self._socket is None else self._socket.fileno()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._awaited.clear()
        self._early.clear()
        self._unsent.clear()
        self._called = None

    def detach(self) -> socket.socket:
        """Return the socket, ready for requests, and forget it. The caller closes it.

        Raise ClientError if the connection is closed. Raise RuntimeError if a request is in flight.
        """
        opened = self._opened()
        if self.in_flight or self.has_unsent:
            raise RuntimeError(f'{self.in_flight} requests are in flight on {self!r}, expected none')
        self._socket = None
        return opened

    # ---- requests

    def version_of(self, request_class: type[Message], max_version: int | None = None, min_version: int = 0) -> int:
        """Return the highest version of a request that the client and the broker know.

        `min_version` excludes versions that would silently omit a field, such as a filter. Raise
        KafkaError(UNSUPPORTED_VERSION) if no version is left.
        """
        wanted: Any = request_class
        versions: tuple[int, int] = wanted.versions
        first, last = versions
        first = max(first, min_version)
        if max_version is not None:
            last = min(last, max_version)
        name = request_class.__name__.removesuffix('Request')
        served = self.api_versions.get(wanted.api_key)
        if served is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f'broker {self.address} does not serve {name}')
        if max(first, served[0]) > min(last, served[1]):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f'broker {self.address} serves {name} in versions '
                             f'{served[0]} to {served[1]}, expected one of {first} to {last}')
        return min(last, served[1])

    def call(self, request: Message, timeout_ms: int | None = None, max_version: int | None = None,
             min_version: int = 0) -> Any:
        """Send `request`, and return its answer. After `timeout_ms`, close the connection and raise AnswerTimeout.

        After OutOfTime the request remains in flight. The next call with an equal request waits for its answer. A
        different request first waits for that answer and drops it. Raise RuntimeError if a request that was not sent by
        `call` is in flight.
        """
        if self._called is not None and self._called != request:
            self._drop_call()
        if self._called is None and self.in_flight:
            raise RuntimeError(f'{self.in_flight} requests are in flight on {self!r}, expected none')
        limit_ms = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        try:
            if self._called is None:
                self.send(request, max_version, min_version)
                self._called, self._call_end_ms = request, self._clock.monotonic_ms() + limit_ms
            answer = self._early.popleft() if self._early else self._receive(limit_ms, end_ms=self._call_end_ms)
        except (AnswerTimeout, KeyboardInterrupt):
            self.close()
            raise
        self._called = None
        return answer

    def _drop_call(self) -> None:
        """Wait for the answer to a call that ran out of time, and drop it."""
        try:
            self._receive(self.config.request_timeout_ms, end_ms=self._call_end_ms)
        except AnswerTimeout:
            self.close()
            raise
        self._called = None

    def send(self, request: Message, max_version: int | None = None, min_version: int = 0,
             expect_response: bool = True) -> None:
        """Send a request without waiting. `expect_response` is False only for Produce with acks=0, which has no answer.

        Raise KafkaError(UNSUPPORTED_VERSION) if the client and the broker have no common version of the request. Raise
        KafkaError(INVALID_REQUEST) for a value that its field cannot hold.
        """
        if self._called is not None:
            self._drop_call()
        renewal_at_ms = self._renewal_at_ms
        if renewal_at_ms is not None and self._clock.monotonic_ms() >= renewal_at_ms:
            self._await_all()
            self._authenticate()
        self._send(request, self.version_of(type(request), max_version, min_version), expect_response)

    def receive(self, timeout_ms: int | None = None, *, reuses_buffer: bool = False) -> Any:
        """Return the answer to the oldest request. After AnswerTimeout the request is still in flight: call `receive`
        again.

        `timeout_ms` defaults to request.timeout.ms. With `reuses_buffer`, views into the answer are valid only until
        the next call with `reuses_buffer`, which overwrites their memory. Reuse saves time: allocating fresh memory
        costs more than writing the bytes into it.
        """
        if self._early:
            return self._early.popleft()
        return self._receive(self.config.request_timeout_ms if timeout_ms is None else timeout_ms, reuses_buffer)

    def _receive(self, timeout_ms: int, reuses_buffer: bool = False, end_ms: int | None = None) -> Any:
        """Wait for the next answer and return it. `end_ms` is the end of the wait if an earlier call has sent the
        request.
        """
        self._opened()
        awaited = self._awaited[0]
        try:
            self._push_all()
            timeout_ms = int(self._limit.finally_left_ms(timeout_ms))
            latest_ms = self._clock.monotonic_ms() + timeout_ms
            frame = self._read_frame(latest_ms if end_ms is None else min(latest_ms, end_ms), timeout_ms, reuses_buffer)
            self._awaited.popleft()
            self._answers += 1
            self.used_ms = self._clock.monotonic_ms()
            return self._decode(awaited, frame)
        except KeyboardInterrupt:   # the rest of a frame would be read as another frame
            self.close()
            raise
        except ProtocolError as error:
            raise self._broken(f'{self.address} sent an answer to {awaited.name} that cannot be read: {error}',
                               is_lasting=True) from None

    def _await_all(self) -> None:
        """Receive the answers to all requests in flight, and keep them for `receive`. During a login, a broker serves
        only the login.
        """
        while self._awaited:
            try:
                self._early.append(self._receive(self.config.request_timeout_ms))
            except AnswerTimeout as timeout:
                raise self._broken(f'{timeout}, and the login had to be renewed') from None
            except OutOfTime:       # another call cannot continue a login
                self.close()
                raise

    def _decode(self, awaited: Awaited, frame: memoryview) -> Any:
        if awaited.response_class is messages.ApiVersionsResponse and int.from_bytes(frame[4:6]) == (
                ErrorCode.UNSUPPORTED_VERSION):
            # A broker that does not know the requested version answers in version 0 (KIP-511).
            awaited = awaited._replace(version=0)
        header_version = response_header_version(awaited.response_class.api_key, awaited.version)
        header, end = decode_prefix(messages.ResponseHeader, frame, header_version)
        if header.correlation_id != awaited.correlation_id:
            raise ProtocolError(f'found correlation id {header.correlation_id}, expected {awaited.correlation_id}')
        return decode(awaited.response_class, frame, awaited.version, end)

    # ---- bytes

    def _send(self, request: Message, version: int, expect_response: bool = True) -> None:
        name = type(request).__name__.removesuffix('Request')
        self._correlation_id = (self._correlation_id + 1) & 0x7fffffff
        header = encode(messages.RequestHeader(
            request_api_key=request.api_key, request_api_version=version, correlation_id=self._correlation_id,
            client_id=self.config.client_id), request_header_version(request.api_key, version))
        try:
            segments = encode_segments(request, version, header)
        except EncodeError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'{name} version {version} cannot carry the request: '
                                                        f'{error}') from None
        parts = [segment.data if isinstance(segment, SentInPlace) else segment for segment in segments]
        size = sum(map(len, parts))
        parts.insert(0, size.to_bytes(SIZE_BYTES))
        if len(parts) == 2 or self.config.is_tls:      # a TLS socket sends one part at a time
            parts = [b''.join(parts)]
        self._opened()
        try:
            self._unsent.append(Unsent(parts, SIZE_BYTES + size, name, size))
            self.push()
            if expect_response:
                response_class = getattr(messages, f'{name}Response')
                self._awaited.append(Awaited(self._correlation_id, response_class, version, name))
            else:
                self._push_all()
        except KeyboardInterrupt:   # the whole request may be sent, with no one to await its answer
            self.close()
            raise
        self.used_ms = self._clock.monotonic_ms()

    def push(self) -> None:
        """Send as many bytes of the waiting requests as the socket accepts, without waiting.

        Raise ClientError if the connection breaks.
        """
        opened = self._opened()
        opened.settimeout(0)
        while self._unsent:
            unsent = self._unsent[0]
            rest = unsent.rest
            try:
                count = opened.send(rest[0]) if len(rest) == 1 else opened.sendmsg(rest[:MOST_PARTS])
            except self._no_room:
                return
            except OSError as error:
                raise self._lost(unsent.name, error) from None
            if count == unsent.rest_bytes:
                self._unsent.popleft()
            else:
                self._unsent[0] = unsent._replace(rest=_without(rest, count), rest_bytes=unsent.rest_bytes - count)

    def _push_all(self) -> None:
        """Send all waiting requests. Wait for room in the socket, at most request.timeout.ms for each request."""
        left, timeout_ms, end_ms = 0, 0, 0
        while self._unsent:
            if len(self._unsent) != left:
                left = len(self._unsent)
                timeout_ms = max(int(self._limit.finally_left_ms(self.config.request_timeout_ms)), 1)
                end_ms = self._clock.monotonic_ms() + timeout_ms
            self.push()
            if len(self._unsent) == left:
                self._await_room(end_ms, timeout_ms)

    def _await_room(self, end_ms: int, timeout_ms: int) -> None:
        """Wait until the socket has room for bytes of the first waiting request. Raise ClientError at `end_ms`."""
        unsent = self._unsent[0]
        words = f'{self.address} did not take the whole of {unsent.name}, {unsent.size_bytes} bytes, within '
        is_cut, left_ms = self._limit.cuts(end_ms), self._limit.left_ms(end_ms - self._clock.monotonic_ms())
        poller = select.poll()
        poller.register(self._opened().fileno(), select.POLLOUT)
        if left_ms > 0 and poller.poll(left_ms):
            return
        if is_cut:
            raise OutOfTime(words + 'the time of the call')
        raise self._broken(f'{words}{timeout_ms} ms')

    def _read_frame(self, deadline_ms: int, timeout_ms: int, reuses_buffer: bool) -> memoryview:
        """Return the next frame without its size prefix. After a timeout, the next call keeps the bytes received so
        far.
        """
        if self._frame_bytes is None:
            self._fill(SIZE_BYTES, deadline_ms, timeout_ms)
            self._frame_bytes = self._checked_size(bytes(self._buffer))
            self._buffer = bytearray()
            if reuses_buffer:       # no other answer may use the kept buffer: views may be in use
                self._buffer, self._kept = self._kept, self._buffer
            if not self._buffer:
                self._buffer = bytearray(min(self._frame_bytes, FIRST_READ_BYTES))
            self._filled = 0
        while self._filled < self._frame_bytes:
            if self._filled == len(self._buffer):
                grown = bytearray(min(2 * self._filled, self._frame_bytes))  # views of the old buffer may be in use
                grown[:self._filled] = self._buffer
                self._buffer = grown
            self._fill(min(len(self._buffer), self._frame_bytes), deadline_ms, timeout_ms)
        frame = memoryview(self._buffer)[:self._frame_bytes]
        if reuses_buffer:
            self._kept = self._buffer
        self._buffer, self._filled, self._frame_bytes = bytearray(SIZE_BYTES), 0, None
        return frame

    def _fill(self, size: int, deadline_ms: int, timeout_ms: int) -> None:
        opened = self._opened()
        awaited = self._awaited[0].name
        with memoryview(self._buffer) as view:
            while self._filled < size:
                # `settimeout(0)` would make the socket non-blocking.
                is_cut, left_ms = self._limit.cuts(deadline_ms), deadline_ms - self._clock.monotonic_ms()
                opened.settimeout(max(self._limit.left_ms(left_ms) if is_cut else left_ms, 0.1) / 1000)
                try:
                    count = opened.recv_into(view[self._filled:size])
                except TimeoutError:
                    if is_cut:
                        raise OutOfTime(f'{self.address} has not answered {awaited} within the time of the call'
                                        ) from None
                    raise AnswerTimeout(f'{self.address} did not answer {awaited} within {timeout_ms} ms'
                                        + ('' if self._answers else f': {IN_DOUBT}')) from None
                except OSError as error:
                    raise self._lost(awaited, error) from None
                if count == 0:
                    raise self._lost(awaited, None)
                self._filled += count

    def _checked_size(self, head: bytes) -> int:
        size = int.from_bytes(head, signed=True)
        limit = LARGEST_ANSWER_BYTES if self._answers else LARGEST_FIRST_ANSWER_BYTES
        if SIZE_BYTES <= size <= limit:
            return size
        if head == b'HTTP':
            reason = 'answers with HTTP: that is not the port of a Kafka broker'
        elif head[0] in (0x15, 0x16) and head[1] == 3:
            reason = f'answers with TLS, and security.protocol is {self.config.security_protocol}: set it to SSL or ' \
                     'SASL_SSL in --command-config'
        else:
            reason = f'answers with {head!r}, which is not the size of a Kafka response (at most {limit} bytes)'
        raise self._broken(f'{self.address} {reason}', is_lasting=True)

    def _opened(self) -> socket.socket:
        if self._socket is None:
            raise ClientError(f'the connection to {self.address} is closed')
        return self._socket

    def _lost(self, name: str, error: OSError | None) -> ClientError:
        """Return the error for a lost connection. Its hint depends on the step at which the connection was lost."""
        words = error and (getattr(error, 'reason', None) or error.strerror)
        reason = f'({words})' if words else ''
        text = f'{self.address} closed the connection instead of answering {name} {reason}'.rstrip()
        if self._answers == 0 and self.config.is_tls:
            from kbroker.security.tls_failures import why_the_broker_refuses
            why = why_the_broker_refuses(getattr(error, 'reason', None), self.config.tls.private_key is not None)
            return self._broken(f'{text}: {why or "does the listener ask for a client certificate (ssl.keystore.*)?"}',
                                is_lasting=True)
        if self._answers == 0:
            return self._broken(f'{text}: {IN_DOUBT}', is_lasting=True)
        if self._answers == self._answers_about_versions and not self.config.is_sasl:
            return self._broken(f'{text}: does the listener ask for SASL (security.protocol is '
                                f'{self.config.security_protocol})?')
        return self._broken(text)

    def _broken(self, message: str, is_lasting: bool = False) -> ClientError:
        self.close()
        return ClientError(message, is_lasting)

    # ---- the first requests

    def _learn_versions(self) -> None:
        answer = self._ask_versions(messages.ApiVersionsRequest.versions[1])
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            served = [row.max_version for row in answer.api_keys if row.api_key == ApiKey.API_VERSIONS]
            answer = self._ask_versions(served[0] if served else 0)
        check(answer.error_code, f'broker {self.address}: ApiVersions')
        self._answers_about_versions = self._answers
        self.api_versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        self.finalized_features = {row.name: row.max_version_level for row in answer.finalized_features}

    def _ask_versions(self, version: int) -> Any:
        self._send(messages.ApiVersionsRequest(client_software_name='kbroker', client_software_version=__version__),
                   min(version, messages.ApiVersionsRequest.versions[1]))
        return self._receive(self.config.request_timeout_ms)

    def _authenticate(self) -> None:
        try:
            lifetime_ms = self._talk_sasl()
        except KafkaError:
            self.close()
            raise
        self._renewal_at_ms = self._clock.monotonic_ms() + lifetime_ms * REAUTHENTICATE_AT if lifetime_ms > 0 else None

    def _talk_sasl(self) -> int:
        """Log in by the SASL mechanism. Return the lifetime of the session in ms, or 0 if the session does not end."""
        from kbroker.client.sasl import conversation_of
        config = self.config
        answer = None
        if ApiKey.SASL_HANDSHAKE in self.api_versions:
            self._send(messages.SaslHandshakeRequest(mechanism=config.sasl_mechanism),
                       self.version_of(messages.SaslHandshakeRequest))
            answer = self._receive(config.request_timeout_ms)
        if answer is None or answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, f'broker {self.address} does not ask for SASL on this '
                             f'listener: security.protocol is {config.security_protocol}, expected '
                             f'{config.security_protocol.replace("SASL_", "")}')
        check(answer.error_code, f'broker {self.address}', f'found sasl.mechanism {config.sasl_mechanism}, the '
              f'listener offers {", ".join(answer.mechanisms) or "none"}')
        version = self.version_of(messages.SaslAuthenticateRequest)
        talk = conversation_of(config, int(self._limit.left_ms(MOST_MS)))
        words = next(talk)
        login = config.sasl_mechanism if config.sasl_token is not None else f'user {config.sasl_username!r}'
        while True:
            self._send(messages.SaslAuthenticateRequest(auth_bytes=words), version)
            answer = self._receive(config.request_timeout_ms)
            check(answer.error_code, f'broker {self.address}, {login}', answer.error_message)
            try:
                words = talk.send(answer.auth_bytes)
            except StopIteration:
                return int(answer.session_lifetime_ms)


def _without(parts: list[Any], count: int) -> list[Any]:
    """Return the parts without the first `count` bytes of all parts together."""
    for number, part in enumerate(parts):
        if count < len(part):
            return [memoryview(part)[count:], *parts[number + 1:]]
        count -= len(part)
    return []


def open_socket(host: str, port: int, config: ClientConfig) -> socket.socket:
    """Return a socket that is connected to a broker, after the TLS handshake if the config requires TLS.

    Raise ClientError if the broker cannot be reached.
    """
    return _connect(host, port, f'[{host}]:{port}' if ':' in host else f'{host}:{port}', config, TimeLimit(Clock()))


def _connect(host: str, port: int, address: str, config: ClientConfig, limit: TimeLimit) -> socket.socket:
    """Connect to a broker, with a TLS handshake if the config requires TLS. `limit` limits each wait."""
    setup_ms = config.connection_setup_timeout_ms
    limit_ms = limit.left_ms(setup_ms)
    is_cut = limit_ms < limit.finally_left_ms(setup_ms)
    try:
        plain = _connected(host, port, lambda: max(limit.left_ms(setup_ms), 1) / 1000)
    except socket.gaierror as error:
        raise ClientError(f'{address}: the host name cannot be resolved ({error.strerror})', True) from None
    except UnicodeError:
        raise ClientError(f'{address}: the host name cannot be resolved (it is not a valid name)', True) from None
    except TimeoutError:
        words = f'{address} cannot be reached: no answer within {limit_ms:.0f} ms'
        raise (OutOfTime(words) if is_cut else ClientError(words)) from None
    except OSError as error:
        hint = ': is a broker running there?' if isinstance(error, ConnectionRefusedError) else ''
        raise ClientError(f'{address} cannot be reached ({error.strerror}){hint}') from None
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if config.is_tls:
            from kbroker.client.tls import secured
            plain.settimeout(max(limit.left_ms(setup_ms), 1) / 1000)
            return secured(plain, host, address, config.tls)
    except BaseException as error:
        plain.close()
        if is_cut and isinstance(error, AnswerTimeout):
            raise OutOfTime(str(error)) from None
        raise
    return plain


def _connected(host: str, port: int, seconds_left: Callable[[], float]) -> socket.socket:
    """Connect to the first address of a host that accepts. If all addresses refuse, raise the error of the last one."""
    *others, last = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for found in others:
        with suppress(OSError):
            return _connected_to(found, seconds_left())
    return _connected_to(last, seconds_left())


def _connected_to(found: Any, timeout_s: float) -> socket.socket:
    """Connect to an address, given as a row of `getaddrinfo`."""
    family, kind, protocol, _, place = found
    opened = socket.socket(family, kind, protocol)
    try:
        opened.settimeout(timeout_s)
        opened.connect(place)
    except BaseException:
        opened.close()
        raise
    return opened
