"""Clients in Python with a broker of the test kit, which loses an acknowledgement and dies in a commit."""
import asyncio
from concurrent.futures import ThreadPoolExecutor

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest

pytestmark = pytest.mark.timeout(300)

LIMIT_S = 120


class ConfluentKafka:
    @staticmethod
    def send(address, topic, value):
        producer = confluent_kafka.Producer({'bootstrap.servers': address, 'enable.idempotence': True})
        producer.produce(topic, value)
        assert producer.flush(LIMIT_S) == 0

    @staticmethod
    def commit(address, topic, value):
        producer = confluent_kafka.Producer({'bootstrap.servers': address, 'transactional.id': 'shop'})
        producer.init_transactions(LIMIT_S)
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.commit_transaction(LIMIT_S)


class KafkaPython:
    @staticmethod
    def send(address, topic, value):
        producer = kafka_python.KafkaProducer(bootstrap_servers=address, enable_idempotence=True)
        producer.send(topic, value).get(LIMIT_S)
        producer.close()

    @staticmethod
    def commit(address, topic, value):
        producer = kafka_python.KafkaProducer(bootstrap_servers=address, transactional_id='shop')
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value)
        producer.commit_transaction()
        producer.close()


class Aiokafka:
    @staticmethod
    def send(address, topic, value):
        async def run():
            async with aiokafka.AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True) as producer:
                await producer.send_and_wait(topic, value)

        asyncio.run(run())

    @staticmethod
    def commit(address, topic, value):
        async def run():
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, transactional_id='shop')
            async with producer, producer.transaction():
                await producer.send_and_wait(topic, value)

        asyncio.run(run())


CLIENTS = pytest.mark.parametrize('client', [ConfluentKafka, KafkaPython, Aiokafka])


@CLIENTS
def test_a_record_whose_acknowledgement_is_lost_is_written_once(kafka, client):
    kafka.create_topic('payments')
    kafka.drop('reply', api='Produce', occurrence=1)
    client.send(kafka.bootstrap_servers, 'payments', b'10')
    assert kafka.values('payments') == [b'10']


@CLIENTS
def test_a_transaction_survives_a_crash_between_the_decision_to_commit_and_its_markers(kafka, client):
    kafka.create_topic('payments')
    with ThreadPoolExecutor() as threads:
        with kafka.hold('transaction.prepared') as held:
            commit = threads.submit(client.commit, kafka.bootstrap_servers, 'payments', b'10')
            held.wait()
            kafka.kill()
        kafka.start()
        commit.result(LIMIT_S)
    assert kafka.values('payments') == [b'10']
    assert kafka.transactions() == []
