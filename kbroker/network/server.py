"""Listeners, and the connections that they have accepted."""
from __future__ import annotations

import errno
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from kbroker.base.clock import Timer
from kbroker.base.lean_dataclasses import dataclass
from kbroker.base.ledger import Line
from kbroker.network.admission import Admission
from kbroker.network.connection import Commons, Connection
from kbroker.network.limits import Limits, SocketOptions
from kbroker.network.reactor import EventHandler, Reactor
from kbroker.network.transport import Transport
from kbroker.network.worker import Submit
from kbroker.security.quotas import ClientQuotas
from kbroker.wire.frames import FrameServer

ACCEPTS_PER_TICK = 64
ACCEPT_NS = 500_000
"""The nanoseconds after which a tick accepts no further connections. Later clients wait in the backlog."""
DEFAULT_OPTIONS = SocketOptions()
OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
MOST_HELD = 1000
"""The most connections to hold because their addresses exceed a quota. Further ones are closed immediately."""
ACCEPT_PAUSE_MS = 1000
"""The milliseconds for which all listeners pause when the process has no free file descriptor.

They continue earlier if a connection closes.
"""

logger = logging.getLogger('kbroker.network')


class Endpoint(NamedTuple):
    """An address to listen on, and its transport.

    An empty host means every address of the machine. Port 0 means any free port.
    """

    host: str
    port: int
    name: str = ''
    make_transport: Callable[[int], Transport] = Transport


@dataclass(frozen=True)
class Hooks:
    """The functions that the server calls. `Commons` documents `on_close` and `submit`."""

    open_session: Callable[[Connection], Any] | None = None
    """Return the session of a new connection."""
    on_close: Callable[[Connection], Any] | None = None
    submit: Submit | None = None
    make_room: Callable[[], Any] = lambda: 0
    """Close files that can be opened again later, because no descriptor is free. Return whether a file was closed."""


NO_HOOKS = Hooks()


class Server:
    """Listens on `endpoints` and passes the frames of all accepted connections to `frame_server`.

    `addresses` returns the bound ports.
    """

    def __init__(self, reactor: Reactor, endpoints: Iterable[Endpoint], frame_server: FrameServer, limits: Limits,
                 options: SocketOptions = DEFAULT_OPTIONS, *, hooks: Hooks = NO_HOOKS,
                 quotas: ClientQuotas | None = None):
        """Start to listen on the endpoints. Raise OSError, which names the address, if an address is not available."""
        self.connections: dict[int, Connection] = {}
        self.refusals: Counter[str] = Counter()
        """The refused connections by reason: the limit of the broker, listener or address, or the quota of an address.
        """
        self._reactor = reactor
        self._backlog = options.backlog
        sizes = {socket.SO_SNDBUF: options.send_buffer_bytes, socket.SO_RCVBUF: options.receive_buffer_bytes}
        self._buffer_options = [(option, size) for option, size in sizes.items() if size >= 0]
        self.admission = Admission(limits, reactor.clock, quotas)
        self.held: dict[socket.socket, Timer] = {}
        """Maps each connection that exceeds the quota of its address to the timer that closes it."""
        self._paused: dict[socket.socket, Timer] = {}
        """Maps each listener that pauses, because its clients connect too fast, to the timer that ends the pause."""
        self._hooks = hooks
        self._listeners: list[tuple[socket.socket, EventHandler]] = []
        self._accept_pause: Timer | None = None
        self._full = False
        self._starved = False
        self._drained: Callable[[], None] | None = None
        self.traffic = Commons(reactor, frame_server, limits, self._forget, hooks.submit)
        try:
            for endpoint in endpoints:
                self._listen(endpoint)
        except OSError:
            self.close()
            raise
        self._stop_sweeping: Callable[[], None] | None = None
        if limits.max_idle_ms >= 0:
            self._stop_sweeping = reactor.timers.every(Commons.sweep_interval_ms(limits.max_idle_ms), self._sweep)

    def ledger(self) -> list[Line]:
        return [
            Line('connections', '', lambda: len(self.connections), lambda: self.max_connections, 'max.connections'),
            *self.traffic.newcomers.ledger(), *self.traffic.memory.ledger(),
            Line('connections held for a quota', '', lambda: len(self.held), lambda: MOST_HELD,
                 'more are closed at once')]

    def limit(self, max_connections: int, max_connections_per_ip: int) -> None:
        """Change the limits on open connections. Connections that are already open are not closed."""
        self.admission.limits = self.admission.limits._replace(
            max_connections=max_connections, max_connections_per_ip=max_connections_per_ip)

    @property
    def accepted(self) -> int:
        """The number of connections accepted since the start."""
        return self.admission.accepted.total()

    @property
    def refused(self) -> int:
        return self.refusals.total()

    @property
    def max_connections(self) -> int:
        """The most connections that the server admits."""
        return self.admission.limits.max_connections

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The bound addresses, with the assigned port of each listener whose port was 0."""
        return [listener.getsockname()[:2] for listener, _ in self._listeners]

    def close(self) -> None:
        """Accept no more connections. Open connections stay open."""
        for listener, handler in self._listeners:
            self._reactor.unregister(handler)
            listener.close()
        self._listeners.clear()
        for accepted, timer in self.held.items():
            timer.cancel()
            accepted.close()
        for timer in self._paused.values():
            timer.cancel()
        self.held.clear()
        self._paused.clear()
        if self._accept_pause is not None:
            self._accept_pause.cancel()
            self._accept_pause = None

    def drain(self, deadline_ms: int, done: Callable[[], None]) -> None:
        """Accept no more connections, serve no more frames, and answer the requests in flight.

        Call `done()` when all connections are closed. Connections that are still open after `deadline_ms` are closed,
        even if their requests are not answered.
        """
        self.close()
        if self._stop_sweeping is not None:
            self._stop_sweeping()
        deadline = self._reactor.machine_timers.after(deadline_ms, self._close_all)

        def drained() -> None:
            deadline.cancel()
            done()

        self._drained = drained
        for connection in list(self.connections.values()):
            connection.close_after_flush()
        self._check_drained()

    def _close_all(self) -> None:
        for connection in list(self.connections.values()):
            connection.close('the broker shuts down', logging.INFO)

    def _check_drained(self) -> None:
        if self._drained is not None and not self.connections:
            drained, self._drained = self._drained, None
            drained()

    def _sweep(self) -> None:
        self.traffic.sweep(self.connections.values())

    def _listen(self, endpoint: Endpoint) -> None:
        port = endpoint.port
        host = endpoint.host or ('::' if socket.has_dualstack_ipv6() else '0.0.0.0')
        where = f'[{host}]:{port}' if ':' in host else f'{host}:{port}'
        try:
            name = host.encode() if host.isascii() else host  # a str loads the codec of international names
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except socket.gaierror as error:
            raise OSError(error.errno, f'cannot listen on {where}: {error.strerror}') from None
        except UnicodeError:
            raise OSError(errno.EINVAL, f'cannot listen on {where}: the name of the host is not valid') from None
        family, kind, protocol, _, address = found[0]
        listener = None
        try:
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            for option, size in self._buffer_options:
                listener.setsockopt(socket.SOL_SOCKET, option, size)  # accepted sockets inherit the sizes
            listener.listen(self._backlog)
            listener.setblocking(False)
            handler = self._reactor.watch(listener.fileno(), lambda: self._accept(listener, endpoint))
        except OSError as error:
            from kbroker.network.listen_errors import remedy  # needed only after an error

            if listener is not None:
                listener.close()
            raise OSError(error.errno, f'cannot listen on {where}: {error.strerror}{remedy(error, address)}') from None
        self._listeners.append((listener, handler))

    def _accept(self, listener: socket.socket, endpoint: Endpoint) -> None:
        end_ns = time.monotonic_ns() + ACCEPT_NS
        for _ in range(ACCEPTS_PER_TICK):
            try:
                accepted, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    if self._hooks.make_room():
                        continue
                    self._pause_accepting(error)
                    return
                continue  # this peer was gone before it was accepted
            self._admit(accepted, address, endpoint)
            if self._slow_down(listener, endpoint.name) or time.monotonic_ns() >= end_ns:
                return

    def _admit(self, accepted: socket.socket, address: tuple[str, int], endpoint: Endpoint) -> None:
        self._starved = False
        host, port = address[0].removeprefix('::ffff:'), address[1]
        refusal = self.admission.refusal(host, endpoint.name)
        if refusal is not None:
            accepted.close()
            self.refusals[refusal[0]] += 1
            if not self._full:
                self._full = True
                logger.warning('refusing connections, first of %s: %s', host, refusal[1])
            return
        hold_ms = self.admission.hold_ms(host)
        if hold_ms:
            self.refusals['quota'] += 1
            self._hold(accepted, hold_ms)
            return
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A peer that vanishes while it waits for a reply sends nothing. Only keepalive detects this.
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection = Connection(self.traffic, accepted.detach(), host, port, endpoint.name,
                                    endpoint.make_transport)
        except OSError as error:
            accepted.close()
            logger.warning('connection of %s:%d not served: %s', host, port, error)
            return
        self.connections[connection.connection_id] = connection
        self.admission.enter(host, endpoint.name)
        if self._hooks.open_session is not None:
            connection.session = self._hooks.open_session(connection)

    def _hold(self, accepted: socket.socket, hold_ms: int) -> None:
        """Keep a refused connection open and silent for `hold_ms`, then close it.

        A client connects again later after this than after an immediate close.
        """
        if len(self.held) >= MOST_HELD:
            accepted.close()
            return

        def release() -> None:
            del self.held[accepted]
            accepted.close()

        self.held[accepted] = self._reactor.timers.after(hold_ms, release)

    def _slow_down(self, listener: socket.socket, name: str) -> bool:
        """Pause this listener, or all of them, if clients connect too fast. Return whether this listener is paused."""
        own_ms, all_ms = self.admission.pauses(name)
        for paused, handler in self._listeners:
            pause_ms = max(all_ms, own_ms) if paused is listener else all_ms
            if pause_ms and paused not in self._paused:
                self._reactor.pause(handler)
                self._paused[paused] = self._reactor.timers.after(pause_ms, partial(self._resume, paused, handler))
        return listener in self._paused

    def _resume(self, listener: socket.socket, handler: EventHandler) -> None:
        del self._paused[listener]
        if self._accept_pause is None:
            self._reactor.resume(handler)

    def _pause_accepting(self, error: OSError) -> None:
        if self._accept_pause is not None:
            return
        if not self._starved:
            self._starved = True
            logger.error('not accepting connections: %s (%d are open)', error.strerror, len(self.connections))
        for _, handler in self._listeners:
            self._reactor.pause(handler)
        self._accept_pause = self._reactor.machine_timers.after(ACCEPT_PAUSE_MS, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._accept_pause is None:
            return
        self._accept_pause.cancel()
        self._accept_pause = None
        for listener, handler in self._listeners:
            if listener not in self._paused:
                self._reactor.resume(handler)

    def _forget(self, connection: Connection) -> None:
        del self.connections[connection.connection_id]
        self.admission.leave(connection.client_host, connection.listener_name)
        self._full = False
        self._resume_accepting()
        if self._hooks.on_close is not None:
            self._hooks.on_close(connection)
        self._check_drained()
