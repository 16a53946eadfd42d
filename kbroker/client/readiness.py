"""The wait for sockets: for answers, and for room to send the rest of a request.

It uses `poll`, which accepts any descriptor, while `select` ends at descriptor 1,023.
"""
from __future__ import annotations

import select
from collections.abc import Iterable
from typing import NamedTuple

from kbroker.client.connection import Connection
from kbroker.client.errors import ClientError


class Ready(NamedTuple):
    readable: set[Connection]
    """The connections on which `receive` finds the beginning of an answer, or a failure."""
    is_woken: bool
    """True if the descriptor `wake_on` can be read."""


def await_ready(connections: Iterable[Connection], timeout_ms: float | None, wake_on: int | None = None) -> Ready:
    """Wait at most `timeout_ms` until a connection or `wake_on` is readable. None means without a limit.

    During the wait, send the rests of requests as sockets get room. A connection that fails in this counts as readable.
    """
    poller = select.poll()
    watched: dict[int, Connection] = {}
    for connection in connections:
        watched[connection.fileno()] = connection
        poller.register(connection.fileno(), select.POLLIN | (select.POLLOUT if connection.has_unsent else 0))
    if wake_on is not None:
        poller.register(wake_on, select.POLLIN)
    readable, is_woken = set(), False
    for descriptor, events in poller.poll(timeout_ms):
        if descriptor not in watched:
            is_woken = True
            continue
        found = watched[descriptor]
        if events & ~select.POLLOUT:
            readable.add(found)
        if events & select.POLLOUT:
            try:
                found.push()
            except ClientError:
                readable.add(found)
    return Ready(readable, is_woken)
