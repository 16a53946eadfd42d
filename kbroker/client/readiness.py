"""Waits until sockets have answers, or room to send the remaining bytes of a request.

The wait uses `poll`, because `select` accepts only descriptors up to 1,023.
"""
from __future__ import annotations

import select
from collections.abc import Iterable
from typing import NamedTuple

from kbroker.client.connection import Connection
from kbroker.client.errors import ClientError


class Ready(NamedTuple):
    readable: set[Connection]
    """The connections with bytes to receive, or with a failure that `receive` raises."""
    is_woken: bool
    """True if the descriptor `wake_on` can be read."""


def await_ready(connections: Iterable[Connection], timeout_ms: float | None, wake_on: int | None = None) -> Ready:
    """Wait until a connection or `wake_on` is readable, for at most `timeout_ms`. None means no limit.

    During the wait, send the remaining bytes of requests when their sockets have room. A connection that fails while
    sending counts as readable.
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
