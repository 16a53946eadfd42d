"""Unmodified clients log in by every mechanism that they support, in plain text and over TLS. They report wrong
passwords and renew their logins. Covers KIP-103.
"""
import asyncio
import hashlib
import ssl
import time

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AiokafkaTokens
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError
from support.brokers.secured_broker import PASSWORD, unsecured_token

PROTOCOLS = ('SASL_PLAINTEXT', 'SASL_SSL')
WITH_PASSWORD = ('PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512')
LIMIT_S = 120


def librdkafka(secured, protocol, mechanism, password=PASSWORD):
    settings = {'bootstrap.servers': secured.plan.addresses[protocol], 'security.protocol': protocol, 'log_level': 0,
                'ssl.ca.location': str(secured.plan.certificates / 'ca.pem'), 'sasl.mechanism': mechanism}
    if mechanism == 'OAUTHBEARER':
        return settings | {'oauth_cb': lambda _: (unsecured_token('alice'), time.time() + 3600)}
    return settings | {'sasl.username': 'alice', 'sasl.password': password}


@pytest.mark.parametrize('protocol', PROTOCOLS)
@pytest.mark.parametrize('mechanism', [*WITH_PASSWORD, 'OAUTHBEARER'])
def test_librdkafka_produces_after_a_login(secured, protocol, mechanism):
    producer = Producer(librdkafka(secured, protocol, mechanism))
    failures = []
    producer.produce('records', mechanism.encode(), on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(LIMIT_S) == 0
    assert failures == [None]


@pytest.mark.parametrize('mechanism', WITH_PASSWORD)
def test_librdkafka_reports_a_wrong_password(secured, mechanism):
    errors = []
    producer = Producer(librdkafka(secured, 'SASL_PLAINTEXT', mechanism, 'wrong') | {'error_cb': errors.append})
    end = time.monotonic() + LIMIT_S
    while not errors and time.monotonic() < end:
        producer.poll(0.1)
    assert errors[0].code() == KafkaError._AUTHENTICATION


def kafka_python(secured, protocol, mechanism, password=PASSWORD):
    context = ssl.create_default_context(cafile=str(secured.plan.certificates / 'ca.pem'))
    return {'bootstrap_servers': secured.plan.addresses[protocol], 'security_protocol': protocol,
            'ssl_context': context, 'sasl_mechanism': mechanism, 'sasl_plain_username': 'alice',
            'sasl_plain_password': password}


@pytest.mark.parametrize('protocol', PROTOCOLS)
@pytest.mark.parametrize('mechanism', WITH_PASSWORD)
def test_kafka_python_produces_after_a_login(secured, protocol, mechanism):
    producer = KafkaProducer(**kafka_python(secured, protocol, mechanism))
    assert producer.send('records', mechanism.encode()).get(LIMIT_S).topic == 'records'
    producer.close()


@pytest.mark.parametrize('mechanism', WITH_PASSWORD)
def test_kafka_python_reports_a_wrong_password(secured, mechanism):
    with pytest.raises(KafkaPythonError):
        KafkaProducer(**kafka_python(secured, 'SASL_PLAINTEXT', mechanism, 'wrong'), bootstrap_timeout_ms=2000)


class Tokens(AiokafkaTokens):
    async def token(self):
        return unsecured_token('alice')


async def produce_with_aiokafka(secured, protocol, mechanism, password=PASSWORD):
    context = ssl.create_default_context(cafile=str(secured.plan.certificates / 'ca.pem'))
    login = ({'sasl_oauth_token_provider': Tokens()} if mechanism == 'OAUTHBEARER'
             else {'sasl_plain_username': 'alice', 'sasl_plain_password': password})
    producer = AIOKafkaProducer(bootstrap_servers=secured.plan.addresses[protocol], security_protocol=protocol,
                                ssl_context=context if protocol == 'SASL_SSL' else None, sasl_mechanism=mechanism,
                                **login)
    try:
        await producer.start()
        await producer.send_and_wait('records', mechanism.encode())
    finally:
        await producer.stop()


@pytest.mark.parametrize('protocol', PROTOCOLS)
@pytest.mark.parametrize('mechanism', [*WITH_PASSWORD, 'OAUTHBEARER'])
def test_aiokafka_produces_after_a_login(secured, protocol, mechanism):
    asyncio.run(produce_with_aiokafka(secured, protocol, mechanism))


@pytest.mark.parametrize('mechanism', WITH_PASSWORD)
def test_aiokafka_reports_a_wrong_password(secured, mechanism):
    with pytest.raises(AiokafkaError):
        asyncio.run(produce_with_aiokafka(secured, 'SASL_PLAINTEXT', mechanism, 'wrong'))


def test_librdkafka_renews_its_login_and_loses_no_message(secured):
    failures, sent = [], 0
    settings = librdkafka(secured, 'SASL_PLAINTEXT', 'PLAIN')
    AdminClient(settings).list_topics(timeout=LIMIT_S)
    producer = Producer(settings)
    renewals, end = len(secured.logins('reauthentication')), time.monotonic() + LIMIT_S
    while len(secured.logins('reauthentication')) < renewals + 2 and time.monotonic() < end:
        producer.produce('renewed', str(sent).encode(), on_delivery=lambda error, _: failures.append(error))
        producer.poll(0.02)
        sent += 1
    assert producer.flush(LIMIT_S) == 0
    assert failures == [None] * sent
    assert {line['outcome'] for line in secured.logins('reauthentication')} == {'ok'}
    consumer = Consumer(settings | {'group.id': 'renewed', 'auto.offset.reset': 'earliest'})
    consumer.subscribe(['renewed'])
    found = []
    while len(found) < sent:
        messages = consumer.consume(sent, timeout=LIMIT_S)
        assert messages
        found += [int(message.value()) for message in messages]
    consumer.close()
    assert found == list(range(sent))


def test_the_audit_names_users_and_mechanisms(secured):
    logins = secured.logins()
    assert {line['mechanism'] for line in logins} >= set(WITH_PASSWORD)
    assert {line['principal'] for line in logins if line['outcome'] == 'ok'} == {'User:alice'}
    assert hashlib.sha256(PASSWORD.encode()).hexdigest() not in str(logins)
