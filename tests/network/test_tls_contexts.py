"""TLS contexts are built again when settings or files change. If a new context cannot be built, the old one remains in
use. Covers KIP-651.
"""
import logging
import os
import shutil
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from support.clients.certificates import certificate_between, make_revocation_list
from support.clients.socket_peers import LateWorker

from kbroker.base.errors import ConfigError, KafkaError
from kbroker.network.tls_contexts import TlsContexts
from kbroker.security.tls import server_context
from kbroker.settings.config import Config

NOW = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
"""The time of the clock of the tests."""
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def files(tmp_path, certificates):
    """Copy a keystore and a truststore, which the test may replace."""
    shutil.copy(certificates / 'server.pem', tmp_path / 'keys.pem')
    shutil.copy(certificates / 'ca.pem', tmp_path / 'trusted.pem')
    return tmp_path


@pytest.fixture
def given(files):
    return {'listeners': 'SSL://127.0.0.1:0,INSIDE://127.0.0.1:0', 'listener.security.protocol.map':
            'SSL:SSL,INSIDE:SSL', 'ssl.keystore.location': str(files / 'keys.pem'),
            'ssl.truststore.location': str(files / 'trusted.pem'), 'log.dirs': str(files / 'data')}


@pytest.fixture
def worker():
    return LateWorker()


@pytest.fixture
def contexts(given, worker):
    return TlsContexts(Config(given), worker.submit)


def replace(path, text):
    """Replace a file by a rename, as certificate managers do."""
    new = path.with_suffix('.new')
    new.write_text(text)
    os.replace(new, path)


def shake_hands(context, certificates, client=None):
    """Do a handshake in memory. Return (the subject of the server's certificate, the certificate that the server
    received)."""
    wanted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    wanted.load_verify_locations(certificates / 'ca.pem')
    wanted.check_hostname = False
    if client is not None:
        wanted.load_cert_chain(certificates / f'{client}.pem')
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = wanted.wrap_bio(to_client, to_server)
    other = context.wrap_bio(to_server, to_client, server_side=True)
    open_sides = [one, other]
    for _ in range(10):
        for side in list(open_sides):
            try:
                side.do_handshake()
                open_sides.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not open_sides
    return dict(part for (part,) in one.getpeercert()['subject'])['commonName'], other.getpeercert(True)


def test_nothing_is_built_again_while_nothing_changes(contexts, worker, caplog):
    context = contexts.context('SSL')
    for _ in range(3):
        contexts.reload()
        worker.work()
    assert contexts.context('SSL') is context
    assert caplog.messages == []


def test_a_file_that_was_replaced_is_read_again_for_new_connections(contexts, worker, files, certificates, caplog):
    old = contexts.context('SSL')
    assert shake_hands(old, certificates) == ('server', None)
    replace(files / 'keys.pem', (certificates / 'stranger.pem').read_text())
    with caplog.at_level(logging.INFO):
        contexts.reload()
        assert contexts.context('SSL') is old, 'the loop does not wait for files'
        worker.work()
    assert shake_hands(contexts.context('SSL'), certificates) == ('stranger', None)
    assert shake_hands(contexts.context('INSIDE'), certificates) == ('stranger', None)
    assert caplog.messages == [
        f'listener {name}: key and certificates were read again, for new connections' for name in ('SSL', 'INSIDE')]


@pytest.mark.parametrize('text', ['', 'no PEM', '-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n', None])
def test_a_bad_file_leaves_the_old_context_and_is_reported_once(contexts, worker, files, certificates, caplog, text):
    old = contexts.context('SSL')
    if text is None:
        (files / 'keys.pem').unlink()
    else:
        replace(files / 'keys.pem', text)
    for _ in range(3):
        contexts.reload()
        worker.work()
    assert contexts.context('SSL') is old
    assert [record.levelname for record in caplog.records] == ['ERROR', 'ERROR'], 'one for each listener'
    assert 'use the key and certificates as before' in caplog.messages[0]
    replace(files / 'keys.pem', (certificates / 'stranger.pem').read_text())
    contexts.reload()
    worker.work()
    assert shake_hands(contexts.context('SSL'), certificates)[0] == 'stranger'


def test_a_change_while_contexts_are_built_is_seen_afterwards(contexts, worker, files, certificates):
    replace(files / 'keys.pem', (certificates / 'stranger.pem').read_text())
    contexts.reload()
    contexts.reload()
    assert len(worker.jobs) == 1
    worker.work()
    replace(files / 'keys.pem', (certificates / 'client.pem').read_text())
    worker.work()
    assert not worker.jobs
    assert shake_hands(contexts.context('SSL'), certificates)[0] == 'client'


def test_each_listener_has_its_own_settings(given, files, certificates, worker):
    contexts = TlsContexts(Config(given | {
        'listener.name.inside.ssl.keystore.location': str(certificates / 'stranger.pem'),
        'listener.name.inside.ssl.client.auth': 'required'}), worker.submit)
    assert contexts.context('SSL').verify_mode is ssl.CERT_NONE
    assert contexts.context('INSIDE').verify_mode is ssl.CERT_REQUIRED
    subject, certificate = shake_hands(contexts.context('INSIDE'), certificates, 'client')
    assert subject == 'stranger'
    assert certificate == ssl.PEM_cert_to_DER_cert((certificates / 'client.crt').read_text())


def test_on_sasl_ssl_the_plain_client_auth_does_not_count(given, worker):
    sasl = {'listener.security.protocol.map': 'SSL:SSL,INSIDE:SASL_SSL', 'ssl.client.auth': 'required',
            'sasl.enabled.mechanisms': 'SCRAM-SHA-512'}
    contexts = TlsContexts(Config(given | sasl), worker.submit)
    assert contexts.context('SSL').verify_mode is ssl.CERT_REQUIRED
    assert contexts.context('INSIDE').verify_mode is ssl.CERT_NONE
    contexts = TlsContexts(Config(given | sasl | {'listener.name.inside.ssl.client.auth': 'requested'}), worker.submit)
    assert contexts.context('INSIDE').verify_mode is ssl.CERT_OPTIONAL


def changed(given, **per_broker):
    names = {f'listener.name.ssl.ssl.{name.replace("_", ".")}': value for name, value in per_broker.items()}
    return Config(given, per_broker=names), names


def run(steps, worker):
    for _ in steps:
        worker.work()


def test_settings_are_checked_before_they_are_changed(contexts, given, worker, files, certificates):
    run(contexts.check(*changed(given, keystore_location=str(certificates / 'stranger.pem'))), worker)
    with pytest.raises(KafkaError, match=r'missing\.pem: No such file'):
        run(contexts.check(*changed(given, keystore_location=str(files / 'missing.pem'))), worker)
    with pytest.raises(KafkaError, match='cannot be used'):
        run(contexts.check(*changed(given, keystore_location=str(certificates / 'ca.pem'))), worker)


def test_naming_the_same_file_again_checks_what_it_holds_now(contexts, given, worker, files):
    replace(files / 'keys.pem', 'no PEM')
    with pytest.raises(KafkaError, match=r'(holds no|is not) PEM'):
        run(contexts.check(*changed(given, keystore_location=str(files / 'keys.pem'))), worker)
    run(contexts.check(Config(given), ['log.retention.ms']), worker)


def test_a_client_cannot_set_a_keystore_that_has_expired(contexts, given, worker, files):
    (files / 'old.pem').write_text(certificate_between('old', LONG_AGO, datetime.now(UTC) - timedelta(days=1)))
    with pytest.raises(KafkaError, match='the certificate CN=old expired at'):
        run(contexts.check(*changed(given, keystore_location=str(files / 'old.pem'))), worker)


def test_an_encrypted_key_needs_its_password(certificates, files, worker, given):
    encrypted = (certificates / 'client.enc').read_text() + (certificates / 'client.crt').read_text()
    replace(files / 'keys.pem', encrypted)
    contexts = TlsContexts(Config(given | {'ssl.key.password': 'horse'}), worker.submit)
    assert shake_hands(contexts.context('SSL'), certificates)[0] == 'client'
    for wrong in ({}, {'ssl.key.password': 'marker-secret'}):
        with pytest.raises(ConfigError) as caught:
            TlsContexts(Config(given | wrong), worker.submit)
        assert 'marker-secret' not in str(caught.value)


@pytest.fixture(scope='module')
def revoked(certificates):
    """Make a revocation list that revokes only the certificate of `client`, and not the certificate of `stranger`."""
    return make_revocation_list(certificates, 'client')


def test_a_revoked_certificate_is_refused(certificates, revoked, given, worker):
    signer, lists = revoked
    config = Config(given | {'ssl.client.auth': 'required', 'ssl.truststore.location': str(signer),
                             'ssl.crl.location': str(lists)})
    context = TlsContexts(config, worker.submit).context('SSL')
    assert shake_hands(context, certificates, 'stranger')[1] is not None
    with pytest.raises(ssl.SSLError, match='revoked'):
        shake_hands(context, certificates, 'client')


def test_a_list_that_holds_none_is_refused(certificates):
    with pytest.raises(ConfigError, match=r'ssl.crl.location: found no X509 CRL'):
        server_context({'ssl.keystore.location': str(certificates / 'server.pem'),
                        'ssl.crl.location': str(certificates / 'ca.pem')})


@pytest.fixture
def dated(files, worker, clock):
    """Contexts of two listeners that share a keystore, which expires after 40 days, and have no truststore."""
    (files / 'keys.pem').write_text(certificate_between('first', LONG_AGO, NOW + timedelta(days=40)))
    return TlsContexts(Config({
        'listeners': 'SSL://127.0.0.1:0,INSIDE://127.0.0.1:0', 'listener.security.protocol.map': 'SSL:SSL,INSIDE:SSL',
        'ssl.keystore.location': str(files / 'keys.pem'), 'log.dirs': str(files / 'data')}), worker.submit, clock)


def test_each_day_has_a_line_about_a_certificate_that_soon_expires_and_then_has(dated, clock, caplog):
    levels = []
    for _ in range(43):
        clock.advance(dated.next_look_ms)
        caplog.clear()
        dated.look()
        levels.append([record.levelname for record in caplog.records])
    assert levels[:10] == [[]] * 10
    assert levels[10:40] == [['WARNING']] * 30, 'one line for both listeners'
    assert levels[40:] == [['ERROR']] * 3
    assert 'the certificate CN=first expired at 2023-12-24 22:13:20 UTC' in caplog.messages[0]


def test_a_look_follows_the_end_of_a_certificate_by_a_second(dated, clock):
    clock.advance(39 * 86_400_000 + 3_600_000)
    assert dated.next_look_ms == 23 * 3_600_000 + 1000


def test_the_certificates_in_use_are_kept_with_their_times(dated, files):
    assert [(found.file, found.kind, found.subject, found.not_after_s)
            for found in dated.certificates['INSIDE']] == [
        (str(files / 'keys.pem'), 'keystore', 'CN=first', int((NOW + timedelta(days=40)).timestamp()))]


@pytest.mark.parametrize(('begin', 'end', 'words'), [
    (LONG_AGO, NOW - timedelta(days=1), 'expired at'),
    (NOW + timedelta(days=1), NOW + timedelta(days=90), 'is not valid before')])
def test_a_certificate_that_is_not_valid_now_is_an_error_of_the_start(given, files, worker, clock, begin, end, words):
    (files / 'keys.pem').write_text(certificate_between('first', begin, end))
    with pytest.raises(ConfigError, match=f'keys.pem: the certificate CN=first {words}'):
        TlsContexts(Config(given), worker.submit, clock)


def test_a_new_certificate_that_has_expired_leaves_the_old_one_in_use(dated, worker, files, clock, caplog):
    old = dated.context('SSL')
    replace(files / 'keys.pem', certificate_between('second', LONG_AGO, NOW - timedelta(days=1)))
    dated.reload()
    worker.work()
    assert dated.context('SSL') is old
    assert [record.levelname for record in caplog.records] == ['ERROR', 'ERROR'], 'one for each listener'
    assert 'use the key and certificates as before' in caplog.messages[0]
    assert 'the certificate CN=second expired at' in caplog.messages[0]
    caplog.clear()
    replace(files / 'keys.pem', certificate_between('third', LONG_AGO, NOW + timedelta(days=3)))
    dated.reload()
    worker.work()
    assert dated.certificates['SSL'][0].subject == 'CN=third'
    assert [message for message in caplog.messages if 'CN=third expires at' in message] == [caplog.messages[-1]]
