"""TLS and SASL through the options of Spark's own connector. The same query works with the connector."""
import json

import pytest
from pyspark.errors import PySparkException
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.kafka.secured_kafka import OAUTH, PASSWORD, PLAIN, SCRAM, SecuredKafka, jaas
from support.runner.free_ports import free_port
from support.spark.ingest_topics import Writer, consumed, create_topic, ingested

from kbroker_tools.spark.failures import one_line
from kbroker_tools.spark.ingest import IngestJob
from kbroker_tools.spark.options import client_options

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

SASL = {
    'SASL_PLAINTEXT': {'sasl.mechanism': 'PLAIN', 'sasl.jaas.config': jaas(PLAIN, 'wonder land')},
    'SASL_SSL': {'sasl.mechanism': 'SCRAM-SHA-512', 'sasl.jaas.config': jaas(SCRAM, PASSWORD)},
}
COLUMNS = ['topic', 'partition', 'offset', 'key', 'value']


@pytest.fixture(scope='module')
def guarded(tmp_path_factory):
    guarded = SecuredKafka(tmp_path_factory.mktemp('guarded'))
    guarded.kafka.settings = PROMPT | guarded.kafka.settings | {
        'offsets.topic.replication.factor': '1', 'transaction.state.log.replication.factor': '1'}
    guarded.kafka.start()
    guarded.add_user('alice', PASSWORD)
    fill(guarded.addresses['PLAINTEXT'])
    yield guarded
    guarded.kafka.kill9()


def fill(address):
    create_topic(address, name='guarded')
    writer = Writer(address, 'guarded')
    writer.write('guarded', 30)
    writer.write('guarded', 10, 'abort')
    writer.write('guarded', 20)


def settings_of(protocol, certificates):
    """Return the options under the connector's names, without the prefix."""
    found = {'security.protocol': protocol, **SASL.get(protocol, {})}
    if protocol.endswith('SSL'):
        found |= {'ssl.truststore.type': 'PEM', 'ssl.truststore.location': str(certificates / 'ca.pem')}
    if protocol == 'SSL':
        found |= {'ssl.keystore.type': 'PEM', 'ssl.keystore.location': str(certificates / 'client.pem')}
    return found


def options_of(address, settings):
    return {'kafka.bootstrap.servers': address, 'subscribe': 'guarded', 'startingOffsets': 'earliest',
            'kafka.isolation.level': 'read_committed', **{f'kafka.{name}': value for name, value in settings.items()}}


def rows(spark, name, options):
    frame = spark.read.format(name).options(**options).load().select(*COLUMNS)
    return sorted((row.topic, row.partition, row.offset, bytes(row.key), bytes(row.value)) for row in frame.collect())


@pytest.mark.parametrize('protocol', ['SSL', 'SASL_PLAINTEXT', 'SASL_SSL'])
def test_a_guarded_kafka_is_read_with_the_options_of_the_connector(spark, guarded, protocol):
    options = options_of(guarded.addresses[protocol], settings_of(protocol, guarded.certificates))
    found = rows(spark, 'kbroker', options)
    assert len(found) == 50
    assert found == rows(spark, 'kafka', options)
    assert spark.read.format('kbroker').options(**options, table='batches').load().count() > 3


def test_a_token_opens_the_door_to_both(spark, guarded):
    token = f'{OAUTH} required unsecuredLoginStringClaim_sub="alice" unsecuredLoginListClaim_scope="|produce";'
    options = options_of(guarded.addresses['SASL_PLAINTEXT'], {
        'security.protocol': 'SASL_PLAINTEXT', 'sasl.mechanism': 'OAUTHBEARER', 'sasl.jaas.config': token})
    assert len(rows(spark, 'kbroker', options)) == 50
    assert rows(spark, 'kbroker', options) == rows(spark, 'kafka', options)


def test_an_ingest_takes_them_from_a_file(spark, guarded, tmp_path):
    file = tmp_path / 'client.properties'
    file.write_text(''.join(f'{name}={value}\n'.replace('\\', '\\\\')
                            for name, value in settings_of('SASL_SSL', guarded.certificates).items()))
    job = IngestJob(guarded.addresses['SASL_SSL'], ['guarded'], tmp_path / 'to', tmp_path / 'state',
                    options=client_options(file))
    assert job.run(spark).rows == 50
    assert ingested(tmp_path / 'to') == consumed(guarded.addresses['PLAINTEXT'], 'guarded')
    kept = ''.join(path.read_text() for path in tmp_path.rglob('*.json'))
    assert json.dumps(PASSWORD)[1:-1] not in kept and 'wonder' not in kept


def test_a_wrong_password_is_reported_without_the_password(spark, guarded):
    settings = {**settings_of('SASL_SSL', guarded.certificates), 'sasl.jaas.config': jaas(SCRAM, 'wrong-horse')}
    with pytest.raises(PySparkException) as caught:
        rows(spark, 'kbroker', options_of(guarded.addresses['SASL_SSL'], settings))
    assert "user 'alice': SASL_AUTHENTICATION_FAILED" in one_line(caught.value)
    assert 'wrong-horse' not in str(caught.value)


def test_a_store_in_the_format_of_java_is_refused_with_what_to_do(spark, guarded, tmp_path):
    (tmp_path / 'store.jks').write_bytes(b'\xfe\xed\xfe\xed')
    settings = {'security.protocol': 'SSL', 'ssl.truststore.location': str(tmp_path / 'store.jks'),
                'ssl.truststore.password': 'changeit'}
    with pytest.raises(PySparkException) as caught:
        rows(spark, 'kbroker', options_of(guarded.addresses['SSL'], settings))
    assert 'expected PEM: convert the store with keytool' in one_line(caught.value)


def test_kbroker_over_tls_with_a_certificate_of_the_client(spark, guarded, tmp_path):
    plain, tls = free_port(), free_port()
    broker = BrokerProcess(tmp_path / 'data', PROMPT | {
        'listeners': f'PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls}',
        'ssl.keystore.location': str(guarded.certificates / 'server.pem'), 'ssl.client.auth': 'required',
        'ssl.truststore.location': str(guarded.certificates / 'ca.pem')})
    broker.start()
    try:
        fill(f'127.0.0.1:{plain}')
        options = options_of(f'127.0.0.1:{tls}', settings_of('SSL', guarded.certificates))
        found = rows(spark, 'kbroker', options)
        assert len(found) == 50
        assert found == rows(spark, 'kafka', options)
    finally:
        broker.kill9()
    assert broker.tracebacks() == []
