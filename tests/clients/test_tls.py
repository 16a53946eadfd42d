"""Unmodified clients over TLS and in plain text. Metadata returns the address of the listener that the client uses."""
import json
import subprocess

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.runner.free_ports import free_port


@pytest.fixture
def secured(start_broker, certificates):
    """Start a broker with a plain listener and a TLS listener. Return client settings for each."""
    plain, tls = free_port(), free_port()
    start_broker({
        'listeners': f'PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls}',
        'advertised.listeners': f'PLAINTEXT://127.0.0.1:{plain},SSL://localhost:{tls}',
        'ssl.keystore.location': str(certificates / 'server.pem'), 'ssl.client.auth': 'required',
        'ssl.truststore.location': str(certificates / 'ca.pem')})
    return ({'bootstrap.servers': f'127.0.0.1:{plain}'},
            {'bootstrap.servers': f'localhost:{tls}', 'security.protocol': 'SSL',
             'ssl.ca.location': str(certificates / 'ca.pem'),
             'ssl.certificate.location': str(certificates / 'client.crt'),
             'ssl.key.location': str(certificates / 'client.key')})


def test_transactions_and_groups_work_over_tls_and_each_listener_names_itself(secured):
    _, tls = secured
    admin = AdminClient(tls)
    admin.create_topics([NewTopic('events', 1)])['events'].result()
    for settings in secured:
        (broker,) = AdminClient(settings).list_topics(timeout=180).brokers.values()
        assert f'{broker.host}:{broker.port}' == settings['bootstrap.servers']

    producer = Producer(tls | {'transactional.id': 'over-tls'})
    producer.init_transactions(120)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for number in range(300):
            producer.produce('events', f'{end.__name__} {number}'.encode() + bytes(5000))
        end(30)
    for settings in secured:
        consumer = Consumer(settings | {'group.id': settings.get('security.protocol', 'plain'),
                                        'auto.offset.reset': 'earliest'})
        consumer.subscribe(['events'])
        messages = []
        while len(messages) < 300:
            found = consumer.consume(300, timeout=180)
            assert found
            messages += found
        assert {message.value().split(b' ')[0] for message in messages} == {b'commit_transaction'}
        consumer.commit(asynchronous=False)
        assert consumer.committed([TopicPartition('events', 0)])[0].offset == messages[-1].offset() + 1
        consumer.close()


def test_a_client_without_a_certificate_is_not_served(secured):
    _, tls = secured
    without_key = {name: value for name, value in tls.items() if 'key' not in name and 'certificate' not in name}
    with pytest.raises(KafkaException):
        AdminClient(without_key | {'log_level': 0}).list_topics(timeout=2)


def test_openssl_and_the_broker_agree_on_the_newest_version(secured, certificates):
    _, tls = secured
    answer = subprocess.run(
        ['openssl', 's_client', '-connect', tls['bootstrap.servers'], '-CAfile', 'ca.pem', '-cert', 'client.crt',
         '-key', 'client.key', '-verify_return_error', '-brief'], cwd=certificates, input=b'', capture_output=True,
        timeout=180, check=False)
    assert b'TLSv1.3' in answer.stderr, answer.stderr


@pytest.mark.parametrize(('rules', 'certificate', 'principal'), [
    ('DEFAULT', 'client', 'User:CN=client'), (r'RULE:^CN=(.*)$/$1/U,DEFAULT', 'client', 'User:CLIENT'),
    (r'RULE:^CN=server$/x/', 'client', None), ('DEFAULT', None, 'User:ANONYMOUS')])
def test_the_certificate_names_the_client(start_broker, certificates, tmp_path, rules, certificate, principal):
    port, audit = free_port(), tmp_path / 'audit.log'
    broker = start_broker({
        'listeners': f'SSL://127.0.0.1:{port}', 'advertised.listeners': f'SSL://localhost:{port}',
        'ssl.keystore.location': str(certificates / 'server.pem'), 'ssl.client.auth': 'requested',
        'ssl.truststore.location': str(certificates / 'ca.pem'), 'ssl.principal.mapping.rules': rules,
        'kbroker.audit.log': str(audit)})
    settings = {'bootstrap.servers': f'localhost:{port}', 'security.protocol': 'SSL', 'log_level': 0,
                'ssl.ca.location': str(certificates / 'ca.pem')}
    if certificate is not None:
        settings |= {'ssl.certificate.location': str(certificates / f'{certificate}.crt'),
                     'ssl.key.location': str(certificates / f'{certificate}.key')}
    admin = AdminClient(settings)
    if principal is None:
        while 'login' not in audit.read_text():
            with pytest.raises(KafkaException):
                admin.list_topics(timeout=1)
    else:
        admin.create_topics([NewTopic('events', 1)])['events'].result(120)
    broker.stop()
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {line['outcome'] for line in lines if line['event'] == 'login'} == {
        'ok' if principal else 'SASL_AUTHENTICATION_FAILED'}
    assert {line['principal'] for line in lines if line['event'] == 'change'} == ({principal} if principal else set())
