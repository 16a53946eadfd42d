"""A complete broker in the test's process. It has a real directory and a manual clock, but no sockets and no threads.

`send` passes a frame to the dispatcher as `kbroker/network` does. `turn` runs one tick.
"""
from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from itertools import count
from types import TracebackType
from typing import Any

from kbroker.apis.serving.dispatch import Dispatcher
from kbroker.apis.serving.served import apis_under
from kbroker.base.clock import Clock, ManualClock, Timers
from kbroker.base.completion import Steps
from kbroker.base.turn_watch import TurnWatch
from kbroker.daemon.node import Node
from kbroker.log.fs import FileSystem, sync_inline
from kbroker.log.jobs import Submit, Sync, run_inline
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey, request_header_version, response_header_version
from kbroker.protocol.codec import decode, encode
from kbroker.security.session import Session
from kbroker.settings.config import Config
from kbroker.settings.listeners import Listener


class InProcessConnection:
    """A connection as the dispatcher sees it. It keeps the replies, and reads their file slices into memory."""

    client_host = '127.0.0.1'
    listener_name = 'PLAINTEXT'

    def __init__(self, connection_id: int, session: Session | None = None):
        self.connection_id = connection_id
        self.session = session
        self.replies: list[bytes | None] = []
        self.closed: str | None = None
        self.sent = 0
        self.muted_ms = 0
        self.network_us = 0

    def reply(self, sequence: int, segments: bytes | list[Any] | None) -> None:
        self.replies.append(b''.join(
            segment if isinstance(segment, bytes | bytearray | memoryview) else segment.read()
            for segment in segments) if isinstance(segments, list) else segments)

    def let_next_pass(self, sequence: int) -> None:
        pass

    def mute(self, time_ms: int) -> None:
        self.muted_ms = time_ms

    def take_network_us(self) -> int:
        return self.network_us

    def keep_frame(self) -> None:
        """Do nothing. The handler need not copy the frame, because its memory is not reused."""

    def close(self, reason: str, *_: Any) -> None:
        self.closed = reason


class NotingConnection(InProcessConnection):
    """A connection that calls `on_reply` when a reply leaves, which may be before the tick ends."""

    def __init__(self, connection_id: int):
        super().__init__(connection_id)
        self.on_reply: Callable[[], None] = lambda: None

    def reply(self, sequence: int, segments: bytes | list[Any] | None) -> None:
        super().reply(sequence, segments)
        self.on_reply()


def frame_of(request: Any, version: int, client_id: str = 'test', correlation_id: int = 1) -> bytes:
    """Return the frame of a request, without its size prefix of four bytes."""
    key = ApiKey(request.api_key)
    header = (key.to_bytes(2, 'big') + version.to_bytes(2, 'big') + correlation_id.to_bytes(4, 'big')
              + len(client_id).to_bytes(2, 'big') + client_id.encode())
    return header + (b'\0' if request_header_version(key, version) >= 2 else b'') + encode(request, version)


def read_answer(request: Any, version: int, reply: bytes) -> Any:
    """Decode the response to `request` from a reply without its size prefix of four bytes."""
    response_class = getattr(messages, type(request).__name__.removesuffix('Request') + 'Response')
    header_bytes = 5 if response_header_version(ApiKey(request.api_key), version) else 4
    return decode(response_class, reply, version, header_bytes)


class InProcessBroker(Node):
    """A node as a context manager. It is closed cleanly unless `crash` was called."""

    clock: ManualClock

    def __init__(self, directory: pathlib.Path | str, settings: Mapping[str, str] | None = None, *,
                 clock: ManualClock | None = None, fs: FileSystem | None = None,
                 sync: Sync = sync_inline, watch: TurnWatch | None = None, search: Submit = run_inline,
                 make_steps: Callable[[Clock, Timers], Steps] | None = None):
        clock = clock or ManualClock()
        config = Config({'log.dirs': str(directory), **(settings or {})})
        timers = Timers(clock, watch)
        super().__init__(config, clock, timers, fs or FileSystem(), sync, search=search,
                         steps=None if make_steps is None else make_steps(clock, timers))
        self._dispatcher = Dispatcher(self, apis_under(self.config), self.tick, steps=self.steps)
        self.quotas.on_switch.append(self._dispatcher.apply_quotas)
        self._connection_ids = count(1)
        self._correlation_ids = count(1)
        self._is_open = False

    def __enter__(self) -> InProcessBroker:
        self.take_directory()
        self.open([Listener('PLAINTEXT', 'localhost', 9092)])
        self._is_open = True
        self.turn()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._is_open:
            self.close()

    def crash(self) -> None:
        """End the broker without a clean stop."""
        self._is_open = False
        self.abandon()

    def connect(self, session: Session | None = None) -> InProcessConnection:
        return InProcessConnection(next(self._connection_ids), session)

    def disconnect(self, connection: InProcessConnection) -> None:
        self.connection_closed(connection.connection_id)

    def send(self, connection: InProcessConnection, frame: bytes) -> None:
        # This repeats the two lines of `serve` instead of calling it, because the gates count the instructions of
        # `send`.
        self._dispatcher.handle(connection, connection.sent, memoryview(bytearray(frame)))
        connection.sent += 1
        self.turn()

    def serve(self, connection: InProcessConnection, frame: bytes) -> None:
        """Serve one frame without ending the tick."""
        self._dispatcher.handle(connection, connection.sent, memoryview(bytearray(frame)))
        connection.sent += 1

    def turn(self) -> None:
        """Run one tick: due timers, then the end of the tick (flush, woken fetches)."""
        self.timers.run_due()
        self.end_tick()

    def begin(self, request: Any, version: int, connection: InProcessConnection | None = None,
              client_id: str = 'test') -> InProcessConnection:
        """Send a request and return the connection. Its last reply is the answer, if the broker has answered."""
        connection = connection or self.connect()
        self.send(connection, frame_of(request, version, client_id, next(self._correlation_ids)))
        return connection

    def begin_noted(self, request: Any, version: int, on_answer: Callable[[Any], None],
                    connection: NotingConnection | None = None) -> NotingConnection:
        """Send a request and return the connection. Call `on_answer` as soon as the answer leaves."""
        sink = connection or NotingConnection(0)
        sink.on_reply = lambda: on_answer(self.answer_to(sink, request, version))
        self.begin(request, version, sink)
        return sink

    def answer_to(self, connection: InProcessConnection, request: Any, version: int) -> Any:
        """Decode the last reply on a connection as the answer to `request`."""
        assert connection.closed is None, connection.closed
        reply = connection.replies[-1]
        assert reply is not None
        return read_answer(request, version, reply)

    def ask(self, request: Any, version: int | None = None, client_id: str = 'test') -> Any:
        """Send a request and decode the answer, which must arrive within the tick."""
        version = type(request).versions[1] if version is None else version
        connection = self.begin(request, version, client_id=client_id)
        assert connection.replies, f'{type(request).__name__} v{version} is not answered'
        return self.answer_to(connection, request, version)
