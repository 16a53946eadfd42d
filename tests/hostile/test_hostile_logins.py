"""Attacks of clients that have not logged in, and of logged-in clients that log in again."""
from __future__ import annotations

import contextlib
import random

import pytest
from hostile.guarded import GOOD, HANDSHAKE, WRONG, Guarded, framed, stop_half_way, token
from hostile.siege import many_connections
from support.brokers.in_process_broker import frame_of, read_answer
from support.brokers.secured_broker import MECHANISMS

from kbroker.base.errors import ErrorCode
from kbroker.network.newcomers import MAX_LOGINS
from kbroker.protocol.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kbroker.security.failed_logins import MOST_AT_ONCE

CREATE = frame_of(CreateTopicsRequest(timeout_ms=1000, topics=[
    CreateTopicsRequest.CreatableTopic(name='smuggled', num_partitions=1, replication_factor=1)]), 7)


@pytest.fixture
def guarded(besieged):
    return Guarded(besieged)


@pytest.mark.parametrize('logins', [1_500, pytest.param(10_000, marks=pytest.mark.soak)])
def test_logins_that_stop_half_way(guarded, logins):
    """One third of the clients sends nothing, one third sends half a frame, one third chooses a mechanism."""
    with (many_connections(guarded.broker, logins, guarded.connect) as attackers,
          guarded.broker.watched(rss_mb=220)):
        stop_half_way(attackers)
        with guarded.log_in() as client:
            assert client.ask(MetadataRequest(topics=[]), 12).brokers
        assert guarded.broker.held('logins in progress') <= MAX_LOGINS
    assert guarded.broker.held('logins in progress') < logins


def test_guesses_of_one_address_do_not_delay_a_client_that_is_logged_in(guarded):
    with guarded.log_in() as friend, guarded.broker.watched(rss_mb=180), \
            many_connections(guarded.broker, 300, guarded.connect) as attackers:
        for attacker in attackers:
            with contextlib.suppress(ConnectionError):
                attacker.socket.sendall(framed(HANDSHAKE, token(WRONG), CREATE))
        for _ in range(50):
            assert friend.ask(MetadataRequest(topics=[]), 12).brokers
    assert 'smuggled' not in guarded.topics()


@pytest.mark.parametrize(('content', 'is_served'), [(GOOD, True), (WRONG, False)])
def test_a_request_behind_a_login_is_served_if_the_login_is_good(guarded, content, is_served):
    with guarded.connect() as client:
        client.socket.sendall(framed(HANDSHAKE, token(content), CREATE))
        client.receive()
        answer = read_answer(SaslAuthenticateRequest(), 2, client.receive())
        assert answer.error_code == (0 if is_served else ErrorCode.SASL_AUTHENTICATION_FAILED)
        if is_served:
            client.receive()
        else:
            assert client.is_cut_off()
    assert ('smuggled' in guarded.topics()) is is_served


def test_nothing_is_served_before_a_login(guarded):
    versions = framed(frame_of(ApiVersionsRequest(client_software_name='x', client_software_version='1'), 3))
    for stream in (framed(CREATE), versions + framed(CREATE), framed(token(GOOD), CREATE),
                   framed(frame_of(SaslHandshakeRequest(mechanism='PLAIN'), 0), b'\0' * 9, CREATE),
                   framed(HANDSHAKE, CREATE, token(GOOD)), (65_537).to_bytes(4, 'big'), b'\xff' * 8,
                   b'GET / HTTP/1.1\r\n\r\n', b'\x16\x03\x01\x00\xf4' + bytes(244)):
        with guarded.connect() as client:
            client.socket.sendall(stream)
            with contextlib.suppress(ConnectionError):
                while True:
                    client.receive()
    assert 'smuggled' not in guarded.topics()
    guarded.log_in().close()


@pytest.mark.parametrize('count', [120, pytest.param(20_000, marks=pytest.mark.soak)])
def test_tokens_of_random_bytes(besieged, count):
    """From each address come fewer failed logins than the number after which the broker delays an address."""
    guarded = Guarded(besieged, connection_failed_authentication_delay_ms='0')
    chance = random.Random(14)
    with guarded.broker.watched(rss_mb=180):
        for number in range(count):
            version, turn = number % 2, number // MOST_AT_ONCE
            with guarded.connect(f'127.{1 + turn // 62_500}.{turn // 250 % 250}.{2 + turn % 250}') as client:
                client.exchange(frame_of(SaslHandshakeRequest(mechanism=chance.choice(MECHANISMS)), version))
                with contextlib.suppress(ConnectionError):
                    for _ in range(10):
                        content = mutated(chance)
                        client.exchange(token(content) if version else content)
                    raise AssertionError('ten tokens of one login were answered')
    guarded.log_in().close()


def mutated(chance: random.Random) -> bytes:
    """Return a message of a SASL mechanism in which some bytes are changed, or a message of random bytes."""
    base = chance.choice([WRONG, b'n,,n=alice,r=abcdef', b'c=biws,r=abc,p=AAAA', b'n,,\x01auth=Bearer e30.e30.\x01\x01',
                          b'', chance.randbytes(chance.randrange(3000))])
    changed = bytearray(base)
    for _ in range(chance.randrange(4)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize('name', ['eve\n{"level": "info", "event": "ready"}', 'e\x1b[2Jve', 'x' * 5000, '\u202eeve'])
def test_a_user_name_forges_no_line_of_the_log(guarded, name):
    lines = len(guarded.broker.lines)
    for mechanism, content in (('PLAIN', f'\0{name}\0secret'), ('SCRAM-SHA-256', f'n,,n={name},r=abc')):
        with guarded.connect() as client:
            client.exchange(frame_of(SaslHandshakeRequest(mechanism=mechanism), 1))
            with contextlib.suppress(ConnectionError):
                client.exchange(token(content.encode()))
                client.exchange(token(b'c=biws,r=abc,p=AAAA'))
            assert client.is_cut_off()
    guarded.log_in().close()
    written = guarded.broker.lines[lines:]
    assert all(line.startswith('{"time_ms"') and len(line) < 6000 for line in written)
    assert not any('secret' in line or '\x1b' in line or '\u202e' in line for line in written)


def test_a_renewal_as_another_user_ends_the_connection_and_serves_nothing_more(besieged):
    guarded = Guarded(besieged, connections_max_reauth_ms='60000')
    with guarded.log_in() as client:
        client.socket.sendall(framed(HANDSHAKE, token(b'\0bob\0x'), CREATE))
        client.receive()
        answer = read_answer(SaslAuthenticateRequest(), 2, client.receive())
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_cut_off()
    assert 'smuggled' not in guarded.topics()
