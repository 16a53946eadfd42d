"""A client with one connection to a broker process, which sends frames unchanged and reads the replies."""
from __future__ import annotations

import select
import socket
from types import TracebackType
from typing import Any

from support.brokers.in_process_broker import frame_of, read_answer

PEER_LIMIT_S = 120


def read_exactly(end: socket.socket, size: int) -> bytes:
    """Read `size` bytes. Raise ConnectionResetError if the connection ends before they have arrived."""
    found = bytearray()
    while len(found) < size:
        part = end.recv(min(size - len(found), 1 << 20))
        if not part:
            raise ConnectionResetError(f'the connection was closed after {len(found)} of {size} bytes')
        found += part
    return bytes(found)


class RawClient:
    """A blocking connection."""

    def __init__(self, host: str, port: int, limit_s: float = PEER_LIMIT_S, source: str = ''):
        self.socket = socket.create_connection((host, port), limit_s, (source, 0) if source else None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def at(cls, address: str, limit_s: float = PEER_LIMIT_S) -> RawClient:
        """Connect to `address`, which is `host:port`."""
        host, _, port = address.rpartition(':')
        return cls(host, int(port), limit_s)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def ask(self, request: Any, version: int) -> Any:
        """Send a request and return the response."""
        return read_answer(request, version, self.exchange(frame_of(request, version)))

    def exchange(self, frame: bytes) -> bytes:
        """Send a frame and return the reply, both without their size prefix."""
        self.send(frame)
        return self.receive()

    def send(self, frame: bytes) -> None:
        self.socket.sendall(len(frame).to_bytes(4, 'big') + frame)

    def receive(self) -> bytes:
        """Return the next reply. Raise ConnectionError if the broker closes the connection."""
        return read_exactly(self.socket, int.from_bytes(read_exactly(self.socket, 4)))

    def has_data(self) -> bool:
        """Return whether the broker has sent something, or closed the connection."""
        ready = select.poll()  # unlike `select.select`, it takes descriptors above 1,023
        ready.register(self.socket, select.POLLIN)
        return bool(ready.poll(0))

    def is_cut_off(self) -> bool:
        """Wait until the broker closes the connection or replies. Return whether it closed the connection."""
        try:
            return self.socket.recv(1) == b''
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()
