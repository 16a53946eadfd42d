"""The client's end of a connection, and handlers for the server's end."""
import socket
from types import SimpleNamespace

from kbroker.log.fs import InterposedFile
from kbroker.network.connection import Commons, Connection
from kbroker.network.limits import Limits
from kbroker.wire.frames import FrameServer


def frame(body):
    return len(body).to_bytes(4, 'big') + body


class CallingServer(FrameServer):
    """A server that passes each frame to a Python function."""

    def __init__(self, handle):
        self.handle = handle


def commons_for(reactor, handle, on_close=None, submit=None, receive_buffer_bytes=128 * 1024, **limits):
    """Return the state that connections share. `handle` serves their frames."""
    return Commons(reactor, CallingServer(handle), Limits(**{'max_request_bytes': 1 << 20, **limits}), on_close, submit,
                   receive_buffer_bytes)


class Peer:
    """The client's end of a socket pair, and the server's connection at its other end."""

    def __init__(self, reactor, handle, max_request_bytes, commons=None):
        self.reactor = reactor
        self.socket, served = socket.socketpair()
        self.socket.setblocking(False)
        self.closed = []
        served.setblocking(False)
        self.commons = commons or commons_for(reactor, handle, self.closed.append, max_request_bytes=max_request_bytes)
        self.connection = Connection(self.commons, served.detach(), '10.0.0.1', 4711)

    def send(self, data):
        """Send all of `data`, with ticks in between while the kernel's buffer is full."""
        data = memoryview(data)
        while data:
            try:
                data = data[self.socket.send(data):]
            except BlockingIOError:
                self.reactor.run_once()
        self.settle()

    def offer(self, data):
        """Send as many bytes as the connection accepts. Return the bytes that are not sent."""
        data = memoryview(data)
        idle_ticks = 0
        while data and idle_ticks < 10:
            try:
                data = data[self.socket.send(data):]
                idle_ticks = 0
            except BlockingIOError:
                idle_ticks += 1
            self.reactor.run_once()
        self.settle()
        return bytes(data)

    def receive(self):
        """Receive until the connection has nothing more to send. Return the received bytes."""
        received = bytearray()
        while True:
            self.settle()
            try:
                data = self.socket.recv(1 << 20)
            except BlockingIOError:
                return bytes(received)
            if not data:
                return bytes(received)
            received += data

    def settle(self):
        for _ in range(3):
            self.reactor.run_once()

    @property
    def is_cut_off(self):
        self.settle()
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b''
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True


class DeferringHandler:
    """A handler that keeps every request open until the test answers it."""

    def __init__(self, *, pipelined=False):
        self.requests = []
        self.pipelined = pipelined

    def __call__(self, connection, sequence, request):
        self.requests.append(SimpleNamespace(connection=connection, sequence=sequence, body=bytes(request)))
        if self.pipelined:
            connection.let_next_pass(sequence)

    @property
    def bodies(self):
        return [request.body for request in self.requests]

    def answer(self, index, segments):
        request = self.requests[index]
        request.connection.reply(request.sequence, segments)


def echo(connection, sequence, request):
    connection.reply(sequence, [bytes(request)])


class Slice:
    def __init__(self, file, position, size_bytes):
        self.file = file
        self.position = position
        self.size_bytes = size_bytes


class ColdFile(InterposedFile):
    """A file whose first `warm_bytes` are in the page cache. When a worker reads bytes, they enter the page cache."""

    warm_bytes = 0
    evicts_again = False

    def cached_bytes(self, size, position):
        return max(0, min(size, self.warm_bytes - position))

    def warm(self, size, position):
        super().warm(size, position)
        if not self.evicts_again:
            self.warm_bytes = max(self.warm_bytes, position + size)


class LateWorker:
    """A worker that runs a job when the test calls `work`. Without a reactor, `work` also calls the completion. With a
    reactor, the loop calls it.
    """

    def __init__(self, reactor=None):
        self.reactor = reactor
        self.jobs = []

    def submit(self, job, done):
        self.jobs.append((job, done))

    def work(self):
        job, done = self.jobs.pop(0)
        try:
            result = job()
        except Exception as error:
            result = error
        if self.reactor is None:
            done(result)
        else:
            self.reactor.call_soon_threadsafe(lambda: done(result))
