"""A proxy between clients and brokers. It disturbs the network by delays, broken and half-open connections, and
requests that are held back.

One thread serves all connections. Other threads cause faults by commands to this thread. Only delays need no command:
they last as long as `delay_s` is set. When a request is held back, the connection to its client is closed, but the
connection to the broker stays open. When the request is released, it arrives at the broker over this connection. The
client may then be in a later transaction.
"""
from __future__ import annotations

import heapq
import itertools
import queue
import random
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from kbroker.base.errors import ProtocolError
from kbroker_tools.proxy.addresses import rewritten

RECEIVE_BYTES = 256 * 1024
MOST_QUEUED_BYTES = 8 << 20
CONNECT_S = 5
SIZE_BYTES = 4
LEAST_REQUEST_BYTES = 8
MUTE_REQUESTS, MUTE_ANSWERS = 'requests', 'answers'


class Link:
    """The connection of a client, and the connection to the broker to which its requests are forwarded."""

    def __init__(self, client: socket.socket, broker: socket.socket):
        self.client: socket.socket | None = client
        self.broker = broker
        self.received = {client: bytearray(), broker: bytearray()}
        self.unsent: dict[socket.socket, bytearray] = {client: bytearray(), broker: bytearray()}
        self.last_due = {client: 0.0, broker: 0.0}
        """For each of the two connections: the time at which the last delayed frame will be sent. A delay does not
        change the order of the frames."""
        self.awaited: deque[tuple[bytes, int, int]] = deque()
        """(correlation id, API key, version) of each request that has no response yet."""
        self.muted: str | None = None
        self.is_to_be_cut = False
        self.is_closed = False

    def ends(self) -> list[socket.socket]:
        return [end for end in (self.client, self.broker) if end is not None]


class Proxy:
    """A proxy. It has a port on 127.0.0.1 for each broker whose address appears in a response."""

    def __init__(self, host: str, port: int, rng: random.Random):
        self.delay_s: tuple[float, float] | None = None
        """If not None, each frame is delayed by a random time between these two, in seconds."""
        self.counts = {'cut': 0, 'held': 0, 'released': 0, 'muted': 0}
        self.problem: BaseException | None = None
        self._rng = rng
        self._selector = selectors.DefaultSelector()
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        self._links: set[Link] = set()
        self._listeners: dict[tuple[str, int], socket.socket] = {}
        self._delayed: list[tuple[float, int, Link, socket.socket, bytes]] = []
        self._order = itertools.count()
        self._wanted: tuple[int, ...] = ()
        self._held: deque[tuple[Link, bytes]] = deque()
        self._is_stopping = False
        self.address = '{}:{}'.format(*self._route(host, port))
        self._thread = threading.Thread(target=self._run, name='proxy', daemon=True)
        self._thread.start()

    # ---- faults: methods that any thread may call

    def cut(self, share: float) -> None:
        """Close this share of the connections. A connection is closed in the middle of its next frame, but immediately
        if it is muted."""
        self._command(lambda: self._cut(share))

    def mute(self, direction: str, share: float) -> None:
        """Stop forwarding in one direction, for this share of the connections. The connections stay open until a
        cut."""
        self._command(lambda: self._mute(direction, share))

    def hold(self, *api_keys: int) -> None:
        """Hold back the next request that has one of these API keys."""
        self._command(lambda: setattr(self, '_wanted', api_keys))

    def release(self) -> None:
        """Send the requests that were held back to the broker, each over its original connection."""
        self._command(self._release)

    def close(self) -> None:
        """Close all connections and end the thread."""
        self._command(lambda: setattr(self, '_is_stopping', True))
        self._thread.join()

    def _command(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        with suppress(OSError):
            self._wake_writer.send(b'.')

    # ---- the loop

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                timeout = max(self._delayed[0][0] - time.monotonic(), 0) if self._delayed else None
                for key, events in self._selector.select(timeout):
                    end = key.fileobj
                    assert isinstance(end, socket.socket)
                    if key.data is None:
                        self._run_commands()
                    elif isinstance(key.data, Link):
                        self._serve(key.data, end, events)
                    else:
                        self._accept(end, key.data)
                self._send_due()
        except BaseException as error:
            self.problem = error
            raise
        finally:
            self._close_all()

    def _run_commands(self) -> None:
        with suppress(BlockingIOError):
            self._wake_reader.recv(4096)
        while not self._commands.empty():
            self._commands.get()()

    def _close_all(self) -> None:
        for link in list(self._links):
            self._close(link)
        for end in (*self._listeners.values(), self._wake_reader, self._wake_writer):
            end.close()
        self._selector.close()

    def _route(self, host: str, port: int) -> tuple[str, int]:
        """Return the address at which the proxy listens for a broker."""
        listener = self._listeners.get((host, port))
        if listener is None:
            listener = self._listeners[host, port] = socket.create_server(('127.0.0.1', 0), backlog=128)
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, (host, port))
        return '127.0.0.1', listener.getsockname()[1]

    def _accept(self, listener: socket.socket, target: tuple[str, int]) -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        try:
            broker = socket.create_connection(target, timeout=CONNECT_S)
        except OSError:     # the broker is being started
            client.close()
            return
        link = Link(client, broker)
        self._links.add(link)
        for end in (client, broker):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end, selectors.EVENT_READ, link)

    def _serve(self, link: Link, end: socket.socket, events: int) -> None:
        if link.is_closed or end not in link.received:
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._push(link, end)
            if events & selectors.EVENT_READ:
                self._receive(link, end)
        except (OSError, ProtocolError):
            self._close(link)

    def _receive(self, link: Link, end: socket.socket) -> None:
        try:
            data = end.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._close(link)
            return
        received = link.received[end]
        received += data
        while len(received) >= SIZE_BYTES:
            size = SIZE_BYTES + int.from_bytes(received[:SIZE_BYTES])
            if len(received) < size:
                break
            frame = bytes(received[:size])
            del received[:size]
            self._forward(link, end, frame)
            if link.is_closed or end not in link.received:
                return

    def _forward(self, link: Link, source: socket.socket, frame: bytes) -> None:
        if source is link.broker:
            answer = self._answer(link, frame)
            if link.client is not None and link.muted != MUTE_ANSWERS:
                self._queue(link, link.client, answer)
            return
        if len(frame) < SIZE_BYTES + LEAST_REQUEST_BYTES:
            raise ProtocolError(f'found a request of {len(frame)} bytes')
        key, version = int.from_bytes(frame[4:6]), int.from_bytes(frame[6:8])
        if key in self._wanted:
            self._hold(link, frame)
        elif link.muted != MUTE_REQUESTS:
            link.awaited.append((frame[8:12], key, version))
            self._queue(link, link.broker, frame)

    def _answer(self, link: Link, frame: bytes) -> bytes:
        """Return the response to forward. Remove its request from the requests without a response. Requests with acks=0
        have no response and are removed too."""
        while link.awaited:
            correlation_id, key, version = link.awaited.popleft()
            if correlation_id == frame[4:8]:
                answer = rewritten(frame[SIZE_BYTES:], key, version, self._route)
                return len(answer).to_bytes(SIZE_BYTES) + answer
        return frame

    # ---- sending

    def _queue(self, link: Link, end: socket.socket, frame: bytes) -> None:
        """Send a frame, after the delay if there is one."""
        due, delay = link.last_due[end], self.delay_s
        now = time.monotonic()
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
        self._close(link)

    def _send_due(self) -> None:
        now = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            _, _, link, end, frame = heapq.heappop(self._delayed)
            if not link.is_closed and end in link.unsent:
                try:
                    self._send(link, end, frame)
                except OSError:
                    self._close(link)

    def _push(self, link: Link, end: socket.socket) -> None:
        unsent = link.unsent[end]
        if unsent:
            with suppress(BlockingIOError):
                del unsent[:end.send(unsent)]
        self._listen(link)

    def _listen(self, link: Link) -> None:
        """Set the events to wait for. A connection with unsent bytes waits for room. A connection waits for input
        unless the opposite connection has too many unsent bytes."""
        for end in link.ends():
            other = link.broker if end is link.client else link.client
            events = selectors.EVENT_WRITE if link.unsent[end] else 0
            if other is None or len(link.unsent[other]) < MOST_QUEUED_BYTES:
                events |= selectors.EVENT_READ
            if self._selector.get_key(end).events != events:
                self._selector.modify(end, events or selectors.EVENT_WRITE, link)

    def _close(self, link: Link) -> None:
        if link.is_closed:
            return
        link.is_closed = True
        self._links.discard(link)
        for end in link.ends():
            self._selector.unregister(end)
            end.close()

    # ---- faults: methods that run in the proxy's thread

    def _chosen(self, share: float) -> list[Link]:
        return [link for link in list(self._links) if link.client is not None and self._rng.random() < share]

    def _cut(self, share: float) -> None:
        for link in self._chosen(share):
            if link.muted is None:
                link.is_to_be_cut = True
            else:
                self.counts['cut'] += 1
                self._close(link)

    def _mute(self, direction: str, share: float) -> None:
        for link in self._chosen(share):
            self.counts['muted'] += 1
            link.muted = direction

    def _hold(self, link: Link, frame: bytes) -> None:
        """Keep a request, and close the connection of its client. The connection to the broker stays open."""
        self._wanted = ()
        self.counts['held'] += 1
        assert link.client is not None
        self._selector.unregister(link.client)
        link.client.close()
        del link.received[link.client], link.unsent[link.client], link.last_due[link.client]
        link.client = None
        self._held.append((link, frame))

    def _release(self) -> None:
        while self._held:
            link, frame = self._held.popleft()
            if not link.is_closed:
                self.counts['released'] += 1
                try:
                    self._queue(link, link.broker, frame)
                except OSError:     # the broker has closed the connection
                    self._close(link)
