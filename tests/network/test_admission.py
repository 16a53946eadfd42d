"""Limits on connections: for each address, for each listener, and on the rate of new connections."""
import socket
from contextlib import ExitStack

import pytest
from support.clients.socket_peers import CallingServer, echo, frame

from kbroker.network.admission import ListenerLimits
from kbroker.network.limits import Limits
from kbroker.network.server import Endpoint, Server
from kbroker.security.quotas import CONNECTION_CREATION_RATE, ClientQuotas, Window

HERE = '127.0.0.1'


@pytest.fixture
def server(reactor, clock):
    """Yield a server with the listeners ONE and TWO."""
    server = Server(reactor, [Endpoint(HERE, 0, name) for name in ('ONE', 'TWO')], CallingServer(echo),
                    Limits(max_request_bytes=1 << 20), quotas=ClientQuotas(clock, Window(), Window()))
    yield server
    server.drain(0, lambda: None)
    for connection in list(server.connections.values()):
        connection.close('the test ends')


@pytest.fixture
def dial(reactor, server):
    with ExitStack() as stack:
        def dial(listener=0):
            client = stack.enter_context(socket.create_connection(server.addresses[listener], timeout=180))
            client.setblocking(False)
            settle(reactor)
            return client

        yield dial


def settle(reactor):
    for _ in range(4):      # a timer makes sockets ready, and is no event itself
        while reactor.run_once():
            pass


def is_served(reactor, client):
    try:
        client.sendall(frame(b'hello'))
        settle(reactor)
        return client.recv(100) == frame(b'hello')
    except (BlockingIOError, ConnectionError):
        return False


def is_closed(client):
    try:
        return client.recv(1) == b''
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize(('most', 'override', 'expected'), [(1, 3, 3), (3, 1, 1)])
def test_an_override_replaces_the_limit_of_an_address(server, dial, most, override, expected):
    server.limit(100, most)
    server.admission.overrides = {HERE: override}
    clients = [dial() for _ in range(5)]
    assert [is_closed(client) for client in clients] == [False] * expected + [True] * (5 - expected)


def test_a_listener_has_a_limit_of_its_own(server, dial, reactor):
    server.admission.listeners = {'ONE': ListenerLimits(max_connections=1)}
    first, second, other = dial(0), dial(0), dial(1)
    assert is_closed(second) and not is_closed(first) and is_served(reactor, other)
    first.close()
    settle(reactor)
    assert is_served(reactor, dial(0))


def test_a_connection_above_the_quota_of_its_address_is_held_and_closed(server, dial, reactor, clock):
    server.admission._quotas.put([('ip', HERE)], CONNECTION_CREATION_RATE, 2.0)
    clients = [dial() for _ in range(21)]
    assert all(is_served(reactor, client) for client in clients[:20])
    assert not is_closed(clients[20]) and len(server.held) == 1
    clients[20].sendall(frame(b'hello'))
    clock.advance(499)
    settle(reactor)
    assert not is_closed(clients[20])
    clock.advance(1)
    settle(reactor)
    assert is_closed(clients[20]) and not server.held
    assert is_served(reactor, dial())               # the refused one does not count, and half a second has passed


def test_held_connections_end_with_the_server(server, dial):
    server.admission._quotas.put([('ip', None)], CONNECTION_CREATION_RATE, 0.1)
    dial()
    held = dial()
    assert len(server.held) == 1
    server.close()
    assert is_closed(held)


def test_connections_that_come_too_fast_are_accepted_later(server, dial, reactor, clock):
    server.admission.listeners = {'ONE': ListenerLimits(max_rate=1)}
    clients = [dial() for _ in range(12)]
    assert [is_served(reactor, client) for client in clients] == [True] * 11 + [False]
    assert is_served(reactor, dial(1))
    clock.advance(1000)
    settle(reactor)
    assert clients[11].recv(100) == frame(b'hello')


def test_the_rate_of_the_broker_holds_for_all_listeners(server, dial, reactor, clock):
    server.admission.max_rate = 1
    clients = [dial(number % 2) for number in range(12)]
    assert [is_served(reactor, client) for client in clients] == [True] * 11 + [False]
    clock.advance(1000)
    settle(reactor)
    assert clients[11].recv(100) == frame(b'hello')
