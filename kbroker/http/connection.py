"""A connection of an HTTP client: one request after the other, answered in parts.

`h11` parses requests and frames answers. The connection reads only while it has no request to answer, so a client that
sends more requests than it reads answers waits. Answers run as long work. An answer waits while the socket has no room.
"""
from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Generator, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

import h11

from kbroker.base.long_work import Pause
from kbroker.http.messages import Answer, BadTargetError, HttpRequest, parse_target

if TYPE_CHECKING:
    from kbroker.base.long_work import LongWork
    from kbroker.http.messages import Wait
    from kbroker.http.routes import Routes
    from kbroker.network.reactor import EventHandler, Reactor

READ_BYTES = 1 << 14
MOST_HEAD_BYTES = 1 << 14
"""The most bytes of a request's line and headers."""
MOST_BODY_BYTES = 1 << 16
SEND_BYTES = 1 << 15
"""The bytes of parts that are collected before they are sent."""
COMMON_HEADERS = (('cache-control', 'no-store'), ('x-content-type-options', 'nosniff'))

logger = logging.getLogger('kbroker.http')


class HttpConnection:
    """A client's connection. `on_close(connection)` is called once, after it has been closed."""

    would_block: tuple[type[OSError], ...] = (BlockingIOError,)
    """The errors of a socket that has no bytes or no room."""

    def __init__(self, reactor: Reactor, long_work: LongWork, connected: socket.socket, routes: Routes,
                 on_close: Callable[[HttpConnection], None]):
        self._reactor = reactor
        self._long_work = long_work
        self._socket = connected
        self._routes = routes
        self._on_close = on_close
        self._clock = reactor.machine_timers.clock
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)
        self._request: h11.Request | None = None
        self._body = b''
        self._room: Pause | None = None
        """The pause of an answer that waits for room in the socket."""
        self._event: Wait | None = None
        """The event that an answer waits for before it begins."""
        self._awaits_end = False
        """True while the next byte or the end of the connection is reported during an answer."""
        self._is_closed = self._is_lingering = False
        self._waits_from_ms: int | None = None
        self._waited_ms = 0
        self._handler: EventHandler = reactor.watch(connected.fileno(), self._read)
        self._wait_for_peer()

    @property
    def is_idle(self) -> bool:
        """True if the client has sent no part of a request since the last answer."""
        return self._room is None and self._request is None and not self._http.trailing_data[0]

    def waited_ms(self) -> int:
        """Return for how many milliseconds the broker has waited for the client, during the present exchange."""
        if self._waits_from_ms is None:
            return self._waited_ms
        return self._waited_ms + self._clock.monotonic_ms() - self._waits_from_ms

    def is_waiting(self) -> bool:
        """Return whether the broker waits for the client now."""
        return self._waits_from_ms is not None

    def close(self) -> None:
        """Close the connection. An answer in progress ends."""
        if self._is_closed:
            return
        self._is_closed = True
        self._reactor.unregister(self._handler)
        del self._handler       # it refers to this connection, and the cycle would be garbage
        self._socket.close()
        if self._room is not None:
            self._room.end()
        if self._event is not None:
            self._event.end()
        self._on_close(self)

    def _wait_for_peer(self) -> None:
        self._waits_from_ms = self._clock.monotonic_ms()

    def _go_on(self) -> None:
        self._waited_ms = self.waited_ms()
        self._waits_from_ms = None

    def _read(self) -> None:
        if self._waits_from_ms is None:     # epoll reports also to a paused handler that the client has gone
            if not self._awaits_end or not self._has_next_request():
                self.close()
            return
        try:
            data = self._receive()
        except self.would_block:
            return
        except OSError as error:
            self._note_failure(error)
            self.close()
            return
        if self._is_lingering:
            if not data:
                self.close()
            return
        self._http.receive_data(data)
        self._take_events()

    def _receive(self) -> bytes:
        return self._socket.recv(READ_BYTES)

    def _note_failure(self, error: OSError) -> None:
        """Log why a connection ends, if that is of interest."""

    def _has_next_request(self) -> bool:
        """Return whether the client sends its next request during an answer. The connection leaves it in the socket."""
        try:
            # The bytes of TLS stay unread, too: SSLSocket refuses to peek.
            found = socket.socket.recv(self._socket, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if found:
            self._await_no_end()
        return bool(found)

    def _await_no_end(self) -> None:
        if self._awaits_end:
            self._awaits_end = False
            self._reactor.pause(self._handler)

    def _take_events(self) -> None:
        """Take what has arrived, up to the end of a request. Then answer it."""
        try:
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._say_continue()
                    return
                if isinstance(event, h11.Request):
                    self._request = event
                elif isinstance(event, h11.Data):
                    self._body += event.data
                    if len(self._body) > MOST_BODY_BYTES:
                        self._answer_and_close(HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                                               f'found a body above {MOST_BODY_BYTES} bytes, expected fewer')
                        return
                elif isinstance(event, h11.EndOfMessage):
                    self._begin(self._answer_to_request())
                    return
                else:       # the client has closed its side, or pipelines after the last request
                    self.close()
                    return
        except h11.RemoteProtocolError as error:
            error.__traceback__ = None      # some errors of h11 refer to a frame that refers to them
            self._answer_and_close(error.error_status_hint, str(error))

    def _say_continue(self) -> None:
        """Let a client that asked for it (Expect: 100-continue) send its body."""
        if self._http.they_are_waiting_for_100_continue:
            with contextlib.suppress(OSError):
                self._socket.send(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))

    def _answer_to_request(self) -> Answer:
        assert self._request is not None
        headers = {name.decode('latin-1'): value.decode('latin-1') for name, value in self._request.headers}
        try:
            path, query = parse_target(self._request.target)
        except BadTargetError as error:
            return self._routes.refuse(HTTPStatus.BAD_REQUEST, str(error), ())
        request = HttpRequest(self._request.method.decode('latin-1'), path, query, headers, self._body)
        try:
            return self._routes.answer(request)
        except Exception:       # such as a file of the page that cannot be opened
            return self._failure()

    def _failure(self) -> Answer:
        """Log the exception that is being handled, and return the answer to its request."""
        logger.exception('an answer to %s failed', self._request.target[:200] if self._request else b'')
        return self._routes.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, 'the answer failed; the log says why', ())

    def _answer_and_close(self, status: int, problem: str) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.close()
            return
        self._begin(self._routes.refuse(status, problem, (('connection', 'close'),)))

    def _begin(self, answer: Answer) -> None:
        self._go_on()
        self._event = answer.wait
        if answer.wait is None:
            self._reactor.pause(self._handler)
        else:
            self._awaits_end = True
        self._long_work.start(self._serve(answer))

    def _serve(self, answer: Answer) -> Generator[object]:
        """Send an answer, then take the next request."""
        yield None      # the first part of a work runs in the turn of its connection, and many requests come in a tick
        if answer.wait is not None:
            yield from answer.wait.wait()
            self._event = None
            if self._is_closed:
                return
            self._await_no_end()
        parts = iter(answer.parts)
        is_whole = False
        try:
            is_whole = yield from self._send_answer(answer, parts)
        except Exception:       # a fault of a page must not end the broker
            failure = self._failure()
            if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                is_whole = yield from self._send_answer(failure, iter(failure.parts))
        finally:
            if isinstance(parts, Generator):
                parts.close()
        if self._is_closed:
            return
        if not is_whole:
            self.close()
            return
        if answer.after is not None:
            answer.after()
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            self._linger_and_close()
            return
        self._http.start_next_cycle()
        self._request, self._body = None, b''
        self._waited_ms = 0
        self._wait_for_peer()
        self._reactor.resume(self._handler)
        self._take_events()     # a part of the next request may have arrived with this one

    def _send_answer(self, answer: Answer, parts: Iterator[object]) -> Generator[object, None, bool]:
        """Send the whole answer. Return False if the connection has been closed meanwhile."""
        waiting = bytearray()
        has_begun = False
        is_head = self._request is not None and self._request.method == b'HEAD'
        for part in () if is_head else parts:
            if isinstance(part, Answer):
                assert not has_begun, 'an answer takes the place of another one before its first bytes'
                return (yield from self._send_answer(part, iter(part.parts)))
            if not isinstance(part, bytes):
                yield part
            elif part:
                if not has_begun:
                    has_begun = True
                    waiting += self._head(answer)
                waiting += self._http.send(h11.Data(data=part)) or b''
                if len(waiting) >= SEND_BYTES:
                    yield from self._send(waiting)
            if self._is_closed:
                return False
        if not has_begun:
            waiting += self._head(answer)
        waiting += self._http.send(h11.EndOfMessage()) or b''
        yield from self._send(waiting)
        return not self._is_closed

    def _head(self, answer: Answer) -> bytes:
        date = time.strftime('%a, %d %b %Y %H:%M:%S GMT', time.gmtime(self._clock.wall_ms() // 1000))
        headers = [('date', date), ('content-type', answer.content_type), *COMMON_HEADERS, *answer.headers]
        if isinstance(answer.parts, list):
            headers.append(('content-length', str(sum(map(len, answer.parts)))))
        reason = HTTPStatus(answer.status).phrase.encode()
        return self._http.send(h11.Response(status_code=answer.status, headers=headers, reason=reason)) or b''

    def _send(self, waiting: bytearray) -> Generator[object]:
        """Send all bytes of `waiting`, and clear it. Yield while other work may run, or has to."""
        sent = 0
        while sent < len(waiting) and not self._is_closed:
            try:
                sent += self._socket.send(memoryview(waiting)[sent:sent + SEND_BYTES])
            except self.would_block:
                yield from self._wait_for_room()
            except OSError:
                self.close()
            else:
                yield None
        waiting.clear()

    def _wait_for_room(self) -> Generator[object]:
        self._room = Pause()
        self._wait_for_peer()
        self._reactor.unregister(self._handler)
        self._handler = self._reactor.watch_room(self._socket.fileno(), self._room.end)
        yield from self._room.wait()
        self._room = None
        self._go_on()
        if not self._is_closed:
            self._reactor.unregister(self._handler)
            self._handler = self._reactor.watch(self._socket.fileno(), self._read)
            self._reactor.pause(self._handler)

    def _linger_and_close(self) -> None:
        """Close the connection after the client has read the answer: when it closes its side, or stays silent.

        A close with unread bytes would reset the connection, and the client might not see the answer.
        """
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        self._is_lingering = True
        self._wait_for_peer()
        self._reactor.resume(self._handler)
