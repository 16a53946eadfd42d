import errno
import os
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.clients.socket_peers import CallingServer, DeferringHandler, echo, frame

from kbroker.network.connection import Connection
from kbroker.network.limits import Limits
from kbroker.network.server import Endpoint, Hooks, Server


@pytest.fixture
def serve(reactor):
    servers = []

    def serve(handle=echo, listeners=(('127.0.0.1', 0),), on_close=None, **limits):
        server_limits = Limits(**{'max_request_bytes': 1 << 20, 'max_idle_ms': 600_000, **limits})
        endpoints = [Endpoint(*listener) for listener in listeners]
        servers.append(Server(reactor, endpoints, CallingServer(handle), server_limits, hooks=Hooks(on_close=on_close)))
        return servers[-1]

    yield serve
    for server in servers:
        server.drain(0, lambda: None)
        for connection in list(server.connections.values()):
            connection.close('the test ends')


@pytest.fixture
def dial(reactor):
    with ExitStack() as stack:
        def dial(server, address=None):
            client = stack.enter_context(socket.create_connection(address or server.addresses[0], timeout=180))
            settle(reactor)
            return client

        yield dial


def settle(reactor):
    while reactor.run_once():
        pass


def ask(reactor, client, body):
    client.sendall(frame(body))
    settle(reactor)
    return client.recv(1 << 16)


def is_cut_off(client):
    try:
        return client.recv(1) == b''
    except ConnectionResetError:
        return True


def test_connections_that_come_at_once_are_accepted_in_several_ticks(serve, reactor, monkeypatch):
    """The first accept uses up the time that a tick has for accepting connections."""
    monkeypatch.setattr('kbroker.network.server.ACCEPT_NS', 0)
    server = serve()
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection(server.addresses[0], timeout=60))
        accepted = []
        while server.accepted < 3:
            reactor.run_once()
            accepted.append(server.accepted)
        assert set(accepted) == {1, 2, 3}


def test_a_client_is_served_and_forgotten(serve, dial, reactor):
    closed = []
    server = serve(on_close=closed.append)
    client = dial(server)
    assert ask(reactor, client, b'hello') == frame(b'hello')
    (connection,) = server.connections.values()
    assert connection.client_host == '127.0.0.1'
    assert connection.client_port == client.getsockname()[1]
    client.close()
    settle(reactor)
    assert closed == [connection] and not server.connections
    assert (server.accepted, server.traffic.closed, server.traffic.requests) == (1, 1, 1)


def test_small_replies_are_not_delayed(serve, dial, reactor):
    server = serve()
    dial(server)
    (connection,) = server.connections.values()
    with socket.socket(fileno=os.dup(connection.fd)) as served:
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason='needs IPv6')
def test_an_empty_host_listens_on_every_address_of_both_families(serve, dial, reactor):
    server = serve(listeners=[('', 0)])
    port = server.addresses[0][1]
    assert ask(reactor, dial(server, ('127.0.0.1', port)), b'4') == frame(b'4')
    assert ask(reactor, dial(server, ('::1', port)), b'6') == frame(b'6')
    assert {connection.client_host for connection in server.connections.values()} == {'127.0.0.1', '::1'}


def test_an_address_in_use_is_named_and_the_others_are_given_back(serve):
    taken = serve().addresses[0]
    with pytest.raises(OSError, match=f'cannot listen on 127.0.0.1:{taken[1]}: Address already in use') as caught:
        serve(listeners=[('127.0.0.1', 0), taken])
    assert caught.value.errno == errno.EADDRINUSE


def test_a_host_that_cannot_be_resolved_is_named(serve):
    with pytest.raises(OSError, match='cannot listen on no-such-host'):
        serve(listeners=[('no-such-host.invalid', 9092)])


@pytest.mark.parametrize('host', ['a..b', 'x' * 64, 'ü..b', 'ü' * 64], ids=lambda host: host[:4])
def test_a_host_that_is_not_a_valid_name_is_named(serve, host):
    with pytest.raises(OSError, match=f'cannot listen on {host}:9092: '):
        serve(listeners=[(host, 9092)])


def test_a_thousand_clients_are_served_at_once(serve, dial, reactor):
    server = serve()
    clients = [dial(server) for _ in range(1000)]
    for index, client in enumerate(clients):
        client.sendall(frame(b'%d' % index))
    settle(reactor)
    for index, client in enumerate(clients):
        assert client.recv(100) == frame(b'%d' % index)
    for client in clients:
        client.close()
    settle(reactor)
    assert not server.connections


def test_a_storm_of_clients_connects_before_the_first_of_them_is_accepted(serve, reactor):
    server = serve()
    longest = int(Path('/proc/sys/net/core/somaxconn').read_text())
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(server.addresses[0], timeout=180))
                   for _ in range(min(2000, longest))]
        assert server.accepted == 0
        for client in clients:
            client.sendall(frame(b'again'))
        settle(reactor)
        assert server.accepted == len(clients)
        assert all(client.recv(100) == frame(b'again') for client in clients)


def test_connections_over_the_limits_are_refused_with_one_line(serve, dial, reactor, caplog):
    server = serve(max_connections_per_ip=2)
    first, _ = dial(server), dial(server)
    assert is_cut_off(dial(server)) and is_cut_off(dial(server))
    assert server.refused == 2
    assert caplog.text.count('refusing connections') == 1
    first.close()
    settle(reactor)
    assert ask(reactor, dial(server), b'now') == frame(b'now')


def test_connections_over_the_total_are_refused(serve, dial, reactor):
    server = serve(max_connections=1)
    dial(server)
    assert is_cut_off(dial(server))


def test_an_idle_connection_is_closed_between_its_time_and_a_quarter_more(serve, dial, reactor, clock):
    server = serve(max_idle_ms=1000)
    dial(server)
    for _ in range(20):
        clock.advance(50)
        settle(reactor)
    assert server.connections
    for _ in range(5):
        clock.advance(50)
        settle(reactor)
    assert not server.connections


def test_a_negative_idle_time_closes_nothing(serve, dial, reactor, clock):
    server = serve(max_idle_ms=-1)
    client = dial(server)
    clock.advance(10**9)
    assert ask(reactor, client, b'still') == frame(b'still')


def test_a_drain_answers_what_is_under_way(serve, dial, reactor):
    handler = DeferringHandler()
    server = serve(handler)
    busy, idle = dial(server), dial(server)
    address = server.addresses[0]
    busy.sendall(frame(b'a') + frame(b'b'))
    settle(reactor)
    drained = []
    server.drain(1000, lambda: drained.append(1))
    settle(reactor)
    assert is_cut_off(idle) and not drained
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    handler.answer(0, [b'A'])
    settle(reactor)
    assert busy.recv(100) == frame(b'A')
    assert is_cut_off(busy)
    assert drained == [1] and handler.bodies == [b'a']


def test_a_drain_ends_at_its_deadline(serve, dial, reactor, clock):
    handler = DeferringHandler()
    server = serve(handler)
    client = dial(server)
    client.sendall(frame(b'long poll'))
    settle(reactor)
    drained = []
    server.drain(1000, lambda: drained.append(1))
    clock.advance(1000)
    reactor.run_once()
    assert drained == [1]
    assert is_cut_off(client)
    handler.answer(0, [b'too late'])


def test_a_drain_without_connections_is_done_at_once(serve):
    drained = []
    serve().drain(1000, lambda: drained.append(1))
    assert drained == [1]


OUT_OF_DESCRIPTORS = '''
import logging, os, resource, socket, sys
from kbroker.base.clock import ManualClock, Timers
from kbroker.network.limits import Limits
from kbroker.network.reactor import Reactor
from kbroker.network.server import ACCEPT_PAUSE_MS, Endpoint, Server
from kbroker.wire.frames import FrameServer

logging.basicConfig(stream=sys.stdout, format='%(message)s')
clock = ManualClock()
reactor = Reactor(clock, Timers(clock))
server = Server(reactor, [Endpoint('127.0.0.1', 0)], FrameServer(), Limits(max_request_bytes=100))
clients = [socket.socket() for _ in range(4)]
used = max(int(name) for name in os.listdir('/proc/self/fd'))
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for client in clients:
    client.connect(server.addresses[0])
for _ in range(100):
    reactor.run_once()
accepted = server.accepted
assert 0 < accepted < 4, accepted
assert reactor.run_once() == 0            # no spinning on the listener
clock.advance(ACCEPT_PAUSE_MS)            # tries again, in vain and in silence
reactor.run_once()
reactor.run_once()
assert server.accepted == accepted
clients[0].close()                        # a place is free
for _ in range(10):
    reactor.run_once()
assert server.accepted > accepted
'''


def test_running_out_of_descriptors_pauses_the_listener_with_one_line():
    done = subprocess.run([sys.executable, '-c', OUT_OF_DESCRIPTORS], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('not accepting connections: Too many open files') == 1


def test_a_client_that_resets_during_a_reply_makes_no_noise(serve, dial, reactor, caplog):
    server = serve(lambda connection, sequence, request: connection.reply(sequence, [bytes(64 << 20)]))
    client = dial(server)
    client.sendall(frame(b'fetch'))
    reactor.run_once(timeout_ms=60_000)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    client.close()
    settle(reactor)
    assert not server.connections
    assert caplog.text == ''


def test_a_thousand_connects_and_closes_leak_no_descriptor(serve, dial, reactor):
    server = serve()
    before = len(os.listdir('/proc/self/fd'))
    for _ in range(1000):
        with socket.create_connection(server.addresses[0]) as client:
            client.sendall(frame(b'hello'))
            settle(reactor)
        settle(reactor)
    assert server.accepted == server.traffic.closed == 1000
    assert len(os.listdir('/proc/self/fd')) < before + 500      # other threads of this process open some


def test_a_connection_that_cannot_be_registered_gives_its_descriptor_back(serve):
    traffic = serve().traffic
    with open(__file__) as file:
        descriptor = os.dup(file.fileno())
        with pytest.raises(OSError, match='epoll_ctl add'):
            Connection(traffic, descriptor)
        links = (Path(f'/proc/self/fd/{number}') for number in (file.fileno(), descriptor))
        assert [os.path.lexists(link) and os.readlink(link) == __file__ for link in links] == [True, False]


def test_a_changed_limit_holds_for_the_next_connection(serve, dial, reactor):
    server = serve(max_connections=0)
    assert is_cut_off(dial(server))
    server.limit(1, 1)
    assert ask(reactor, dial(server), b'now') == frame(b'now')
