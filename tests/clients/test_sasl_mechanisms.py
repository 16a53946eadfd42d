"""Unmodified clients, and every command, log in to a live broker by the mechanisms that need no stored credential.

The tokens of OAUTHBEARER are signed, with keys in a file that changes while the broker runs.

Covers KIP-43, KIP-84, KIP-152 and KIP-255.
"""
import asyncio
import json
import time

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError as AioKafkaError
from behaviours import until
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from kafka import KafkaAdminClient
from kafka.errors import KafkaError as KafkaPythonError
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokenProvider
from support.brokers.secured_broker import MODULES, PASSWORD, PLAIN_JAAS
from support.runner.command_runner import run_in_process
from support.runner.free_ports import free_port

from kbroker.base.errors import KafkaError as OurError
from kbroker.client.admin import LATEST, Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.connection import Connection
from kbroker.client.producer import Producer

HANDLER = f'{MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler'
SESSION_MS = 1500

TRIES = 120
"""The most metadata requests that a client makes until its login succeeds or is refused. Each waits for up to one
second."""


class Guarded:
    """A broker with one listener, which accepts PLAIN and signed tokens. Also the keys for the tokens, and settings for
    clients."""

    def __init__(self, start_broker, directory, **more):
        self.key_file = directory / 'keys.json'
        self.keys = {}
        self.add_key('one', RSAKey.generate_key(2048))
        self.address = f'127.0.0.1:{free_port()}'
        prefix = 'listener.name.guarded'
        self.broker = start_broker({
            'listeners': f'GUARDED://{self.address}', 'advertised.listeners': f'GUARDED://{self.address}',
            'listener.security.protocol.map': 'GUARDED:SASL_PLAINTEXT',
            f'{prefix}.sasl.enabled.mechanisms': 'PLAIN,OAUTHBEARER', f'{prefix}.plain.sasl.jaas.config': PLAIN_JAAS,
            f'{prefix}.oauthbearer.sasl.jaas.config': f'{MODULES}.oauthbearer.OAuthBearerLoginModule required;',
            f'{prefix}.oauthbearer.sasl.server.callback.handler.class': HANDLER,
            f'{prefix}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url': self.key_file.as_uri(),
            f'{prefix}.oauthbearer.sasl.oauthbearer.expected.issuer': 'https://issuer',
            f'{prefix}.oauthbearer.sasl.oauthbearer.expected.audience': 'kafka'} | more)

    def add_key(self, key_id, key):
        self.keys[key_id] = key
        self.key_file.write_text(json.dumps({'keys': [
            {**each.as_dict(private=False), 'kid': name} for name, each in self.keys.items()]}))

    def token(self, key_id='one', algorithm='RS256', lifetime_s=600, **claims):
        now = int(time.time())
        members = {'sub': 'alice', 'iss': 'https://issuer', 'aud': 'kafka', 'iat': now, 'exp': now + lifetime_s}
        return jwt.encode({'alg': algorithm, 'kid': key_id}, members | claims, self.keys[key_id],
                          algorithms=[algorithm])

    def plain(self, password=PASSWORD):
        return {'sasl.mechanism': 'PLAIN', 'sasl.username': 'alice', 'sasl.password': password}

    def confluent(self, token):
        def make_token(_):
            return token() if callable(token) else token, time.time() + 500
        return {'bootstrap.servers': self.address, 'security.protocol': 'SASL_PLAINTEXT',
                'sasl.mechanisms': 'OAUTHBEARER', 'oauth_cb': make_token}

    def client(self, settings):
        return Cluster(ClientConfig.from_settings({'bootstrap.servers': self.address,
                                                   'security.protocol': 'SASL_PLAINTEXT'} | settings))


@pytest.fixture
def guarded(start_broker, tmp_path):
    return Guarded(start_broker, tmp_path)


def confluents_topics(settings):
    """Return the topics that confluent-kafka lists. Raise KafkaException if librdkafka reports that the login
    failed."""
    errors = []
    admin = AdminClient(settings | {'error_cb': errors.append})
    for _ in range(TRIES):
        try:
            return set(admin.list_topics(timeout=1).topics)
        except KafkaException:
            admin.poll(0.1)
            if any(error.code() == KafkaError._AUTHENTICATION for error in errors):
                raise
    raise AssertionError(f'no answer: {errors}')


class Token(AbstractTokenProvider):
    def __init__(self, text):
        self._text = text

    async def token(self):
        return self._text


class KafkaPythonToken(KafkaPythonTokenProvider):
    def __init__(self, text, **_):
        self._text = text

    def token(self):
        return self._text


def test_confluent_kafka(guarded):
    common = {'bootstrap.servers': guarded.address, 'security.protocol': 'SASL_PLAINTEXT'}
    assert confluents_topics(common | guarded.plain()) == set()
    with pytest.raises(KafkaException):
        confluents_topics(common | guarded.plain('wrong'))
    assert confluents_topics(guarded.confluent(guarded.token())) == set()
    with pytest.raises(KafkaException):
        confluents_topics(guarded.confluent(guarded.token(aud='other')))


def test_kafka_python(guarded):
    common = {'bootstrap_servers': guarded.address, 'security_protocol': 'SASL_PLAINTEXT'}
    plain = {'sasl_mechanism': 'PLAIN', 'sasl_plain_username': 'alice', 'sasl_plain_password': PASSWORD}
    for settings in (plain, {'sasl_mechanism': 'OAUTHBEARER',
                             'sasl_oauth_token_provider': KafkaPythonToken(guarded.token())}):
        admin = KafkaAdminClient(**common, **settings)
        assert admin.list_topics() == []
        admin.close()
    for settings in (plain | {'sasl_plain_password': 'wrong'},
                     {'sasl_mechanism': 'OAUTHBEARER',
                      'sasl_oauth_token_provider': KafkaPythonToken(guarded.token(iss='other'))}):
        # The client may lose the reason, with Apache Kafka too: it drops an answer that arrives together with the end
        # of the connection.
        with pytest.raises(KafkaPythonError, match=r'Unable to bootstrap|SaslAuthenticationFailed'):
            KafkaAdminClient(**common, **settings, bootstrap_timeout_ms=500)


def test_aiokafka(guarded):
    async def send(**login):
        producer = AIOKafkaProducer(bootstrap_servers=guarded.address, security_protocol='SASL_PLAINTEXT', **login)
        try:
            await producer.start()
            return (await producer.send_and_wait('events', b'x')).offset
        finally:
            await producer.stop()
    plain = {'sasl_mechanism': 'PLAIN', 'sasl_plain_username': 'alice'}
    assert asyncio.run(send(sasl_mechanism='OAUTHBEARER', sasl_oauth_token_provider=Token(guarded.token()))) == 0
    assert asyncio.run(send(**plain, sasl_plain_password=PASSWORD)) == 1
    with pytest.raises(AioKafkaError, match=r'Unable to bootstrap|Invalid username or password'):
        asyncio.run(send(**plain, sasl_plain_password='wrong'))


def test_our_client_reads_a_token_from_a_file_and_keys_change_while_the_broker_runs(guarded, tmp_path):
    file = tmp_path / 'token'
    settings = {'sasl.mechanism': 'OAUTHBEARER', 'sasl.oauthbearer.token.endpoint.url': file.as_uri()}

    def logs_in(token):
        file.write_text(token)
        cluster = guarded.client(settings)
        try:
            return bool(cluster.refresh(()).cluster_id)
        except OurError as error:
            assert 'invalid_token' in str(error)
            return False
        finally:
            cluster.close()
    assert logs_in(guarded.token())
    assert not logs_in(guarded.token(lifetime_s=-60))
    guarded.add_key('two', ECKey.generate_key('P-256'))
    until(lambda: logs_in(guarded.token('two', 'ES256')))
    del guarded.keys['one']
    guarded.add_key('three', ECKey.generate_key('P-384'))
    until(lambda: logs_in(guarded.token('three', 'ES384')))


def test_every_command_takes_its_login_from_a_file(guarded, tmp_path):
    file = tmp_path / 'client.properties'
    password = PASSWORD.replace('"', '\\\\"')
    file.write_text('security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config='
                    f'{MODULES}.plain.PlainLoginModule required username="alice" password="{password}";\n')

    def run(name, *arguments, config=file):
        return run_in_process(name, '--bootstrap-server', guarded.address, '--command-config', config, *arguments)
    commands = [('topics', '--create', '--topic', 'events'), ('topics', '--list'),
                ('configs', '--describe', '--topic', 'events'),
                ('groups', '--list'), ('transactions', 'list'), ('txn-state', '--table'),
                ('transactions', 'timeline', 'events:0'), ('transactions', 'history', 'none'),
                ('consume', '--topic', 'events', '--from-beginning', '--timeout-ms', '300')]
    for command in commands:
        done = run(*command)
        assert done.returncode in (0, 1) and 'AUTHENTICATION' not in done.stderr, (command, done)
    assert 'events' in run('topics', '--list').stdout
    wrong = tmp_path / 'wrong.properties'
    wrong.write_text(file.read_text().replace('wonder', 'thunder'))
    for command in commands:
        done = run(*command, config=wrong)
        assert done.returncode == 1 and 'SASL_AUTHENTICATION_FAILED' in done.stderr, (command, done)
        assert 'thunder' not in done.stdout + done.stderr


def test_a_producer_goes_on_over_many_sessions(start_broker, tmp_path, monkeypatch):
    """The broker closes a connection whose session has ended. This producer does not retry, so it would lose the
    records in flight."""
    guarded = Guarded(start_broker, tmp_path, **{'connections.max.reauth.ms': str(SESSION_MS)})
    logins = []
    log_in = Connection._authenticate
    monkeypatch.setattr(Connection, '_authenticate', lambda self: (logins.append(self), log_in(self)))
    cluster = guarded.client(guarded.plain() | {'enable.idempotence': 'false', 'retries': '0', 'linger.ms': '0'})
    Admin(cluster).create_topics([NewTopic('events', 1, 1)])
    producer, sent = Producer(cluster), 0
    while not logins or max(map(logins.count, logins)) < 4:
        for _ in range(20):
            producer.send('events', b'x', partition=0)
            sent += 1
        producer.flush()
    assert Admin(cluster).list_offsets({('events', 0): LATEST})[('events', 0)].offset == sent
    cluster.close()
