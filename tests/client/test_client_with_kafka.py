"""The client with Apache Kafka: listeners that require SASL and TLS, and groups of KIP-848."""
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer
from support.kafka.secured_kafka import OAUTH, PASSWORD, PLAIN, REAUTHENTICATION_MS, SCRAM, SecuredKafka, jaas

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.connection import ClientError, Connection
from kbroker.client.oauth import take_token_source
from kbroker.protocol import messages
from kbroker_tools.cluster.live_view import LiveView

pytestmark = pytest.mark.jvm


@pytest.fixture(scope='module')
def guarded(tmp_path_factory):
    guarded = SecuredKafka(tmp_path_factory.mktemp('guarded'))
    guarded.kafka.start()
    guarded.add_user('alice', PASSWORD)
    yield guarded
    guarded.kafka.kill9()


@pytest.mark.parametrize(('protocol', 'mechanism', 'module', 'password'), [
    ('SASL_PLAINTEXT', 'PLAIN', PLAIN, 'wonder land'),
    ('SASL_PLAINTEXT', 'SCRAM-SHA-256', SCRAM, PASSWORD),
    ('SASL_SSL', 'SCRAM-SHA-512', SCRAM, PASSWORD)])
def test_each_mechanism_opens_the_door_and_a_wrong_password_does_not(guarded, protocol, mechanism, module, password):
    cluster = guarded.connect(protocol, sasl_mechanism=mechanism, sasl_jaas_config=jaas(module, password))
    # The broker learns about the user a moment after the controller.
    answer = cluster.retrying(cluster.refresh, 'waiting for the user', {ErrorCode.SASL_AUTHENTICATION_FAILED})
    assert answer.cluster_id
    cluster.close()
    cluster = guarded.connect(protocol, sasl_mechanism=mechanism, sasl_jaas_config=jaas(module, 'wrong-horse'))
    with pytest.raises(KafkaError, match=r"user 'alice': SASL_AUTHENTICATION_FAILED: Auth") as caught:
        cluster.retrying(cluster.refresh, 'describing')
    assert 'wrong-horse' not in str(caught.value)


def test_a_token_of_its_own_or_of_a_file_opens_the_door_and_one_without_the_scope_does_not(guarded, tmp_path):
    own = (f'{OAUTH} required unsecuredLoginStringClaim_sub="alice" unsecuredLoginListClaim_scope="|produce|consume" '
           'unsecuredLoginExtension_traceId="1";')
    cluster = guarded.connect('SASL_PLAINTEXT', sasl_mechanism='OAUTHBEARER', sasl_jaas_config=own)
    assert cluster.refresh(()).cluster_id
    cluster.close()

    token = tmp_path / 'token'
    token.write_text(take_token_source({}, {'unsecuredLoginStringClaim_sub': 'alice',
                                            'unsecuredLoginStringClaim_scope': 'produce'}, 1).token())
    cluster = guarded.connect('SASL_PLAINTEXT', sasl_mechanism='OAUTHBEARER', **{
        'sasl.oauthbearer.token.endpoint.url': token.as_uri()})
    assert cluster.refresh(()).cluster_id
    cluster.close()

    cluster = guarded.connect('SASL_PLAINTEXT', sasl_mechanism='OAUTHBEARER',
                              sasl_jaas_config=own.replace('produce', 'other'))
    with pytest.raises(KafkaError, match=r'OAUTHBEARER: SASL_AUTHENTICATION_FAILED: .*insufficient_scope'):
        cluster.any()


def test_a_session_is_renewed_with_requests_in_flight(guarded):
    clock = ManualClock()
    host, _, port = guarded.addresses['SASL_PLAINTEXT'].rpartition(':')
    config = ClientConfig.from_settings({
        'bootstrap.servers': guarded.addresses['SASL_PLAINTEXT'], 'security.protocol': 'SASL_PLAINTEXT',
        'sasl.mechanism': 'PLAIN', 'sasl.jaas.config': jaas(PLAIN, 'wonder land')})
    with closing(Connection(host, int(port), config, clock=clock)) as connection:
        for _ in range(2):
            connection.send(messages.MetadataRequest(topics=[]))
        clock.advance(REAUTHENTICATION_MS)
        connection.send(messages.MetadataRequest(topics=[]))
        assert connection.has_buffered and connection.in_flight == 3
        assert len({connection.receive().cluster_id for _ in range(3)}) == 1


def test_a_mechanism_that_is_not_enabled_is_reported_with_those_that_are(guarded):
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
def test_the_wrong_protocol_for_a_listener_is_reported(guarded, spoken, listener, words):
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
