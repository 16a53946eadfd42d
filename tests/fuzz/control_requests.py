"""A control port in one process, without its routes that signal the process, for bytes that a client chooses."""
from __future__ import annotations

import contextlib
import pathlib
import socket
from collections.abc import Iterator

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.long_work import LongWork
from kbroker.control.clock import ClockControl, ClockFile
from kbroker.control.routes import Controlled, routes_of
from kbroker.control.rules import Rules
from kbroker.control.server import Polls, refusal
from kbroker.http.connection import HttpConnection
from kbroker.http.routes import Routes
from kbroker.log.fs import FileSystem
from kbroker.network.reactor import Reactor

MOST_TICKS = 200
QUIET_TICKS = 3
"""The ticks without an answer after which a request waits, or is not whole."""


class FuzzedPort:
    """Answers the bytes of one connection after the other."""

    def __init__(self, directory: pathlib.Path):
        clock = ManualClock()
        timers = Timers(clock)
        self._reactor = Reactor(clock, timers)
        self._long_work = LongWork(timers)
        rules = Rules(clock, timers, send_signal=lambda number: None)
        polls = Polls(timers)
        rules.listeners.append(polls.note)
        control = ClockControl(clock, self._reactor, (), lambda: 0, ClockFile(FileSystem(), str(directory)))
        self._reactor.at_tick_end.extend([polls.end_tick, control.end_tick])
        routes = routes_of(Controlled(rules, polls, dict, control, {}))
        self._routes = Routes([route for route in routes if not route.path.startswith('/process/')],
                              only_local_names=True, only_programs=True, refuse=refusal)
        self._polls = polls
        self._rules = rules

    def run(self, data: bytes) -> bytes:
        """Send bytes on a connection of their own, and close it. Return what the port answers."""
        client, served = socket.socketpair()
        closed: list[HttpConnection] = []
        with client:
            served.setblocking(False)
            client.setblocking(False)
            HttpConnection(self._reactor, self._long_work, served, self._routes, closed.append)
            answer = self._exchange(client, data)
        for _ in range(MOST_TICKS):
            if closed:
                break
            self._reactor.run_once()
        assert closed, 'the connection of a client that has gone stays open'
        assert not len(self._polls), 'the poll of a client that has gone goes on'
        self._rules.clear()
        return answer

    def _exchange(self, client: socket.socket, data: bytes) -> bytes:
        answer, quiet = bytearray(), 0
        for _ in range(MOST_TICKS):
            with contextlib.suppress(BlockingIOError, ConnectionError):
                data = data[client.send(data):] if data else data
            self._reactor.run_once()
            try:
                part = client.recv(1 << 16)
            except BlockingIOError:
                quiet += 1
                if quiet > QUIET_TICKS and not data:
                    break
            except ConnectionError:
                break
            else:
                if not part:
                    break
                answer += part
                quiet = 0
        return bytes(answer)


def request(line: str, body: bytes = b'') -> bytes:
    """Return a request with a body of JSON."""
    length = f'content-type: application/json\r\ncontent-length: {len(body)}\r\n' if body else ''
    return f'{line} HTTP/1.1\r\nhost: localhost\r\n{length}\r\n'.encode() + body


def requests() -> Iterator[bytes]:
    """Yield requests of each kind."""
    yield request('POST /rules', b'{"point": "request", "action": "error", "error": "NOT_COORDINATOR", '
                  b'"select": {"api": "EndTxn", "occurrence": 2}}') + request('GET /rules/1?matched=1&wait_ms=1000')
    yield request('POST /rules', b'{"point": "sync", "action": "delay", "delay_ms": 9, "select": {"topic": "or*", '
                  b'"partition": 3, "times": 1}}') + request('DELETE /rules')
    yield request('GET /steps?since=0&wait_ms=60000')
    yield request('POST /clock', b'{"advance_ms": 900000}') + request('GET /clock')
    yield request('POST /rules/1/release') + request('DELETE /rules/1') + request('DELETE /steps')
    yield request('GET /openapi.json') + request('GET /points') + request('GET /')
