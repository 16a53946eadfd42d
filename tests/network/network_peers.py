"""What stands at the other end of a connection, and handlers for it."""
import socket
from types import SimpleNamespace

from kbroker.network.connection import Commons, Connection


def frame(body):
    return len(body).to_bytes(4, 'big') + body


class Peer:
    """The client's end of a socket pair, and the connection at the other end of it."""

    def __init__(self, reactor, handle, max_request_bytes):
        self.reactor = reactor
        self.socket, served = socket.socketpair()
        self.socket.setblocking(False)
        self.closed = []
        served.setblocking(False)
        self.commons = Commons(reactor, handle, self.closed.append, max_request_bytes)
        self.connection = Connection(self.commons, served.detach(), '10.0.0.1', 4711, 9092)

    def send(self, data):
        """Send all of it, ticking as the kernel's buffer needs."""
        data = memoryview(data)
        while data:
            try:
                data = data[self.socket.send(data):]
            except BlockingIOError:
                self.reactor.run_once()
        self.settle()

    def receive(self):
        """All that the connection sends, until it has no more."""
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


class Desk:
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
