"""The client against Apache Kafka: listeners that ask for SASL and TLS, and groups of the new protocol."""
import hashlib
import socket

import pytest
from apache_kafka import LiveKafka
from certificates import make_certificates
from confluent_kafka import Consumer, Producer

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.connection import ClientError
from kbroker.client.errors import check
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol import messages
from kbroker_tools.live_view import LiveView

pytestmark = pytest.mark.jvm

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule'
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule'
MECHANISMS = {
    'SASL_PLAINTEXT': {'PLAIN': f'{PLAIN} required user_alice="wonder land";', 'SCRAM-SHA-256': f'{SCRAM} required;'},
    'SASL_SSL': {'SCRAM-SHA-512': f'{SCRAM} required;'},
}
SCRAM_CODES = {'sha256': 1, 'sha512': 2}
PASSWORD = 'wonder "land"'


def free_port():
    with socket.create_server(('127.0.0.1', 0)) as probe:
        return probe.getsockname()[1]


class Guarded:
    """Apache Kafka with a listener of each kind; `addresses` by security protocol."""

    def __init__(self, directory):
        self.certificates = make_certificates(directory)
        self.kafka = LiveKafka(directory / 'data')
        self.addresses = {'PLAINTEXT': self.kafka.address} | {
            protocol: f'127.0.0.1:{free_port()}' for protocol in ('SASL_PLAINTEXT', 'SSL', 'SASL_SSL')}
        listeners = self.addresses | {'CONTROLLER': f'127.0.0.1:{free_port()}'}
        self.kafka.settings = {
            'listeners': ','.join(f'{name}://{address}' for name, address in listeners.items()),
            'controller.quorum.voters': f'1@{listeners["CONTROLLER"]}',
            'listener.security.protocol.map': ','.join(f'{name}:{name}' for name in self.addresses)
                                              + ',CONTROLLER:PLAINTEXT',
            'group.initial.rebalance.delay.ms': '0',
            'ssl.keystore.type': 'PEM', 'ssl.keystore.location': str(self.certificates / 'server.pem'),
            'ssl.truststore.type': 'PEM', 'ssl.truststore.location': str(self.certificates / 'ca.pem'),
            'listener.name.ssl.ssl.client.auth': 'required',
        }
        for listener, mechanisms in MECHANISMS.items():
            prefix = f'listener.name.{listener.lower()}'
            self.kafka.settings[f'{prefix}.sasl.enabled.mechanisms'] = ','.join(mechanisms)
            for mechanism, module in mechanisms.items():
                self.kafka.settings[f'{prefix}.{mechanism.lower()}.sasl.jaas.config'] = module

    def add_user(self, name, password):
        request = messages.AlterUserScramCredentialsRequest
        cluster = Cluster(ClientConfig.load(self.addresses['PLAINTEXT']))
        for digest, code in SCRAM_CODES.items():
            salted = hashlib.pbkdf2_hmac(digest, password.encode(), b'salt', 4096)
            answer = cluster.controller().call(request(upsertions=[request.ScramCredentialUpsertion(
                name=name, mechanism=code, iterations=4096, salt=b'salt', salted_password=salted)]))
            for row in answer.results:
                check(row.error_code, row.user, row.error_message)
        cluster.close()

    def connect(self, protocol, **settings):
        names = {'security.protocol': protocol, 'ssl.truststore.type': 'PEM',
                 'ssl.truststore.location': str(self.certificates / 'ca.pem')}
        names |= {name.replace('_', '.'): value for name, value in settings.items()}
        return Cluster(ClientConfig.from_settings({'bootstrap.servers': self.addresses[protocol]} | names))


@pytest.fixture(scope='module')
def guarded(tmp_path_factory):
    guarded = Guarded(tmp_path_factory.mktemp('guarded'))
    guarded.kafka.start()
    guarded.add_user('alice', PASSWORD)
    yield guarded
    guarded.kafka.kill9()


def jaas(module, password):
    escaped = password.replace('"', '\\"')
    return f'{module} required username="alice" password="{escaped}";'


@pytest.mark.parametrize(('protocol', 'mechanism', 'module', 'password'), [
    ('SASL_PLAINTEXT', 'PLAIN', PLAIN, 'wonder land'),
    ('SASL_PLAINTEXT', 'SCRAM-SHA-256', SCRAM, PASSWORD),
    ('SASL_SSL', 'SCRAM-SHA-512', SCRAM, PASSWORD)])
def test_each_mechanism_opens_the_door_and_a_wrong_password_does_not(guarded, protocol, mechanism, module, password):
    cluster = guarded.connect(protocol, sasl_mechanism=mechanism, sasl_jaas_config=jaas(module, password))
    # The broker learns of the user a moment after the controller does.
    answer = cluster.retrying(cluster.refresh, 'waiting for the user', {ErrorCode.SASL_AUTHENTICATION_FAILED})
    assert answer.cluster_id
    cluster.close()
    cluster = guarded.connect(protocol, sasl_mechanism=mechanism, sasl_jaas_config=jaas(module, 'wrong-horse'))
    with pytest.raises(KafkaError, match=r"user 'alice': SASL_AUTHENTICATION_FAILED: Auth") as caught:
        cluster.retrying(cluster.refresh, 'describing')
    assert 'wrong-horse' not in str(caught.value)


def test_a_mechanism_that_is_not_enabled_is_told_with_those_that_are(guarded):
    cluster = guarded.connect('SASL_SSL', sasl_mechanism='PLAIN', sasl_username='alice', sasl_password='wonder land')
    with pytest.raises(KafkaError, match=r'found sasl\.mechanism PLAIN, the listener offers SCRAM-SHA-512'):
        cluster.any()


def test_tls_asks_for_a_certificate_of_the_client(guarded):
    cluster = guarded.connect('SSL', ssl_keystore_type='PEM',
                              ssl_keystore_location=str(guarded.certificates / 'client.pem'))
    assert cluster.refresh(()).cluster_id
    cluster.close()
    with pytest.raises(ClientError, match='client certificate'):
        guarded.connect('SSL').refresh(())


@pytest.mark.parametrize(('spoken', 'listener', 'words'), [
    ('PLAINTEXT', 'SSL', 'answers with TLS|closed the connection instead of answering ApiVersions'),
    ('PLAINTEXT', 'SASL_PLAINTEXT', 'closed the connection instead of answering Metadata.*ask for SASL'),
    ('SSL', 'PLAINTEXT', 'the TLS handshake failed.*may not speak TLS'),
])
def test_the_wrong_protocol_for_a_listener_is_told(guarded, spoken, listener, words):
    cluster = Cluster(ClientConfig.from_settings({
        'bootstrap.servers': guarded.addresses[listener], 'security.protocol': spoken}))
    with pytest.raises(ClientError, match=words) as caught:
        cluster.retrying(cluster.refresh, 'describing')
    assert '\n' not in str(caught.value)


def test_a_group_of_the_consumer_protocol_is_described(guarded):
    address = guarded.addresses['PLAINTEXT']
    view = LiveView(ClientConfig.load(address))
    assert Admin(view.cluster).create_topics([NewTopic('new_protocol', 2, 1)]) == {'new_protocol': None}
    producer = Producer({'bootstrap.servers': address})
    producer.produce('new_protocol', b'x', partition=0)
    producer.flush()
    consumer = Consumer({'bootstrap.servers': address, 'group.id': 'modern', 'group.protocol': 'consumer',
                         'auto.offset.reset': 'earliest', 'client.id': 'reader'})
    consumer.subscribe(['new_protocol'])
    while consumer.poll(0.1) is None:
        pass
    found = view.group('modern')
    assert (found.state, found.protocol_type, found.protocol) == ('Stable', 'consumer', 'uniform')
    (member,) = found.members
    assert (member.client_id, member.assignment) == ('reader', (('new_protocol', 0), ('new_protocol', 1)))
    consumer.close()
    assert [(row.topic, row.partition, row.offset) for row in view.group_offsets('modern')] == [('new_protocol', 0, 1)]
    view.close()
