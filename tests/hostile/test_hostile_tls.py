"""Attacks with TLS handshakes that stop half way."""
from __future__ import annotations

import contextlib
import ssl

import pytest
from hostile.siege import many_connections
from support.clients.raw_client import RawClient
from support.runner.free_ports import free_port


def client_hello():
    """Return the first message of a TLS client."""
    outgoing = ssl.MemoryBIO()
    session = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname='localhost')
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize('handshakes', [1_500, pytest.param(8_000, marks=pytest.mark.soak)])
def test_handshakes_that_stop_half_way(besieged, certificates, handshakes):
    """Half of the clients stop within their first message, and half after the broker has answered it."""
    port = free_port()
    broker = besieged({'listeners': f'PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:{port}',
                       'ssl.keystore.location': str(certificates / 'server.pem')})
    hello = client_hello()
    with (many_connections(broker, handshakes, lambda: RawClient('127.0.0.1', port)) as attackers,
          broker.watched(rss_mb=180)):
        for number, attacker in enumerate(attackers):
            with contextlib.suppress(ConnectionError):      # the oldest handshakes end at the bound
                attacker.socket.sendall(hello if number % 2 else hello[:len(hello) // 2])
