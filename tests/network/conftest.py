"""Fixtures: a reactor with a manual clock, and peers on socket pairs."""
import pytest
from support.clients.socket_peers import DeferringHandler, Peer

from kbroker.base.clock import Timers
from kbroker.network.reactor import Reactor


@pytest.fixture
def reactor(clock):
    reactor = Reactor(clock, Timers(clock))
    yield reactor
    reactor.close()


@pytest.fixture
def connect(reactor):
    peers = []

    def connect(handle, max_request_bytes=1 << 20, commons=None):
        peers.append(Peer(reactor, handle, max_request_bytes, commons))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.connection.close('the test ends')
        peer.socket.close()


@pytest.fixture
def deferred(connect):
    """Return (a handler that answers a request only when the test says so, a peer that the handler serves)."""
    handler = DeferringHandler()
    return handler, connect(handler)


@pytest.fixture
def pipelined(connect):
    """Return (a handler that lets the next request pass before it answers, a peer that the handler serves)."""
    handler = DeferringHandler(pipelined=True)
    return handler, connect(handler)
