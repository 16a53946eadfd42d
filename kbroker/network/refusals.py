"""The log of connections that the broker closes before their first request: failed TLS handshakes, and bytes that are
no request.

Each line names the address of the peer, the listener and the reason. Equal ones, which differ only in the port of the
peer, are counted for 10 seconds: clients connect again and again.
"""
from __future__ import annotations

import logging
from typing import NamedTuple, Protocol

from kbroker.base.clock import Timers
from kbroker.base.repeats import WINDOW_MS, Repeats

MOST_REFUSALS = 200
"""The most different refusals that are counted at one time. Above it, all refusals of a listener are counted together.
"""
REFUSAL_BYTES = 1000
"""The bytes of memory of a counted refusal. Its reason is a text of the broker, and short."""
OTHERS, VARIOUS = 'other addresses', 'for various reasons'

logger = logging.getLogger('kbroker.network')


class Refused(Protocol):
    """A connection that is being closed."""

    connection_id: int
    client_host: str
    client_port: int
    listener_name: str


class Refusal(NamedTuple):
    level: int
    host: str
    listener: str
    reason: str


class Refusals:
    """The refused connections of a server."""

    def __init__(self, timers: Timers):
        self._repeats: Repeats[Refusal] = Repeats(timers, _report, MOST_REFUSALS, MOST_REFUSALS * REFUSAL_BYTES)

    def note(self, connection: Refused, level: int, reason: str) -> None:
        """Log why a connection is closed, or count it if the last equal line is not old."""
        refusal = Refusal(level, connection.client_host, connection.listener_name, reason)
        if self._repeats.count(refusal):
            return
        if not self._repeats.has_room(REFUSAL_BYTES):
            refusal = refusal._replace(host=OTHERS, reason=VARIOUS)
            if self._repeats.count(refusal):
                return
        logger.log(level, 'connection %d of %s:%d closed by listener %s: %s', connection.connection_id,
                   connection.client_host, connection.client_port, connection.listener_name, reason)
        self._repeats.begin(refusal, refusal, REFUSAL_BYTES)


def _report(refusal: Refusal, repeated: int) -> None:
    logger.log(refusal.level, '%d more connections of %s closed by listener %s within %d s: %s', repeated, refusal.host,
               refusal.listener, WINDOW_MS // 1000, refusal.reason)
