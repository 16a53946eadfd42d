"""The HTTP server: one address, and its connections."""
from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.base.lean_dataclasses import dataclass
from kbroker.base.ledger import Line
from kbroker.http.connection import HttpConnection

if TYPE_CHECKING:
    import ssl

    from kbroker.base.long_work import LongWork
    from kbroker.http.routes import Routes
    from kbroker.network.reactor import EventHandler, Reactor

BACKLOG = 512
MOST_CONNECTIONS = 64
"""The most open connections of most servers. Further clients wait in the backlog."""
ACCEPTED_PER_TICK = 4
SWEEP_MS = 1000
LONGEST_IDLE_MS = 120_000
LONGEST_WAIT_MS = 20_000
"""The milliseconds that the broker waits for the client in one exchange, in sum: for its request and its reading."""
GIVES_WAY_MS = 1000
"""While others wait in the backlog, a client for which the broker has waited for so long gives its place away."""

logger = logging.getLogger('kbroker.http')


@dataclass(frozen=True)
class Purpose:
    """The name of an address in messages and in the ledger, and the most open connections to it."""

    name: str
    most_connections: int = MOST_CONNECTIONS


METRICS = Purpose('metrics')


def listen(host: str, port: int, purpose: Purpose = METRICS) -> socket.socket:
    """Return a listening socket. An empty host means every interface.

    Raise OSError, which names address, purpose and remedy, if the address is not available.
    """
    host = host or ('::' if socket.has_dualstack_ipv6() else '0.0.0.0')
    where = f'[{host}]:{port}' if ':' in host else f'{host}:{port}'
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else 'the name of the host is not valid'
        raise OSError(errno.EINVAL, f'cannot listen on {where} for {purpose.name}: {reason}') from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        from kbroker.network.listen_errors import remedy  # needed only after an error

        listener.close()
        raise OSError(error.errno, f'cannot listen on {where} for {purpose.name}: {error.strerror}'
                      f'{remedy(error, address)}') from None
    listener.setblocking(False)
    return listener


class HttpServer:
    """Serves `routes` on a listening socket. Its owner closes the socket.

    `context()` returns the TLS context of a new connection; without it, connections are plain.
    """

    def __init__(self, reactor: Reactor, long_work: LongWork, listener: socket.socket, routes: Routes,
                 context: Callable[[], ssl.SSLContext] | None = None,
                 purpose: Purpose = METRICS):
        self._reactor = reactor
        self._long_work = long_work
        self._listener = listener
        self._routes = routes
        self._context = context
        self._purpose = purpose
        self._connections: set[HttpConnection] = set()
        self._is_full = False
        self._handler: EventHandler = reactor.watch(listener.fileno(), self._accept)
        self._stop_sweeping = reactor.machine_timers.every(SWEEP_MS, self._sweep)

    def ledger(self) -> list[Line]:
        """Return the line of the ledger about connections."""
        return [Line(f'connections for {self._purpose.name}', '', lambda: len(self._connections),
                     lambda: self._purpose.most_connections, 'others wait in the backlog')]

    def close(self) -> None:
        """Accept no more connections, and close those that are open."""
        self._stop_sweeping()
        self._reactor.unregister(self._handler)
        for connection in list(self._connections):
            connection.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_PER_TICK):
            if len(self._connections) >= self._purpose.most_connections:
                self._is_full = True
                self._reactor.pause(self._handler)
                self._sweep()
                return
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:     # the peer has gone, or no descriptor is free: the next sweep lets it try again
                self._is_full = True
                self._reactor.pause(self._handler)
                return
            accepted.setblocking(False)
            try:
                connection_type = HttpConnection
                if self._context is not None:
                    from kbroker.http.tls import TlsConnection as connection_type  # slow to import, not always used

                    accepted = self._context().wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = connection_type(self._reactor, self._long_work, accepted, self._routes, self._forget)
            except OSError:
                accepted.close()
                continue
            self._connections.add(connection)

    def _forget(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        self._resume()

    def _resume(self) -> None:
        if self._is_full:
            self._is_full = False
            self._reactor.resume(self._handler)

    def _sweep(self) -> None:
        """Close the connections whose clients let the broker wait for too long."""
        longest_idle_ms, longest_wait_ms = (
            (GIVES_WAY_MS, GIVES_WAY_MS) if self._is_full else (LONGEST_IDLE_MS, LONGEST_WAIT_MS))
        for connection in list(self._connections):
            longest_ms = longest_idle_ms if connection.is_idle else longest_wait_ms
            if connection.is_waiting() and connection.waited_ms() > longest_ms:
                connection.close()
        self._resume()
