"""A peer that sends mutated TLS is never served. Only its own connection ends, and no handshake or request remains."""
import contextlib
import random
import socket
import ssl

import pytest
from support.clients.socket_peers import commons_for, echo, frame

from kbroker.network.connection import Connection
from kbroker.network.tls import TlsTransport
from kbroker.security.der import CertificateError
from kbroker.security.principal_mapping import MappingError, parse_mapping_rules, principal_of_certificate
from kbroker.security.tls import server_context

CHANGE_CIPHER_SPEC = b'\x14\x03\x03\x00\x01\x01'


def runs(default, soak):
    return pytest.mark.parametrize('count', [
        default, pytest.param(soak, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])], indirect=True)


@pytest.fixture
def count(request, soak_count):
    return soak_count(request.param)


@pytest.fixture
def server(certificates):
    return server_context({'ssl.keystore.location': str(certificates / 'server.pem'), 'ssl.client.auth': 'required',
                           'ssl.truststore.location': str(certificates / 'ca.pem')})


@pytest.fixture
def commons(reactor):
    return commons_for(reactor, echo)


def client_context(certificates, version=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates / 'ca.pem')
    context.load_cert_chain(certificates / 'client.pem')
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


class FuzzedClient:
    """A TLS client. Before it sends a flight, the messages that TLS sends without waiting for an answer, a test may
    change it."""

    def __init__(self, reactor, commons, server, context):
        self.reactor = reactor
        self.socket, served = socket.socketpair()
        self.socket.setblocking(False)
        served.setblocking(False)
        self.connection = Connection(commons, served.detach(), make_transport=lambda fd: TlsTransport(fd, server))
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = context.wrap_bio(self.incoming, self.outgoing, server_hostname='localhost')

    def flight(self):
        """Continue the handshake, and return the bytes to send."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.session.do_handshake()
        return self.outgoing.read()

    def send(self, data):
        with contextlib.suppress(ConnectionError, BlockingIOError):
            self.socket.sendall(data)
        for _ in range(4):
            self.reactor.run_once()
        with contextlib.suppress(ConnectionError, BlockingIOError):
            self.incoming.write(self.socket.recv(1 << 16))

    def end(self):
        self.socket.close()
        for _ in range(4):
            if self.connection.is_closed:
                break
            self.reactor.run_once()
        return self.connection.is_closed


def mutated(data, chance):
    """Return the bytes with a few changes: some bytes are flipped, removed, inserted, repeated, or cut off."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 20))):
        at = chance.randrange(len(found) + 1)
        kind = chance.randrange(6)
        if kind < 3 and at < len(found):
            found[at] = chance.randrange(256) if kind else found[at] ^ 1 << chance.randrange(8)
        elif kind == 3:
            del found[at:at + chance.choice((1, 2, 50))]
        elif kind == 4:
            found[at:at] = chance.randbytes(chance.choice((1, 2, 300)))
        elif kind == 5:
            found[at:at] = found[max(0, at - 30):at]
    return bytes(found)


def without_dummies(data):
    """Return the bytes without records of type change_cipher_spec, which a server of TLS 1.3 discards unread."""
    left, at = [], 0
    while at < len(data):
        size = 5 + int.from_bytes(data[at + 3:at + 5], 'big')
        if data[at:at + 6] != CHANGE_CIPHER_SPEC:
            left.append(data[at:at + size])
        at += size
    return b''.join(left)


@runs(1_000, 100_000)
def test_mutated_first_messages_end_or_wait_and_are_never_served(reactor, commons, server, certificates, count):
    chance = random.Random(count)
    context = client_context(certificates)
    for _ in range(count):
        client = FuzzedClient(reactor, commons, server, context)
        hello = client.flight()
        client.send(mutated(hello, chance))
        client.send(frame(b'not encrypted'))
        assert client.end()
    assert commons.requests == 0
    assert commons.newcomers.handshakes == 0


def says_the_same(flight, changed, version):
    """Return whether a server that gets the changed flight finishes the handshake as with the original flight."""
    if version == ssl.TLSVersion.TLSv1_3:
        flight, changed = without_dummies(flight), without_dummies(changed)
    return changed.startswith(flight)


@runs(300, 20_000)
@pytest.mark.parametrize('version', [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_mutated_flight_with_a_certificate_is_never_served(reactor, commons, server, certificates, version, count):
    """In TLS 1.2 the certificate travels in plain text, so its bytes are among those that change."""
    chance = random.Random(count)
    context = client_context(certificates, version)
    for _ in range(count):
        client = FuzzedClient(reactor, commons, server, context)
        client.send(client.flight())
        flight = client.flight()
        assert len(flight) > 300
        changed = mutated(flight, chance)
        if says_the_same(flight, changed, version):
            client.end()
            continue
        client.send(changed)
        with contextlib.suppress(ssl.SSLError):
            client.session.write(frame(b'after a changed handshake'))
            client.send(client.outgoing.read())
        assert client.end()
    assert commons.requests == 0
    assert commons.newcomers.handshakes == 0


def test_a_repeated_dummy_record_of_tls_1_3_changes_nothing(reactor, commons, server, certificates):
    client = FuzzedClient(reactor, commons, server, client_context(certificates, ssl.TLSVersion.TLSv1_3))
    client.send(client.flight())
    flight = client.flight()
    assert flight.startswith(CHANGE_CIPHER_SPEC)
    client.send(CHANGE_CIPHER_SPEC + flight)
    client.session.write(frame(b'good'))
    client.send(client.outgoing.read())
    assert client.end()
    assert commons.requests == 1


def test_an_unchanged_handshake_is_served(reactor, commons, server, certificates):
    """Without this test, the tests of mutated handshakes would also pass on a broker that serves no client at all."""
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        client = FuzzedClient(reactor, commons, server, client_context(certificates, version))
        for _ in range(3):
            client.send(client.flight())
        client.session.write(frame(b'good'))
        client.send(client.outgoing.read())
        assert client.connection.peer_certificate == ssl.PEM_cert_to_DER_cert((certificates / 'client.crt').read_text())
        assert client.end()
    assert commons.requests == 2


@runs(5_000, 1_000_000)
def test_a_mutated_certificate_has_a_name_or_a_reason(certificates, count):
    """OpenSSL verifies a certificate before kbroker reads its subject, but does not check that kbroker's parser can
    read the subject."""
    chance = random.Random(count)
    rules = parse_mapping_rules('RULE:^CN=([^,]+).*$/$1/L,DEFAULT')
    der = ssl.PEM_cert_to_DER_cert((certificates / 'client.crt').read_text())
    assert principal_of_certificate(der, rules).name == 'client'
    for _ in range(count):
        with contextlib.suppress(MappingError, CertificateError):
            assert principal_of_certificate(mutated(der, chance), rules).type == 'User'
