"""The two connections of a client: its own to the proxy, and the proxy's to the broker."""
from __future__ import annotations

import itertools
import socket
import ssl
from collections import deque

from kbroker.base.errors import ProtocolError
from kbroker_tools.proxy.exchanges import Exchange

RECEIVE_BYTES = 256 * 1024
MOST_QUEUED_BYTES = 8 << 20
MOST_QUEUED_REQUESTS = 1000
LARGEST_REQUEST_BYTES = 256 << 20
"""The largest request that passes. A broker takes 100 MiB, unless its socket.request.max.bytes is larger."""
LARGEST_ANSWER_BYTES = 1 << 30

WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


numbers = itertools.count(1)


class Link:
    """The connection of a client, and the connection to the broker to which its requests are forwarded."""

    def __init__(self, client: socket.socket, broker: socket.socket, node: int | None = None):
        self.id = next(numbers)
        self.client: socket.socket | None = client
        self.broker = broker
        self.node = node
        """The virtual broker to which the client has connected, or None if there are none."""
        self.host = client.getsockname()[0]
        """The address by which the client reaches the proxy."""
        self.received = {client: bytearray(), broker: bytearray()}
        self.unsent: dict[socket.socket, bytearray] = {client: bytearray(), broker: bytearray()}
        self.last_due = {client: 0.0, broker: 0.0}
        """For each of the two connections: the time at which the last delayed frame will be sent. A delay does not
        change the order of the frames."""
        self.arrived: deque[Exchange] = deque()
        """The requests that have arrived, and are not forwarded yet. The first one may be held."""
        self.arrived_bytes = 0
        self.awaited: deque[Exchange] = deque()
        """The requests that were forwarded or answered by the proxy, and whose answers have not left yet."""
        self.is_held = False
        """True while the first request of `arrived` waits at its point."""
        self.holds_reply = False
        """True while the first answer of `awaited` waits at its point."""
        self.events: dict[socket.socket, int] = {}
        """The events for which the selector watches each of the two connections."""
        self.muted: str | None = None
        self.is_to_be_cut = False
        self.is_closed = False

    def ends(self) -> list[socket.socket]:
        return [end for end in (self.client, self.broker) if end is not None]

    def other(self, end: socket.socket) -> socket.socket | None:
        return self.broker if end is self.client else self.client

    def is_full(self, end: socket.socket) -> bool:
        """Return whether no more input of an end can be taken: its peer is slow, or a request or an answer is held."""
        other = self.other(end)
        if other is not None and len(self.unsent[other]) >= MOST_QUEUED_BYTES:
            return True
        if end is self.broker:
            return self.holds_reply
        return (self.arrived_bytes >= MOST_QUEUED_BYTES
                or len(self.arrived) + len(self.awaited) >= MOST_QUEUED_REQUESTS)

    def take_frames(self, end: socket.socket) -> list[bytes]:
        """Return the complete frames that have arrived from an end. Raise ProtocolError for a size that no frame has.
        """
        most = LARGEST_REQUEST_BYTES if end is self.client else LARGEST_ANSWER_BYTES
        received, frames, at = self.received[end], [], 0
        while len(received) - at >= 4:
            size = 4 + int.from_bytes(received[at:at + 4])
            if size > most:
                raise ProtocolError(f'found a frame of {size} bytes, expected at most {most}')
            if len(received) - at < size:
                break
            frames.append(bytes(memoryview(received)[at:at + size]))
            at += size
        del received[:at]
        return frames


def receive(end: socket.socket) -> bytes | None:
    """Return bytes that have arrived, b'' at the end of the connection, or None if there are none.

    A TLS socket may keep decrypted bytes, which no selector sees. They are returned, too.
    """
    try:
        data = end.recv(RECEIVE_BYTES)
    except WOULD_BLOCK:
        return None
    if isinstance(end, ssl.SSLSocket) and data:
        parts = [data]
        while pending := end.pending():
            parts.append(end.recv(pending))
        return b''.join(parts)
    return data
