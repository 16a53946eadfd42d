import socket

import h11
import pytest

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.long_work import LongWork
from kbroker.http.routes import Routes
from kbroker.http.server import HttpServer, listen
from kbroker.network.reactor import Reactor

MOST_TICKS = 5000


class Client:
    """A client in the thread of the server, which runs a tick whenever the client waits."""

    def __init__(self, served):
        self._served = served
        self.socket = socket.create_connection(served.address)
        self.socket.setblocking(False)
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)

    def send(self, data):
        while data:
            try:
                data = data[self.socket.send(data):]
            except BlockingIOError:
                self._served.tick()

    def receive(self):
        """Return the next bytes, b'' at the end of the connection."""
        for _ in range(MOST_TICKS):
            try:
                return self.socket.recv(1 << 16)
            except BlockingIOError:
                self._served.tick()
            except ConnectionResetError:
                return b''
        raise AssertionError('the server sends nothing')

    def is_closed(self):
        """Return whether the server has closed the connection."""
        for _ in range(3):
            self._served.tick()
        try:
            return self.socket.recv(1) == b''
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def answer(self, method='GET'):
        """Return (status, headers, body) of the next answer, as h11 reads it."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        self._http.send(h11.Request(method=method, target='/', headers=[('host', 'x')]))
        self._http.send(h11.EndOfMessage())
        response, body = None, b''
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(self.receive())
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            else:
                return response.status_code, {bytes(n).decode(): bytes(v).decode() for n, v in response.headers}, body

    def ask(self, target='/', method='GET', **headers):
        lines = ''.join(f'{name}: {value}\r\n' for name, value in ({'host': 'localhost'} | headers).items())
        self.send(f'{method} {target} HTTP/1.1\r\n{lines}\r\n'.encode())
        return self.answer(method)


class Served:
    """An HTTP server on a free port, with its loop and a clock that tests move."""

    def __init__(self, routes):
        self.clock = ManualClock()
        timers = Timers(self.clock)
        self.reactor = Reactor(self.clock, timers)
        self.long_work = LongWork(timers)
        self.listener = listen('127.0.0.1', 0)
        self.address = self.listener.getsockname()
        self.server = HttpServer(self.reactor, self.long_work, self.listener, routes)

    def client(self):
        return Client(self)

    def tick(self):
        self.reactor.run_once()

    def pass_time(self, ms):
        """Let time pass, second by second: timers that repeat are due once in each of them."""
        for _ in range(0, ms, 1000):
            self.clock.advance(1000)
            self.tick()
            self.tick()

    def connections(self):
        [line] = self.server.ledger()
        return line.now()

    def close(self):
        self.server.close()
        self.listener.close()
        self.reactor.close()


@pytest.fixture
def serve():
    """Return a function that serves routes: `serve(Route(...), ...)`, with the options of `Routes`."""
    served = []

    def start(*routes, **options):
        served.append(Served(Routes(routes, **options)))
        return served[-1]

    yield start
    for each in served:
        each.close()
