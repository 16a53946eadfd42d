"""TLS connections: whatever the boundaries of TLS records and of reads, the broker gets the same frames as without
TLS."""
import contextlib
import logging
import os
import random
import re
import socket
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.clients.certificates import certificate_between
from support.clients.socket_peers import ColdFile, DeferringHandler, LateWorker, Peer, Slice, commons_for, echo, frame
from support.clients.tls13_records import ClientRecords
from support.runner.attempts import assert_within
from support.runner.pages import blocks

from kbroker.base.errors import ConfigError
from kbroker.base.repeats import WINDOW_MS
from kbroker.network.connection import Connection
from kbroker.network.newcomers import MAX_HANDSHAKES
from kbroker.network.tls import TlsTransport
from kbroker.security.tls import server_context


@pytest.fixture
def settings(certificates):
    return {'ssl.keystore.location': str(certificates / 'server.pem')}


class TlsPeer:
    """A TLS client on a socket pair whose other end is a connection of the reactor. `pump` moves its records."""

    def __init__(self, reactor, settings, certificates, *, client=None, version=None, handle=echo, chunk=1 << 20,
                 submit=None, keylog=None, commons=None, authority='ca.pem', host='localhost'):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(certificates / authority)
        if client is not None:
            context.load_cert_chain(certificates / f'{client}.pem')
        if version is not None:
            context.minimum_version = context.maximum_version = version
        if keylog is not None:
            context.keylog_filename = str(keylog)
        self.reactor = reactor
        self.chunk = chunk
        self.socket, served = socket.socketpair()
        self.socket.setblocking(False)
        served.setblocking(False)
        server = server_context(dict(settings))
        self.commons = commons or commons_for(reactor, handle, submit=submit, max_request_bytes=8 << 20)
        self.connection = Connection(self.commons, served.detach(), '10.0.0.7', 4711, 'OUTSIDE',
                                     make_transport=lambda fd: TlsTransport(fd, server))
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = context.wrap_bio(self.incoming, self.outgoing, server_hostname=host)
        self.to_send = b''

    def pump(self):
        """Send the client's records to the broker once, run a turn, and read the broker's records."""
        self.to_send += self.outgoing.read()
        while self.to_send:
            try:
                sent = self.socket.send(self.to_send[:self.chunk])
            except (BlockingIOError, BrokenPipeError):
                break
            self.to_send = self.to_send[sent:]
            self.reactor.run_once()
        for _ in range(2):      # a step of a handshake waits for the next tick
            self.reactor.run_once()
        self.take()

    def take(self):
        try:
            while data := self.socket.recv(1 << 16):
                self.incoming.write(data)
        except (BlockingIOError, ConnectionResetError):
            pass

    def shake_hands(self):
        for _ in range(10):
            try:
                self.session.do_handshake()
                return self.pump()
            except ssl.SSLWantReadError:
                self.pump()
        raise AssertionError('the handshake came to no end')

    def receive(self, size):
        received = b''
        for _ in range(10_000):
            try:
                received += self.session.read(size - len(received))
            except ssl.SSLWantReadError:
                self.pump()
            if len(received) == size:
                return received
        raise AssertionError(f'{size} bytes were expected, {len(received)} came')

    def ask(self, *bodies):
        for body in bodies:
            self.session.write(frame(body))
        return self.receive(sum(len(frame(body)) for body in bodies))


@pytest.mark.parametrize('version', [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_frames_of_every_size_are_answered(reactor, settings, certificates, version):
    peer = TlsPeer(reactor, settings, certificates, version=version)
    peer.shake_hands()
    assert peer.session.version() == version.name.replace('_', '.')
    for size in (0, 1, 16383, 16384, 16385, 200_000, 3_000_000):
        body = random.Random(size).randbytes(size)
        assert peer.ask(body) == frame(body)
    assert peer.ask(b'one', b'two', b'three') == frame(b'one') + frame(b'two') + frame(b'three')


@pytest.mark.parametrize('chunk', [1, 3, 700])
def test_records_may_be_cut_anywhere(reactor, settings, certificates, chunk):
    peer = TlsPeer(reactor, settings, certificates, chunk=chunk)
    peer.shake_hands()
    for body in (b'', b'small', bytes(2000)):
        assert peer.ask(body) == frame(body)


def test_decrypted_bytes_are_served_though_the_socket_has_no_more(reactor, settings, certificates):
    peer = TlsPeer(reactor, settings, certificates)
    peer.shake_hands()
    bodies = [bytes([number % 256]) * 1000 for number in range(400)]
    assert peer.ask(*bodies) == b''.join(frame(body) for body in bodies)


def test_a_slow_reader_gets_everything_and_holds_up_only_itself(reactor, settings, certificates):
    peer = TlsPeer(reactor, settings, certificates)
    peer.shake_hands()
    body = random.Random(1).randbytes(900_000)
    for _ in range(8):
        peer.session.write(frame(body))
    peer.to_send += peer.outgoing.read()
    while peer.to_send:
        try:
            peer.to_send = peer.to_send[peer.socket.send(peer.to_send[:1 << 16]):]
        except BlockingIOError:
            if not peer.connection.is_reading:
                break
        reactor.run_once()
    assert peer.receive(8 * len(frame(body))) == frame(body) * 8


def test_a_peer_that_ends_its_side_is_still_answered(reactor, settings, certificates):
    peer = TlsPeer(reactor, settings, certificates)
    peer.shake_hands()
    peer.session.write(frame(b'last'))
    with pytest.raises(ssl.SSLWantReadError):
        peer.session.unwrap()
    peer.pump()
    for _ in range(5):
        peer.pump()
    assert peer.connection.is_closed
    assert peer.commons.requests == 1


@pytest.mark.parametrize(('sent', 'reason'), [
    (bytes.fromhex('0000001f001200030000000100077264') + bytes(19), 'TLS: wrong version number'),
    (b'GET / HTTP/1.1\r\nHost: x\r\n\r\n', 'TLS: http request'),
    (b'\x16\x03\x01\x00\x05hello', 'TLS: '),
])
def test_who_speaks_something_else_is_sent_away_with_one_line(reactor, settings, certificates, caplog, sent, reason):
    peer = TlsPeer(reactor, settings, certificates)
    with caplog.at_level(logging.INFO, 'kbroker.network'):
        peer.socket.send(sent)
        peer.pump()
    assert peer.connection.is_closed
    assert reason in caplog.messages[-1]
    assert peer.commons.requests == 0


def test_a_record_that_was_tampered_with_ends_the_connection(reactor, settings, certificates, caplog):
    peer = TlsPeer(reactor, settings, certificates)
    peer.shake_hands()
    peer.session.write(frame(b'changed on its way'))
    record = bytearray(peer.outgoing.read())
    record[-1] ^= 1
    with caplog.at_level(logging.INFO, 'kbroker.network'):
        peer.socket.send(record)
        peer.pump()
    assert peer.connection.is_closed
    assert 'TLS: ' in caplog.messages[-1]
    assert peer.commons.requests == 0


@pytest.fixture(scope='module')
def dated(certificates):
    """The directory of certificates, with certificates of other times."""
    now = datetime.now(UTC)
    for name, begin, end in (('past', -9, -1), ('future', 1, 9)):
        (certificates / f'{name}.pem').write_text(
            certificate_between(name, now + timedelta(days=begin), now + timedelta(days=end)))
    return certificates


REQUIRED = {'ssl.client.auth': 'required', 'ssl.truststore.location': 'ca.pem'}


@pytest.mark.parametrize('version', [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(('server', 'client', 'words'), [
    ({'ssl.keystore.location': 'past.pem'}, {'authority': 'past.pem'},
     'the client refuses the certificate of the broker: it has expired (TLS: sslv3 alert certificate expired)'),
    ({}, {'authority': 'past.pem'}, 'the client refuses the certificate of the broker: it does not trust the '
     'authority that signed it'),
    ({}, {'host': 'elsewhere'}, 'the client refuses the certificate of the broker: it is for another host name'),
    (REQUIRED, {}, 'the client shows no certificate, and ssl.client.auth is required (TLS: peer did not return a'),
    (REQUIRED, {'client': 'past'}, "no authority of ssl.truststore.location signed the client's certificate"),
    (REQUIRED | {'ssl.truststore.location': 'past.pem'}, {'client': 'past'}, "the client's certificate has expired"),
    (REQUIRED | {'ssl.truststore.location': 'future.pem'}, {'client': 'future'},
     "the client's certificate is not valid yet"),
])
def test_a_failed_handshake_says_who_refused_what(reactor, settings, dated, caplog, version, server, client, words):
    given = settings | {name: str(dated / value) if name.endswith('location') else value
                        for name, value in server.items()}
    peer = TlsPeer(reactor, given, dated, version=version, **client)
    with caplog.at_level(logging.INFO, 'kbroker.network'):
        with contextlib.suppress(ssl.SSLError):
            peer.shake_hands()
        peer.pump()
    assert caplog.messages[-1].startswith('connection 1 of 10.0.0.7:4711 closed by listener OUTSIDE: the TLS handshake '
                                          f'failed: {words}')
    assert len(caplog.messages) == 1
    assert peer.commons.failed_handshakes == 1


def test_the_page_shows_the_lines_of_the_log(reactor, settings, certificates, caplog):
    peer = TlsPeer(reactor, with_client_auth(settings, certificates, 'required'), certificates)
    with caplog.at_level(logging.INFO, 'kbroker.network'):
        peer.shake_hands()
        peer.pump()
    example, = (text for text in blocks('docs/security.md', 'text') if text.startswith('network: '))
    _, _, reason = caplog.messages[0].partition('listener OUTSIDE: ')
    assert [line.endswith(f': {reason}') for line in example.splitlines()] == [True, True]


def test_an_alert_before_a_reset_is_read(reactor, settings, dated, caplog):
    """Clients that leave bytes unread when they close the socket reset the connection, after their alert."""
    peer = TlsPeer(reactor, settings, dated, authority='past.pem')
    with caplog.at_level(logging.INFO, 'kbroker.network'):
        with pytest.raises(ssl.SSLWantReadError):
            peer.session.do_handshake()
        peer.socket.send(peer.outgoing.read())
        for _ in range(3):
            reactor.run_once()
        peer.incoming.write(peer.socket.recv(1 << 16, socket.MSG_PEEK))
        with pytest.raises(ssl.SSLCertVerificationError):
            peer.session.do_handshake()
        peer.socket.send(peer.outgoing.read())
        peer.socket.close()
        for _ in range(3):
            reactor.run_once()
    assert 'it does not trust the authority' in caplog.messages[-1]
    assert peer.connection.is_closed


@pytest.mark.parametrize(('offered', 'served'), [
    (ssl.TLSVersion.TLSv1_2, 'TLSv1.3'), (ssl.TLSVersion.TLSv1_3, 'TLSv1.2')])
def test_a_handshake_without_a_shared_version_names_the_setting(reactor, settings, certificates, caplog, offered,
                                                                served):
    peer = TlsPeer(reactor, settings | {'ssl.enabled.protocols': served}, certificates, version=offered)
    with caplog.at_level(logging.INFO, 'kbroker.network'), pytest.raises(ssl.SSLError):
        peer.shake_hands()
    assert 'the client offers no version of TLS that ssl.enabled.protocols has' in caplog.messages[-1]


def test_a_client_that_fails_again_has_one_line_in_ten_seconds(reactor, clock, settings, certificates, caplog):
    commons = commons_for(reactor, echo)

    def fail(count):
        for _ in range(count):
            peer = TlsPeer(reactor, settings, certificates, commons=commons)
            peer.socket.send(b'GET / HTTP/1.1\r\n\r\n')
            peer.pump()

    with caplog.at_level(logging.INFO, 'kbroker.network'):
        fail(50)
        assert len(caplog.messages) == 1
        clock.advance(WINDOW_MS)
        reactor.run_once()
    assert caplog.messages[1:] == [
        '49 more connections of 10.0.0.7 closed by listener OUTSIDE within 10 s: the TLS handshake failed: the client '
        'speaks HTTP without TLS, and this is a listener for Kafka clients with TLS (TLS: http request)']
    assert commons.failed_handshakes == 50


def with_client_auth(settings, certificates, auth):
    return settings | {'ssl.client.auth': auth, 'ssl.truststore.location': str(certificates / 'ca.pem')}


@pytest.mark.parametrize(('auth', 'client', 'is_served'), [
    ('required', 'client', True), ('required', None, False), ('requested', None, True), ('requested', 'client', True),
    ('none', None, True)])
def test_clients_show_the_certificate_that_is_asked_for(reactor, settings, certificates, auth, client, is_served):
    peer = TlsPeer(reactor, with_client_auth(settings, certificates, auth), certificates, client=client)
    peer.shake_hands()
    if is_served:
        assert peer.ask(b'served') == frame(b'served')
    else:
        peer.pump()
        assert peer.connection.is_closed


def test_a_key_and_its_chain_may_stand_in_the_settings(reactor, certificates):
    settings = {'ssl.keystore.key': (certificates / 'server.key').read_text(),
                'ssl.keystore.certificate.chain': (certificates / 'server.crt').read_text().replace('\n', ' ')}
    peer = TlsPeer(reactor, settings, certificates)
    peer.shake_hands()
    assert peer.ask(b'served') == frame(b'served')


@pytest.mark.parametrize(('changes', 'expected'), [
    ({'ssl.keystore.location': None}, 'found none, expected the key and certificate chain'),
    ({'ssl.client.auth': 'required'}, 'ssl.truststore.location: found none'),
    ({'ssl.enabled.protocols': 'TLSv1.1'}, 'expected some of TLSv1.2, TLSv1.3'),
    ({'ssl.keystore.location': 'ca.key'}, 'key and certificate chain cannot be used'),
])
def test_settings_that_cannot_work_are_refused_in_words(settings, certificates, changes, expected):
    for name, value in changes.items():
        settings.pop(name, None)
        if value is not None:
            settings[name] = str(certificates / value) if name.endswith('location') else value
    with pytest.raises(ConfigError, match=expected):
        server_context(settings)


def test_a_cold_slice_is_sent_when_a_worker_has_read_it(reactor, settings, certificates, tmp_path):
    content = bytes(range(256)) * 3000
    (tmp_path / 'segment').write_bytes(content)
    handler, worker = DeferringHandler(), LateWorker(reactor)
    peer = TlsPeer(reactor, settings, certificates, handle=handler, submit=worker.submit)
    peer.shake_hands()
    peer.session.write(frame(b'fetch'))
    peer.pump()
    handler.answer(0, [b'head', Slice(ColdFile(str(tmp_path / 'segment')), 0, len(content)), b'tail'])
    expected = frame(b'head' + content + b'tail')
    assert peer.receive(8) == expected[:8]
    assert len(worker.jobs) == 1
    worker.work()
    assert peer.receive(len(expected) - 8) == expected[8:]
    assert not worker.jobs


@pytest.fixture
def updating(reactor, settings, certificates, tmp_path):
    """Return (a peer that has done its handshake, a function that returns records that the peer can send next)."""
    peer = TlsPeer(reactor, settings, certificates, keylog=tmp_path / 'keys', version=ssl.TLSVersion.TLSv1_3)
    peer.shake_hands()
    assert peer.session.cipher()[0] == 'TLS_AES_256_GCM_SHA384'
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with socket.socket(fileno=os.dup(peer.connection.fd)) as served:
        served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    return peer, ClientRecords(tmp_path / 'keys')


def assert_short_turns(reactor, is_done):
    """Run turns until the work is done. Check that it took several turns, none of which was long."""
    times_s = []
    while not is_done():
        began_s = time.thread_time()
        reactor.run_once()
        times_s.append(time.thread_time() - began_s)
    assert len(times_s) > 10
    assert_within(max(times_s), 0.010)


def test_a_flood_of_new_keys_costs_the_peer_its_turns(reactor, updating):
    peer, records = updating
    flood = [records.key_update(requested=False) for _ in range(3000)]
    peer.socket.send(b''.join(flood) + records.data(frame(b'at last')))
    assert_short_turns(reactor, lambda: peer.commons.requests)


def test_a_flood_of_empty_records_ends_the_connection(reactor, updating):
    peer, records = updating
    peer.socket.send(b''.join(records.data(b'') for _ in range(3000)))
    peer.pump()
    assert peer.connection.is_closed


def test_a_peer_that_wants_answers_and_takes_none_is_not_read(reactor, updating):
    peer, records = updating
    memory_kb = None
    for burst in range(1000):
        burst_bytes = b''.join(records.key_update(requested=True) for _ in range(100))
        try:
            peer.socket.sendall(burst_bytes)
        except BlockingIOError:
            break
        for _ in range(20):
            reactor.run_once()
        if burst == 20:
            memory_kb = resident_kb()
    assert not peer.connection.is_reading
    assert reactor.run_once() == 0, 'the loop does not spin on what it does not read'
    assert memory_kb is None or resident_kb() - memory_kb < 4096


def test_a_peer_that_takes_the_answers_at_last_is_read_again(reactor, updating):
    peer, records = updating
    unsent = b''.join(records.key_update(requested=True) for _ in range(20_000)) + records.data(frame(b'at last'))
    for _ in range(10_000):
        if not peer.connection.is_reading:
            break
        with contextlib.suppress(BlockingIOError):
            unsent = unsent[peer.socket.send(unsent):] if unsent else b''
        reactor.run_once()
    assert not peer.connection.is_reading
    answered = 0
    while peer.commons.requests == 0:
        with contextlib.suppress(BlockingIOError):
            unsent = unsent[peer.socket.send(unsent):] if unsent else b''
        with contextlib.suppress(BlockingIOError):
            answered += len(peer.socket.recv(1 << 20))
        reactor.run_once()
    assert peer.connection.is_reading
    assert answered > 10_000


@pytest.mark.filterwarnings('error::pytest.PytestUnraisableExceptionWarning')
def test_a_peer_that_resets_while_it_gets_an_alert_is_forgotten_in_silence(reactor, settings, certificates):
    """The broken pipe when the broker sends the alert was once printed as "Exception ignored" on stderr."""
    peer = TlsPeer(reactor, settings, certificates)
    peer.shake_hands()
    peer.socket.send(b'\x17\x03\x03\x00\x20' + bytes(32))
    peer.socket.close()
    for _ in range(5):
        reactor.run_once()
    assert peer.connection.is_closed


def client_hello():
    outgoing = ssl.MemoryBIO()
    session = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname='localhost')
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


@pytest.fixture
def begin_handshakes(reactor, settings):
    """Yield a function that opens connections which send the first message of a handshake and no other."""
    commons = commons_for(reactor, echo)
    context = server_context(dict(settings))
    opened = []

    def transport(fd):
        return TlsTransport(fd, context)

    def begin_handshakes(count):
        hello = client_hello()
        for _ in range(count):
            peer, served = socket.socketpair()
            served.setblocking(False)
            peer.sendall(hello)
            opened.append((peer, Connection(commons, served.detach(), make_transport=transport)))
        return [connection for _, connection in opened], commons

    yield begin_handshakes
    for peer, connection in opened:
        connection.close('the test ends')
        peer.close()


def test_handshakes_share_the_time_of_long_turns(reactor, begin_handshakes):
    _, commons = begin_handshakes(300)
    assert_short_turns(reactor, lambda: commons.newcomers.handshakes == 300)


def test_connections_that_wait_for_their_share_leave_room_for_the_events_of_others(reactor, begin_handshakes):
    """Each tick once reported all waiting connections again. With 8,000 of them, another client waited for 30 ticks."""
    _, commons = begin_handshakes(900)
    good = Peer(reactor, echo, 1000, commons)
    for _ in range(6):
        reactor.run_once()
    ticks = 0
    for _ in range(20):
        good.socket.sendall(frame(b'good'))
        received = b''
        while received != frame(b'good'):
            reactor.run_once()
            ticks += 1
            with contextlib.suppress(BlockingIOError):
                received += good.socket.recv(100)
    assert commons.newcomers.handshakes < 900
    assert ticks <= 30


def test_of_too_many_handshakes_that_stop_half_way_the_oldest_ends(reactor, begin_handshakes):
    connections, commons = begin_handshakes(MAX_HANDSHAKES + 5)
    for _ in range(3 * len(connections)):
        reactor.run_once()
    assert commons.newcomers.handshakes == MAX_HANDSHAKES
    assert [connection.is_closed for connection in connections].count(True) == 5
    assert all(connection.is_closed for connection in connections[:5])


def test_a_handshake_that_is_done_gives_its_place_back(reactor, settings, certificates):
    peer = TlsPeer(reactor, settings, certificates)
    peer.to_send = b''
    with contextlib.suppress(ssl.SSLWantReadError):
        peer.session.do_handshake()
    peer.pump()
    assert peer.commons.newcomers.handshakes == 1
    peer.shake_hands()
    assert peer.commons.newcomers.handshakes == 0
    assert peer.ask(b'served') == frame(b'served')


def resident_kb():
    return int(re.search(r'VmRSS:\s+(\d+)', Path('/proc/self/status').read_text()).group(1))
