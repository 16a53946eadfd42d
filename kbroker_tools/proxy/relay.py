"""A proxy between clients and brokers. It disturbs the network by delays, broken and half-open connections, and
requests that are held back.

One thread serves all connections: its own, or that of a loop. Other threads cause faults by commands to this thread.
Only delays need no command: they last as long as `delay_s` is set. When a request is held back, the connection to its
client is closed, but the connection to the broker stays open. When the request is released, it arrives at the broker
over this connection. The client may then be in a later transaction.

A connection to a broker is opened in a thread of its own, because a TLS handshake and a login may take long.
"""
from __future__ import annotations

import errno
import heapq
import itertools
import queue
import random
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from kbroker.base.errors import KafkaError, ProtocolError
from kbroker.protocol.codec import EncodeError
from kbroker_tools.proxy.dialing import Address, Dial, plain_dialer
from kbroker_tools.proxy.exchanges import Exchange
from kbroker_tools.proxy.links import WOULD_BLOCK, Link, receive

CONNECT_S = 5
HANDSHAKE_S = 10
MOST_LINKS = 2000
PORTS_TO_TRY = 100
MUTE_REQUESTS, MUTE_ANSWERS = 'requests', 'answers'


@dataclass(frozen=True)
class Front:
    """The side of the clients: the address at which the proxy listens, and its TLS."""

    host: str = '127.0.0.1'
    port: int = 0
    """The port of the first address; 0 for a free one. Further brokers get the next ports."""
    tls: ssl.SSLContext | None = None

    @property
    def is_wildcard(self) -> bool:
        return self.host in ('', '0.0.0.0', '::')


class Handler(Protocol):
    """Decides about requests and answers, in the thread of the proxy."""

    def begin(self, link: Link, exchange: Exchange) -> bool:
        """Return True if the request waits, or goes no further. `resume` or `close` is called later."""

    def forward(self, link: Link, exchange: Exchange) -> None:
        """Change a request before it is forwarded, or answer it."""

    def reply(self, link: Link, exchange: Exchange) -> bool:
        """Return True if the answer waits, or does not leave."""

    def forget(self, link: Link) -> None:
        """Forget what waits on a link that was closed."""


@dataclass(frozen=True)
class Listener:
    """A listening socket, and the broker behind it."""

    socket: socket.socket
    targets: tuple[Address, ...]
    """The addresses of the broker. The first one that accepts gets the connection."""
    node: int | None = None
    """The virtual broker, or None if there are none."""

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])


class Proxy:
    """A proxy. It has a port for each broker whose address appears in a response."""

    def __init__(self, brokers: Sequence[Address], rng: random.Random | None = None, *, front: Front | None = None,
                 dial: Dial | None = None, nodes: Sequence[int] = (), handler: Handler | None = None,
                 own_thread: bool = True):
        """Start the proxy. With `nodes`, it has a port for each of these virtual brokers instead. Without a thread of
        its own, a loop calls `turn` when `fileno` is readable.

        Raise OSError, which names the address, if a port is not available.
        """
        self.delay_s: tuple[float, float] | None = None
        """If not None, each frame is delayed by a random time between these two, in seconds."""
        self.counts = {'cut': 0, 'held': 0, 'released': 0, 'muted': 0}
        self.problem: BaseException | None = None
        self.unreachable: str | None = None
        """Why the last connection to a broker failed; None if it succeeded."""
        self.front = front or Front()
        self.handler = handler
        self._brokers = tuple(brokers)
        self._dial = dial or plain_dialer(CONNECT_S)
        self._rng = rng or random.Random()
        self._selector = selectors.DefaultSelector()
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        self._links: set[Link] = set()
        self._dialing: set[socket.socket] = set()
        self._routes: dict[Address, Listener] = {}
        self._node_ports: dict[int, int] = {}
        self._node_listeners: dict[int, Listener] = {}
        self._delayed: list[tuple[float, int, Link, socket.socket, bytes]] = []
        self._order = itertools.count()
        self._wanted: tuple[int, ...] = ()
        self._held: deque[tuple[Link, Exchange]] = deque()
        self._is_stopping = False
        try:
            self.address = self._listen_first(nodes)
        except OSError:
            self._close_all()
            raise
        self._thread: threading.Thread | None = None
        if own_thread:
            self._thread = threading.Thread(target=self._run, name='proxy', daemon=True)
            self._thread.start()

    # ---- methods that any thread may call

    def cut(self, share: float) -> None:
        """Close this share of the connections. A connection is closed in the middle of its next frame, but immediately
        if it is muted."""
        self.command(lambda: self._cut(share))

    def mute(self, direction: str, share: float) -> None:
        """Stop forwarding in one direction, for this share of the connections. The connections stay open until a
        cut."""
        self.command(lambda: self._mute(direction, share))

    def hold(self, *api_keys: int) -> None:
        """Hold back the next request that has one of these API keys."""
        self.command(lambda: setattr(self, '_wanted', api_keys))

    def release(self) -> None:
        """Send the requests that were held back to the broker, each over its original connection."""
        self.command(self._release)

    def close(self) -> None:
        """Close all connections and end the thread."""
        if self._thread is None:
            self._is_stopping = True
            self._close_all()
            return
        self.command(lambda: setattr(self, '_is_stopping', True))
        self._thread.join()

    def fileno(self) -> int:
        """Return a descriptor that is readable when `turn` has something to do."""
        return int(self._selector.fileno())

    def command(self, command: Callable[[], None]) -> None:
        """Call a function in the thread of the proxy."""
        self._commands.put(command)
        with suppress(OSError):
            self._wake_writer.send(b'.')

    # ---- listeners

    def _listen_first(self, nodes: Sequence[int]) -> str:
        """Open the first listeners. Return the address for clients."""
        port = self.front.port
        for node in nodes:
            listener = self._listen(port, self._brokers, node)
            self._node_listeners[node] = listener
            self._node_ports[node] = listener.port
            port = port and port + 1
        if not nodes:
            first = self._listen(port, self._brokers)
            self._routes |= dict.fromkeys(self._brokers[:1], first)
            return in_url(self.front.host, first.port)
        return in_url(self.front.host, self._node_ports[nodes[0]])

    def _listen(self, port: int, targets: tuple[Address, ...], node: int | None = None) -> Listener:
        host = self.front.host
        family = socket.AF_INET6 if ':' in host else socket.AF_INET
        try:
            found = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            raise OSError(error.errno, f'cannot listen on {in_url(host, port)}: {reason_of(error)}') from None
        found.setblocking(False)
        listener = Listener(found, targets, node)
        self._selector.register(found, selectors.EVENT_READ, listener)
        return listener

    def route(self, host: str, port: int) -> tuple[str, int]:
        """Return the address at which the proxy listens for a broker."""
        listener = self._routes.get((host, port))
        if listener is None:
            listener = self._routes[host, port] = self._listen_next(((host, port),))
        return self.front.host, listener.port

    def stand_for(self, addresses: Sequence[Address]) -> None:
        """Let the first listener stand for these addresses of the only broker. Call it before the first client."""
        first = self._routes[self._brokers[0]]
        self._routes |= dict.fromkeys(addresses, first)

    def _listen_next(self, targets: tuple[Address, ...]) -> Listener:
        """Listen on the next port that is free, or on any free one if the first port was chosen by the system."""
        if self.front.port:
            last = max([*(listener.port for listener in self._routes.values()), *self._node_ports.values()])
            for port in range(last + 1, min(last + PORTS_TO_TRY, 65536)):
                try:
                    return self._listen(port, targets)
                except OSError as error:
                    if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                        raise
        return self._listen(0, targets)

    # ---- virtual brokers, in the thread of the proxy

    def node_address(self, node: int, link: Link) -> tuple[str, int]:
        """Return the address of a virtual broker for a client."""
        return self.host_for(link), self._node_ports[node]

    def node_port(self, node: int) -> int:
        """Return the port of a virtual broker, also while it is stopped."""
        return self._node_ports[node]

    def host_for(self, link: Link) -> str:
        """Return the host by which a client reaches the proxy."""
        return link.host if self.front.is_wildcard else self.front.host

    def stop_node(self, node: int) -> None:
        """Close the listener and the connections of a virtual broker."""
        listener = self._node_listeners.pop(node, None)
        if listener is not None:
            self._selector.unregister(listener.socket)
            listener.socket.close()
        for link in [each for each in self._links if each.node == node]:
            self.close_link(link)

    def start_node(self, node: int) -> None:
        """Listen for a virtual broker again. Raise OSError if another program has taken its port."""
        if node not in self._node_listeners:
            self._node_listeners[node] = self._listen(self._node_ports[node], self._brokers, node)

    # ---- the loop

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self.turn(max(self._delayed[0][0] - time.monotonic(), 0) if self._delayed else None)
        except BaseException as error:
            self.problem = error
            raise
        finally:
            self._close_all()

    def turn(self, timeout_s: float | None = 0) -> None:
        """Serve the connections that are ready, at least after `timeout_s`."""
        for key, events in self._selector.select(timeout_s):
            end = key.fileobj
            assert isinstance(end, socket.socket)
            if key.data is None:
                self._run_commands()
            elif isinstance(key.data, Link):
                self._serve(key.data, end, events)
            else:
                self._accept(key.data)
        if self._delayed:
            self._send_due()

    def _run_commands(self) -> None:
        with suppress(BlockingIOError):
            self._wake_reader.recv(4096)
        while not self._commands.empty():
            self._commands.get()()

    def _close_all(self) -> None:
        for link in list(self._links):
            self.close_link(link)
        for client in self._dialing:
            client.close()
        ends = [key.fileobj for key in list(self._selector.get_map().values())]
        for end in (*ends, self._wake_reader, self._wake_writer):
            assert isinstance(end, socket.socket)
            end.close()
        self._selector.close()

    def _accept(self, listener: Listener) -> None:
        try:
            client, _ = listener.socket.accept()
        except OSError:
            return
        if len(self._links) + len(self._dialing) >= MOST_LINKS:
            client.close()
            return
        self._dialing.add(client)
        threading.Thread(target=self._connect, args=(client, listener), name='proxy-dial', daemon=True).start()

    def _connect(self, client: socket.socket, listener: Listener) -> None:
        """Do the TLS handshake with the client, and connect to the broker. It runs in a thread of its own."""
        accepted, broker = client, None
        try:
            if self.front.tls is not None:
                client.settimeout(HANDSHAKE_S)
                client = self.front.tls.wrap_socket(client, server_side=True)
        except OSError:     # the client does not trust the certificate, or speaks no TLS
            self.command(lambda: self._connected(accepted, None, None, listener))
            return
        try:
            broker = self._dial(listener.targets)
            self.unreachable = None
        except (OSError, KafkaError) as error:     # the broker is being started, or refuses
            self.unreachable = str(error)
        self.command(lambda: self._connected(accepted, client, broker, listener))

    def _connected(self, accepted: socket.socket, client: socket.socket | None, broker: socket.socket | None,
                   listener: Listener) -> None:
        self._dialing.discard(accepted)
        is_stopped = listener.node is not None and listener.node not in self._node_listeners
        if client is None or broker is None or is_stopped or self._is_stopping:
            for end in (accepted, client, broker):
                if end is not None:
                    end.close()
            return
        try:
            link = Link(client, broker, listener.node)
            for end in (client, broker):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:     # the client is gone
            client.close()
            broker.close()
            return
        self._links.add(link)
        for end in (client, broker):
            self._selector.register(end, selectors.EVENT_READ, link)
            link.events[end] = selectors.EVENT_READ
        for end in (client, broker):
            if isinstance(end, ssl.SSLSocket):      # bytes that came with the handshake are not seen by the selector
                self._serve(link, end, selectors.EVENT_READ)

    def _serve(self, link: Link, end: socket.socket, events: int) -> None:
        if link.is_closed or end not in link.received:
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._push(link, end)
            if events & selectors.EVENT_READ:
                self._receive(link, end)
        except (OSError, ProtocolError, EncodeError):
            self.close_link(link)

    def _receive(self, link: Link, end: socket.socket) -> None:
        data = receive(end)
        if data is None:
            return
        if not data:
            self.close_link(link)
            return
        link.received[end] += data
        for frame in link.take_frames(end):
            if end is link.broker:
                self._take_answer(link, frame)
            else:
                self._take_request(link, frame)
            if link.is_closed or end not in link.received:
                return
        self._listen_for(link)

    # ---- requests and answers

    def _take_request(self, link: Link, frame: bytes) -> None:
        exchange = Exchange(frame, link.node)
        if exchange.key in self._wanted:
            self._hold(link, exchange)
        elif link.muted != MUTE_REQUESTS:
            link.arrived.append(exchange)
            link.arrived_bytes += len(frame)
            self._advance(link)

    def _advance(self, link: Link) -> None:
        """Forward the requests that have arrived, up to one that waits."""
        while link.arrived and not link.is_held and not link.is_closed:
            exchange = link.arrived[0]
            if self.handler is not None and self.handler.begin(link, exchange):
                link.is_held = not link.is_closed
                return
            self._forward(link, exchange)

    def resume(self, link: Link, exchange: Exchange) -> None:
        """Let a request go on that `begin` has let wait. If it has an answer, the broker does not get it."""
        if link.is_closed or not link.is_held or link.arrived[0] is not exchange:
            return
        link.is_held = False
        self._guarded(link, lambda: self._forward(link, exchange))
        self._guarded(link, lambda: self._advance(link))
        if not link.is_closed:
            self._listen_for(link)

    def _forward(self, link: Link, exchange: Exchange) -> None:
        link.arrived.popleft()
        link.arrived_bytes -= len(exchange.frame)
        if self.handler is not None and exchange.answer is None:
            self.handler.forward(link, exchange)
            if link.is_closed:
                return
        if exchange.answer is not None:
            link.awaited.append(exchange)
            self._deliver(link)
            return
        if not exchange.has_no_answer:
            link.awaited.append(exchange)
        self._queue(link, link.broker, exchange.frame)
        exchange.forget_request()

    def _take_answer(self, link: Link, frame: bytes) -> None:
        """Take the answer to the oldest request that the broker has."""
        for exchange in link.awaited:
            if exchange.answer is None and exchange.correlation_id == frame[4:8]:
                break
        else:       # the answer to a request that was held back, or to raw tokens of SASL
            if link.client is not None and link.muted != MUTE_ANSWERS:
                self._queue(link, link.client, frame)
            return
        while link.awaited[0] is not exchange and link.awaited[0].answer is None:
            link.awaited.popleft()
        exchange.take_answer(frame, lambda host, port: (self.host_for(link), self.route(host, port)[1]))
        self._deliver(link)

    def _deliver(self, link: Link) -> None:
        """Send the answers that are there, in the order of the requests, up to one that waits."""
        while link.awaited and not link.holds_reply and not link.is_closed:
            exchange = link.awaited[0]
            if exchange.answer is None:
                return
            if self.handler is not None and self.handler.reply(link, exchange):
                link.holds_reply = not link.is_closed
                return
            self._send_answer(link, exchange)

    def resume_reply(self, link: Link, exchange: Exchange) -> None:
        """Let an answer leave that `reply` has let wait."""
        if link.is_closed or not link.holds_reply or link.awaited[0] is not exchange:
            return
        link.holds_reply = False
        self._guarded(link, lambda: self._send_answer(link, exchange))
        self._guarded(link, lambda: self._deliver(link))
        if not link.is_closed:
            self._listen_for(link)

    def _send_answer(self, link: Link, exchange: Exchange) -> None:
        link.awaited.popleft()
        assert exchange.answer is not None
        if link.client is not None and link.muted != MUTE_ANSWERS:
            self._queue(link, link.client, exchange.answer)

    def _guarded(self, link: Link, action: Callable[[], None]) -> None:
        """Do something with a link. Close it if this fails."""
        if link.is_closed:
            return
        try:
            action()
        except (OSError, ProtocolError, EncodeError):
            self.close_link(link)

    # ---- sending

    def _queue(self, link: Link, end: socket.socket, frame: bytes) -> None:
        """Send a frame, after the delay if there is one."""
        due, delay = link.last_due[end], self.delay_s
        now = time.monotonic() if due or delay else 0.0
        if delay is not None:
            due = link.last_due[end] = max(due, now + self._rng.uniform(*delay))
        if due > now:
            heapq.heappush(self._delayed, (due, next(self._order), link, end, frame))
        else:
            self._send(link, end, frame)

    def _send(self, link: Link, end: socket.socket, frame: bytes) -> None:
        if not link.is_to_be_cut:
            link.unsent[end] += frame
            self._push(link, end)
            return
        self.counts['cut'] += 1
        link.unsent[end] += frame[:self._rng.randint(0, len(frame))]
        with suppress(OSError):
            self._push(link, end)
        self.close_link(link)

    def _send_due(self) -> None:
        now = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            _, _, link, end, frame = heapq.heappop(self._delayed)
            if not link.is_closed and end in link.unsent:
                try:
                    self._send(link, end, frame)
                except OSError:
                    self.close_link(link)

    def _push(self, link: Link, end: socket.socket) -> None:
        unsent = link.unsent[end]
        if unsent:
            with suppress(*WOULD_BLOCK):
                del unsent[:end.send(unsent)]
        self._listen_for(link)

    def _listen_for(self, link: Link) -> None:
        """Set the events to wait for. A connection with unsent bytes waits for room. A connection waits for input
        unless no more can be taken."""
        for end in link.ends():
            events = selectors.EVENT_WRITE if link.unsent[end] else 0
            if not link.is_full(end):
                events |= selectors.EVENT_READ
            if link.events.get(end) != events:
                self._set_events(link, end, events)

    def _set_events(self, link: Link, end: socket.socket, events: int) -> None:
        known = link.events.get(end)
        link.events[end] = events
        if not events:
            self._selector.unregister(end)
        elif known == 0:
            self._selector.register(end, events, link)
        else:
            self._selector.modify(end, events, link)

    def close_link(self, link: Link) -> None:
        """Close both connections of a link."""
        if link.is_closed:
            return
        link.is_closed = True
        self._links.discard(link)
        for end in link.ends():
            self._forget(link, end)
            end.close()
        if self.handler is not None:
            self.handler.forget(link)

    def _forget(self, link: Link, end: socket.socket) -> None:
        if link.events.pop(end, 0):
            self._selector.unregister(end)

    # ---- faults of the network, in the thread of the proxy

    def _chosen(self, share: float) -> list[Link]:
        return [link for link in list(self._links) if link.client is not None and self._rng.random() < share]

    def _cut(self, share: float) -> None:
        for link in self._chosen(share):
            if link.muted is None:
                link.is_to_be_cut = True
            else:
                self.counts['cut'] += 1
                self.close_link(link)

    def _mute(self, direction: str, share: float) -> None:
        for link in self._chosen(share):
            self.counts['muted'] += 1
            link.muted = direction

    def _hold(self, link: Link, exchange: Exchange) -> None:
        """Keep a request, and close the connection of its client. The connection to the broker stays open."""
        self._wanted = ()
        self.counts['held'] += 1
        assert link.client is not None
        self._forget(link, link.client)
        link.client.close()
        del link.received[link.client], link.unsent[link.client], link.last_due[link.client]
        link.client = None
        self._held.append((link, exchange))

    def _release(self) -> None:
        while self._held:
            link, exchange = self._held.popleft()
            if not link.is_closed:
                self.counts['released'] += 1
                self._guarded(link, lambda: self._queue(link, link.broker, exchange.frame))  # noqa: B023


def in_url(host: str, port: int) -> str:
    """Return host and port as one text."""
    return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'


def reason_of(error: OSError) -> str:
    """Return why a port is not available, with a remedy."""
    if error.errno == errno.EADDRINUSE:
        return 'another program uses the port: choose another one, or 0 for a free one'
    if error.errno == errno.EACCES:
        return 'the port needs a right: choose one above 1023'
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return 'this machine does not have the address'
    return error.strerror or str(error)
