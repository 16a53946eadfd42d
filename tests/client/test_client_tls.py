"""TLS connections to a scripted broker: trust, host name verification, and errors."""
import shutil
import ssl
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from support.brokers.scripted_broker import ScriptedBroker, serving
from support.clients.certificates import certificate_between, make_revocation_list

from kbroker.base.errors import ConfigError
from kbroker.client.config import ClientConfig
from kbroker.client.connection import ClientError, Connection
from kbroker.protocol import messages

pytestmark = pytest.mark.skipif(shutil.which('openssl') is None, reason='openssl not found')


@contextmanager
def tls_broker(certificates, kind='server', asks_for_client=False, version=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / f'{kind}.pem')
    if version is not None:
        context.maximum_version = version
    if asks_for_client:
        context.load_verify_locations(certificates / 'ca.pem')
        context.verify_mode = ssl.CERT_REQUIRED
    broker = ScriptedBroker()
    with serving(lambda plain: broker(context.wrap_socket(plain, server_side=True))) as port:
        broker.port = port
        yield broker


def connect(broker, certificates, host='127.0.0.1', **settings):
    names = {name.replace('_', '.'): str(value) for name, value in settings.items()}
    config = ClientConfig.from_settings({
        'bootstrap.servers': f'{host}:{broker.port}', 'security.protocol': 'SSL',
        'ssl.truststore.location': str(certificates / 'ca.pem'), 'ssl.truststore.type': 'PEM'} | names)
    return Connection(host, broker.port, config)


def complaint(*arguments, error=ClientError, **settings):
    with pytest.raises(error) as caught:
        connection = connect(*arguments, **settings)
        connection.call(messages.MetadataRequest(topics=[]))
    assert '\n' not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize('host', ['127.0.0.1', 'localhost'])
def test_a_broker_with_a_trusted_certificate_of_its_name_is_spoken_to(certificates, host):
    with tls_broker(certificates) as broker:
        connection = connect(broker, certificates, host)
        assert connection.call(messages.MetadataRequest(topics=[])).brokers[0].port == broker.port
        assert not connection.has_buffered
        connection.close()


def test_a_certificate_of_an_authority_that_is_not_trusted(certificates):
    with tls_broker(certificates) as broker:
        words = complaint(broker, certificates, ssl_truststore_location=certificates / 'client.crt')
    assert f'127.0.0.1:{broker.port}: the certificate is not accepted: no authority in ' \
        'ssl.truststore.location signed it' in words


def test_a_certificate_of_another_name_is_taken_only_when_names_are_not_checked(certificates):
    with tls_broker(certificates, 'stranger') as broker:
        words = complaint(broker, certificates)
        assert 'the certificate is not accepted: it is not for the name 127.0.0.1; connect by a name of' in words
        assert 'ssl.endpoint.identification.algorithm' in words
        connect(broker, certificates, ssl_endpoint_identification_algorithm='').close()


def test_a_broker_whose_certificate_is_revoked_is_not_spoken_to(certificates):
    signer, lists = make_revocation_list(certificates, 'stranger')
    checked = {'ssl_truststore_location': signer, 'ssl_crl_location': lists}
    with tls_broker(certificates) as broker:
        connect(broker, certificates, **checked).close()
        words = complaint(broker, certificates, ssl_crl_location=certificates / 'ca.pem', error=ConfigError)
        assert words == 'ssl.crl.location: found no X509 CRL'
    with tls_broker(certificates, 'stranger') as broker:
        unnamed = {'ssl_endpoint_identification_algorithm': ''}
        words = complaint(broker, certificates, **checked, **unnamed)
        assert 'the certificate is not accepted: it is revoked' in words
        connect(broker, certificates, ssl_truststore_location=signer, **unnamed).close()


@pytest.mark.parametrize('keystore', [
    {'ssl_keystore_location': 'client.pem', 'ssl_keystore_type': 'PEM'},
    {'ssl_certificate_location': 'client.crt', 'ssl_key_location': 'client.key'},
    {'ssl_certificate_location': 'client.crt', 'ssl_key_location': 'client.enc', 'ssl_key_password': 'horse'}])
def test_a_client_shows_its_certificate(certificates, keystore):
    settings = {name: certificates / value if name.endswith('location') else value for name, value in keystore.items()}
    with tls_broker(certificates, asks_for_client=True) as broker:
        connection = connect(broker, certificates, **settings)
        assert connection.call(messages.MetadataRequest(topics=[])).brokers
        connection.close()


def test_a_broker_that_asks_for_a_certificate_refuses_a_client_without_one(certificates):
    with tls_broker(certificates, asks_for_client=True) as broker:
        words = complaint(broker, certificates)
    assert words.endswith((     # the broker's reset may overtake its alert
        'does the listener ask for a client certificate (ssl.keystore.*)?',
        '(TLSV13_ALERT_CERTIFICATE_REQUIRED): the broker asks for a client certificate, and ssl.keystore.location is '
        'not set'))


@pytest.mark.parametrize(('days', 'words'), [
    ((-9, -1), 'it has expired; the operator of the broker has to replace it, unless the clock of this machine is'),
    ((1, 9), 'it is not valid yet; check the clock of this machine')])
def test_a_broker_whose_certificate_is_not_valid_now_is_not_spoken_to(certificates, days, words):
    begin, end = (datetime.now(UTC) + timedelta(days=number) for number in days)
    (certificates / 'dated.pem').write_text(certificate_between('dated', begin, end))
    with tls_broker(certificates, 'dated') as broker:
        found = complaint(broker, certificates, ssl_truststore_location=certificates / 'dated.pem')
    assert f'the certificate is not accepted: {words}' in found


def test_a_broker_without_a_common_version_of_tls_names_the_setting(certificates):
    with tls_broker(certificates, version=ssl.TLSVersion.TLSv1_2) as broker:
        words = complaint(broker, certificates, ssl_enabled_protocols='TLSv1.3')
    assert 'the broker has no version of TLS that ssl.enabled.protocols of this client has' in words


def test_a_key_that_cannot_be_opened_is_reported_without_asking_on_the_terminal(certificates):
    settings = {'ssl_certificate_location': certificates / 'client.crt',
                'ssl_key_location': certificates / 'client.enc'}
    with tls_broker(certificates) as broker:
        for password in ({}, {'ssl_key_password': 'wrong-horse'}):
            words = complaint(broker, certificates, error=ConfigError, **settings, **password)
            assert 'is ssl.key.password right?' in words and 'horse' not in words


def test_invalid_certificates_are_reported(certificates, tmp_path):
    (tmp_path / 'bad.pem').write_text('-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n')
    with tls_broker(certificates) as broker:
        words = complaint(broker, certificates, error=ConfigError, ssl_truststore_location=tmp_path / 'bad.pem')
    assert 'ssl.truststore: the certificates cannot be read' in words
