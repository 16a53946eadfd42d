"""Connections that cannot send requests yet, because their TLS handshake or their login is in progress."""
from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Protocol

from kbroker.base.clock import Clock, Timers
from kbroker.base.ledger import Line

MAX_HANDSHAKES = 1000
"""The most handshakes in progress. Each takes 46 KB of memory, measured with TLS 1.3 and OpenSSL 3.0."""
MAX_LOGINS = 5000
"""The most connections whose client has not finished its login. A login takes a few round trips."""
LOGIN_LIMIT_MS = 30_000
LATE_AT_ONCE = 64
"""The most connections to close in one turn because their login took too long.

Closing one takes about 20 microseconds.
"""


class Newcomer(Protocol):
    """A connection that cannot send requests yet."""

    def close(self, reason: str, level: int) -> None:
        """Close the connection immediately, log the reason, and call `Newcomers.forget`."""


class Newcomers:
    """The handshakes and logins in progress among at most `max_connections` connections.

    If there are too many handshakes or logins, the oldest of them is closed. A login that takes more than
    LOGIN_LIMIT_MS is closed, too.
    """

    def __init__(self, clock: Clock, timers: Timers, max_connections: int):
        self.max_logins = max(1, min(MAX_LOGINS, max_connections // 2))
        """The most logins in progress. At least half of all connections remain for clients that have logged in."""
        self._clock = clock
        self._timers = timers
        self._handshakes: OrderedDict[Newcomer, None] = OrderedDict()
        self._logins: OrderedDict[Newcomer, int] = OrderedDict()
        """Maps each connection without a login to its deadline in monotonic milliseconds.

        The oldest connection is first.
        """
        self._awaits_late = False
        """`_close_late` is scheduled."""

    def ledger(self) -> list[Line]:
        return [
            Line('TLS handshakes', '', lambda: self.handshakes, lambda: MAX_HANDSHAKES, 'the oldest gives way'),
            Line('logins in progress', '', lambda: self.logins, lambda: self.max_logins, 'the oldest gives way')]

    @property
    def handshakes(self) -> int:
        """The number of handshakes in progress."""
        return len(self._handshakes)

    @property
    def logins(self) -> int:
        """The number of logins in progress."""
        return len(self._logins)

    def add_handshake(self, connection: Newcomer) -> None:
        """Add a connection that received bytes of its handshake."""
        self._handshakes[connection] = None
        if len(self._handshakes) > MAX_HANDSHAKES:
            next(iter(self._handshakes)).close(
                f'its handshake is the oldest of {MAX_HANDSHAKES} that are not done', logging.DEBUG)

    def end_handshake(self, connection: Newcomer) -> None:
        self._handshakes.pop(connection, None)

    def add_login(self, connection: Newcomer) -> None:
        """Add a connection whose client has to log in, and limit the time until `end_login`."""
        if not self._awaits_late:
            self._awaits_late = True
            self._timers.after(LOGIN_LIMIT_MS, self._close_late)
        self._logins[connection] = self._clock.monotonic_ms() + LOGIN_LIMIT_MS
        if len(self._logins) > self.max_logins:
            next(iter(self._logins)).close(
                f'its login is the oldest of {self.max_logins} that are not done', logging.DEBUG)

    def end_login(self, connection: Newcomer) -> None:
        self._logins.pop(connection, None)

    def forget(self, connection: Newcomer) -> None:
        """Remove a connection that has closed."""
        self.end_handshake(connection)
        self.end_login(connection)

    def _close_late(self) -> None:
        """Close the connections whose login took too long, a few at a time."""
        now_ms, closed = self._clock.monotonic_ms(), 0
        self._awaits_late = False
        while self._logins:
            connection, late_ms = next(iter(self._logins.items()))
            if late_ms > now_ms or closed == LATE_AT_ONCE:
                self._awaits_late = True
                self._timers.after(max(0, late_ms - now_ms), self._close_late)
                break
            connection.close(f'its login took more than {LOGIN_LIMIT_MS} ms', logging.DEBUG)
            closed += 1
