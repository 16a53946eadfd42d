"""Servers that echo frames: the network room and an asyncio.Protocol, each in a separate process. Results are grouped
by frame size.

    python -m pytest bench/bench_reactor.py --benchmark-columns=min,median,ops

The time is that of one burst: sending `depth` frames at once and reading the answers. `server_cpu_us` under each result
(--benchmark-json) is the server's CPU time per request. It is the better measure where the client is slower than the
server.
"""
import asyncio
import os
import socket
import subprocess
import sys
import time

import pytest

from kbroker.base.clock import Clock, Timers
from kbroker.network.limits import Limits
from kbroker.network.reactor import Reactor
from kbroker.network.server import Endpoint, Server
from kbroker.wire.frames import FrameServer

CASES = [(60, 1), (60, 64), (16 * 1024, 1), (16 * 1024, 16)]


class AsyncioEcho(asyncio.Protocol):
    """A simple server that does not use the network room. It cuts frames from a bytearray."""

    def connection_made(self, transport):
        self.transport = transport
        self.data = bytearray()

    def data_received(self, data):
        self.data += data
        position = 0
        while len(self.data) - position >= 4:
            size = int.from_bytes(self.data[position:position + 4], 'big')
            if len(self.data) - position - 4 < size:
                break
            body = bytes(self.data[position + 4:position + 4 + size])
            self.transport.write(size.to_bytes(4, 'big') + body)
            position += 4 + size
        del self.data[:position]


async def serve_asyncio():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(AsyncioEcho, '127.0.0.1', 0)
    announce(server.sockets[0].getsockname()[1])
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()


class Echo(FrameServer):
    def handle(self, connection, sequence, frame):
        connection.reply(sequence, bytes(frame))


def serve_kbroker():
    clock = Clock()
    reactor = Reactor(clock, Timers(clock))
    server = Server(reactor, [Endpoint('127.0.0.1', 0)], Echo(), Limits(max_request_bytes=1 << 20))
    announce(server.addresses[0][1])
    reactor.watch(sys.stdin.fileno(), reactor.stop)
    reactor.run()


def announce(port):
    print(port, flush=True)


class Served:
    """A server in another process, with a connection to it."""

    def __init__(self, name):
        self.process = subprocess.Popen([sys.executable, __file__, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
        port = int(self.process.stdout.readline())
        self.socket = socket.create_connection(('127.0.0.1', port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.requests = 0

    def echo(self, burst, depth):
        self.socket.sendall(burst)
        left = len(burst)
        while left:
            left -= len(self.socket.recv(left))
        self.requests += depth

    def close(self):
        """Stop the server. Return its CPU time per request, in microseconds."""
        self.socket.close()
        cpu_seconds, _ = self.process.communicate('end\n')
        return float(cpu_seconds) / self.requests * 1e6


@pytest.mark.parametrize('name', ['asyncio', 'kbroker'])
@pytest.mark.parametrize(('body_bytes', 'depth'), CASES)
def test_echo(benchmark, name, body_bytes, depth):
    benchmark.group = f'{body_bytes} B, {depth} in flight'
    burst = (body_bytes.to_bytes(4, 'big') + bytes(body_bytes)) * depth
    served = Served(name)
    try:
        benchmark(served.echo, burst, depth)
    finally:
        benchmark.extra_info['server_cpu_us'] = round(served.close(), 2)
    print(f'{benchmark.group}, {name}: {benchmark.extra_info["server_cpu_us"]} us of server CPU a request')


if __name__ == '__main__':
    started = time.process_time()
    if sys.argv[1] == 'asyncio':
        asyncio.run(serve_asyncio())
    else:
        serve_kbroker()
    print(time.process_time() - started)
