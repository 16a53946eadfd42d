"""The control port: an HTTP server with which a test stops the clock of a broker, holds its steps, and makes them fail.

A client waits for a step by a long poll. A poll that waits takes a connection and a few hundred bytes, and neither a
turn of the loop nor a place among the requests of Kafka's clients.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kbroker.base.ledger import Line
from kbroker.base.long_work import Pause
from kbroker.http.messages import Answer
from kbroker.http.routes import JSON, Route, Routes
from kbroker.http.server import HttpServer, Purpose, listen

if TYPE_CHECKING:
    import socket

    from kbroker.base.clock import Timers
    from kbroker.base.long_work import LongWork
    from kbroker.http.tokens import Token
    from kbroker.network.reactor import Reactor

PURPOSE = Purpose('the control port', 256)
MOST_POLLS = 128
"""The most polls that wait at one time. Half of the connections stay free for the requests that end the waiting."""
MOST_TEXT = 1000
"""The most characters of the text of a refusal. It may contain a name of a request."""


def json_answer(found: Any, status: int = 200, *, after: Callable[[], object] | None = None) -> Answer:
    """Return an answer with a JSON value."""
    return Answer([json.dumps(found).encode() + b'\n'], status, JSON, after=after)


def refusal(status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """Return the answer to a request that is refused: an object with the one field `error`."""
    shown = text if len(text) <= MOST_TEXT else f'{text[:MOST_TEXT]}...'
    return Answer([json.dumps({'error': shown}).encode() + b'\n'], status, JSON, headers)


class Poll:
    """A request that waits. It ends when its condition is met, when its time is over, or when its client goes away."""

    def __init__(self, polls: Polls, is_met: Callable[[], bool], wait_ms: int):
        self._polls = polls
        self.is_met = is_met
        self._pause = Pause()
        self._timer = polls.timers.after(wait_ms, self.end)

    def wait(self) -> Iterator[object]:
        """Yield until the poll has ended."""
        yield from self._pause.wait()

    def end(self) -> None:
        """Let the request be answered now."""
        self._timer.cancel()
        self._polls.forget(self)
        self._pause.end()


class Polls:
    """The requests that wait until something has happened, for a limited time.

    The conditions are checked at the end of each tick of the loop in which `note` was called. At MOST_POLLS, the oldest
    poll ends before its time.
    """

    def __init__(self, timers: Timers):
        """`timers` follow the machine's time: the clock of the broker may be stopped."""
        self.timers = timers
        self._waiting: dict[Poll, None] = {}
        self._has_news = False

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, is_met: Callable[[], bool], wait_ms: int) -> Poll | None:
        """Return a poll that ends when `is_met()`, or after `wait_ms`. Return None if there is nothing to wait for."""
        if wait_ms <= 0 or is_met():
            return None
        if len(self._waiting) >= MOST_POLLS:
            next(iter(self._waiting)).end()
        poll = Poll(self, is_met, wait_ms)
        self._waiting[poll] = None
        return poll

    def forget(self, poll: Poll) -> None:
        """Forget a poll that ends."""
        self._waiting.pop(poll, None)

    def note(self) -> None:
        """Note that a condition may have become true."""
        self._has_news = True

    def end_tick(self) -> None:
        """End the polls whose conditions are met."""
        if not self._has_news:
            return
        self._has_news = False
        for poll in [poll for poll in self._waiting if poll.is_met()]:
            poll.end()

    def close(self) -> None:
        """End all polls."""
        for poll in list(self._waiting):
            poll.end()


class ControlPort:
    """The HTTP server of `kbroker serve --control`."""

    def __init__(self, host: str, port: int, token: Token | None, *, is_local: bool):
        """Bind the address. Clients wait in the backlog until `serve`. Raise OSError if it is not available."""
        self._token = token
        self._only_local_names = is_local and token is None
        self._listener: socket.socket = listen(host, port, PURPOSE)
        self._server: HttpServer | None = None

    @property
    def address(self) -> str:
        """HOST:PORT, with the bound port."""
        host, port = self._listener.getsockname()[:2]
        return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'

    def serve(self, reactor: Reactor, long_work: LongWork, routes: Iterable[Route], polls: Polls) -> None:
        """Answer on the loop of the broker from now on."""
        self._polls = polls
        table = Routes(routes, token=self._token, only_local_names=self._only_local_names, only_programs=True,
                       refuse=refusal)
        self._server = HttpServer(reactor, long_work, self._listener, table, purpose=PURPOSE)
        reactor.at_tick_end.append(polls.end_tick)

    def ledger(self) -> list[Line]:
        """Return the lines of the ledger about connections and polls."""
        assert self._server is not None
        return [*self._server.ledger(), Line('polls of the control port', '', lambda: len(self._polls),
                                             lambda: MOST_POLLS, 'the oldest gives way')]

    def close(self) -> None:
        """Close the address and all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._polls.close()
        self._listener.close()
