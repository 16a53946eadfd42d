"""Client settings by the names of the Java client. Each error is one line without secrets."""
import pytest

from kbroker.base.errors import ConfigError
from kbroker.client.config import ClientConfig, parse_addresses

PEM = '-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n'
KEY = '-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n'
SCRAM = {'security.protocol': 'SASL_PLAINTEXT', 'sasl.mechanism': 'SCRAM-SHA-512'}
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="horse";'


def made(**settings):
    return ClientConfig.from_settings({'bootstrap.servers': 'h:9092'} | {
        name.replace('_', '.'): value for name, value in settings.items()})


def complaint(settings):
    with pytest.raises(ConfigError) as caught:
        ClientConfig.from_settings({'bootstrap.servers': 'h:9092'} | settings)
    assert '\n' not in str(caught.value) and 'horse' not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(('text', 'addresses'), [
    ('h:1', (('h', 1),)),
    ('a.example.org:9092, b-2:9093,', (('a.example.org', 9092), ('b-2', 9093))),
    ('[::1]:9092', (('::1', 9092),)),
    ('SASL_SSL://h:9092', (('h', 9092),)),
])
def test_bootstrap_servers(text, addresses):
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize('text', ['', ',', 'localhost', 'h:', 'h:0', 'h:65536', ':9092', '::1:9092', 'h:1/x', 'h 1:2'])
def test_a_bootstrap_server_that_is_none(text):
    with pytest.raises(ConfigError, match='expected HOST:PORT'):
        parse_addresses(text)


def test_defaults_are_those_of_kafkas_clients():
    config = made()
    assert (config.security_protocol, config.request_timeout_ms, config.default_api_timeout_ms) == (
        'PLAINTEXT', 30_000, 60_000)
    assert (config.retry_backoff_ms, config.retry_backoff_max_ms) == (100, 1000)
    assert not config.is_tls and not config.is_sasl


def test_a_file_is_read_and_the_option_stands_before_it(tmp_path):
    file = tmp_path / 'client.properties'
    file.write_text('bootstrap.servers=file:1\nclient.id: me\nrequest.timeout.ms 5\nacks=all\n')
    config = ClientConfig.load('option:2', file, {'linger.ms': '3'})
    assert (config.bootstrap, config.client_id, config.request_timeout_ms) == ((('option', 2),), 'me', 5)
    assert config.properties == {'acks': 'all', 'linger.ms': '3'}
    assert ClientConfig.load(None, file).bootstrap == (('file', 1),)


def test_a_file_that_is_no_properties(tmp_path):
    file = tmp_path / 'client.properties'
    file.write_text('name=\\u12')
    with pytest.raises(ConfigError, match=r'client\.properties: line 1'):
        ClientConfig.load('h:1', file)


@pytest.mark.parametrize(('settings', 'words'), [
    ({'request.timeout.ms': 'soon'}, "request.timeout.ms: found 'soon', expected milliseconds"),
    ({'retry.backoff.ms': '-1'}, 'retry.backoff.ms: found'),
    ({'security.protocol': 'TLS'}, "found 'TLS', expected one of PLAINTEXT, SSL"),
    ({'security.protocol': 'SASL_SSL'}, 'sasl.mechanism: found none, expected one of PLAIN, SCRAM-SHA-256'),
    (SCRAM | {'sasl.mechanism': 'GSSAPI'}, "sasl.mechanism: found 'GSSAPI'"),
    (SCRAM, 'sasl.jaas.config: found none, expected it, or sasl.username and sasl.password'),
    (SCRAM | {'sasl.username': 'alice'}, 'sasl.jaas.config: found none'),
    (SCRAM | {'sasl.jaas.config': JAAS, 'sasl.kerberos.service.name': 'kafka'},
     'sasl.kerberos.service.name: this client does not know this setting'),
    (SCRAM | {'sasl.jaas.config': JAAS[:-1]}, 'sasl.jaas.config: found the end at character 99, expected option 3'),
    (SCRAM | {'sasl.jaas.config': JAAS.replace('ScramLogin', 'PlainLogin')},
     'sasl.jaas.config: found another login module, expected ScramLoginModule for SCRAM-SHA-512'),
    (SCRAM | {'sasl.jaas.config': JAAS.replace('username', 'user')}, 'expected the options username'),
    (SCRAM | {'sasl.jaas.config': JAAS.replace('"alice"', '"al"ice"')}, 'expected = after the key of option 2'),
    ({'security.protocol': 'SSL', 'ssl.truststore.type': 'JKS'}, 'found JKS, expected PEM'),
    ({'security.protocol': 'SSL', 'ssl.keystore.type': 'PKCS12'}, 'ssl.keystore.type: found PKCS12, expected PEM'),
    ({'security.protocol': 'SSL', 'ssl.truststore.password': 'horse'}, 'a PEM store has no password'),
    ({'security.protocol': 'SSL', 'ssl.cipher.suites': 'x'}, 'ssl.cipher.suites: this client does not know'),
    ({'security.protocol': 'SSL', 'ssl.enabled.protocols': 'SSLv3'}, 'expected some of TLSv1.2, TLSv1.3'),
    ({'security.protocol': 'SSL', 'ssl.endpoint.identification.algorithm': 'LDAPS'}, "found 'LDAPS', expected https"),
    ({'security.protocol': 'SSL', 'ssl.keystore.certificate.chain': PEM}, 'a certificate chain without a key'),
])
def test_what_is_wrong_is_named(settings, words):
    assert words in complaint(settings)


@pytest.mark.parametrize(('text', 'found'), [
    (JAAS, ('alice', 'horse')),
    ('ScramLoginModule  REQUIRED\n password=horse\n username="a;b \\"c\\" \\\\"  ; ', ('a;b "c" \\', 'horse')),
    ('a.ScramLoginModule required username="a" password="" serviceName="kafka";', ('a', '')),
])
def test_user_and_password_are_taken_out_of_the_login_modules_entry(text, found):
    config = made(**SCRAM, **{'sasl.jaas.config': text})
    assert (config.sasl_username, config.sasl_password) == found


def test_user_and_password_may_be_settings_of_their_own():
    config = made(**{**SCRAM, 'sasl.username': 'alice', 'sasl.password': 'horse'})
    assert (config.sasl_mechanism, config.sasl_username, config.sasl_password) == ('SCRAM-SHA-512', 'alice', 'horse')
    assert 'horse' not in repr(config)


def test_certificates_and_keys_are_pem_in_files_or_in_the_settings(tmp_path):
    (tmp_path / 'ca.pem').write_text(PEM)
    (tmp_path / 'both.pem').write_text(KEY + PEM)
    tls = made(security_protocol='SSL', ssl_truststore_location=str(tmp_path / 'ca.pem'),
               ssl_keystore_location=str(tmp_path / 'both.pem'), ssl_key_password='horse').tls
    assert (tls.trusted_certificates, tls.private_key, tls.certificate_chain) == (PEM, KEY + PEM, KEY + PEM)
    assert tls.checks_host_name and tls.key_password == 'horse' and 'horse' not in repr(tls) and KEY not in repr(tls)
    tls = made(**{'security.protocol': 'SSL', 'ssl.truststore.type': 'PEM', 'ssl.truststore.certificates': PEM,
                  'ssl.keystore.type': 'PEM', 'ssl.keystore.key': KEY, 'ssl.keystore.certificate.chain': PEM,
                  'ssl.endpoint.identification.algorithm': '', 'ssl.enabled.protocols': 'TLSv1.3'}).tls
    assert (tls.trusted_certificates, tls.private_key, tls.certificate_chain) == (PEM, KEY, PEM)
    assert not tls.checks_host_name and tls.enabled_protocols == ('TLSv1.3',)
    assert made(security_protocol='SSL', ssl_ca_location=str(tmp_path / 'ca.pem')).tls.trusted_certificates == PEM


def test_a_pem_text_in_one_line_or_with_remarks_is_put_in_order(tmp_path):
    (tmp_path / 'ca.pem').write_text(f'subject=Zoë\n{PEM} and\n{PEM}', 'utf-8')
    assert made(security_protocol='SSL', ssl_ca_location=str(tmp_path / 'ca.pem')).tls.trusted_certificates == PEM * 2
    tls = made(**{'security.protocol': 'SSL', 'ssl.truststore.certificates': PEM.replace('\n', ' ')}).tls
    assert tls.trusted_certificates == PEM
    old = KEY.replace('AAAA', 'Proc-Type: 4,ENCRYPTED\n\nAAAA')
    assert made(**{'security.protocol': 'SSL', 'ssl.keystore.key': old}).tls.private_key == old
    words = complaint({'security.protocol': 'SSL', 'ssl.truststore.certificates': 'horse'})
    assert words == 'ssl.truststore.certificates: the value holds no PEM (-----BEGIN ...)'


def test_a_store_of_java_is_refused_with_the_way_out(tmp_path):
    store = tmp_path / 'trust.jks'
    store.write_bytes(b'\xfe\xed\xfe\xed')
    words = complaint({'security.protocol': 'SSL', 'ssl.truststore.location': str(store)})
    assert words.startswith('ssl.truststore.type: found a file that is not PEM, expected PEM: convert')


def test_certificates_in_a_file_and_in_the_settings_are_one_too_many(tmp_path):
    (tmp_path / 'ca.pem').write_text(PEM)
    words = complaint({'security.protocol': 'SSL', 'ssl.truststore.certificates': PEM,
                       'ssl.truststore.location': str(tmp_path / 'ca.pem')})
    assert words.startswith('ssl.truststore.certificates: found together with ssl.truststore.location')


def test_a_certificate_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        made(security_protocol='SSL', ssl_truststore_location=str(tmp_path / 'no.pem'))
