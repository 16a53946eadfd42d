"""The tests of `behaviours.py` with aiokafka. Each call runs aiokafka's event loop until the call is done."""
import asyncio

import aiokafka
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from behaviours import LIMIT_S, Behaviours, Client, Consumer, Producer, Restarts, until

pytestmark = pytest.mark.timeout(600)


class AiokafkaProducer(Producer):
    def __init__(self, run, settings):
        self._run = run
        self._sent = []

        async def start():
            producer = aiokafka.AIOKafkaProducer(**settings)
            await producer.start()
            return producer

        self._producer = run(start())

    def send(self, topic, partition, value, key=None, headers=()):
        sending = self._producer.send(topic, value.encode(), key and key.encode(), partition, headers=list(headers))
        self._sent.append(self._run(sending))

    def flush(self):
        self._run(self._producer.flush())
        for future in self._sent:
            self._run(asyncio.wait_for(future, LIMIT_S))
        self._sent.clear()

    def begin(self):
        self._run(self._producer.begin_transaction())

    def send_offsets(self, offsets, consumer):
        positions = {TopicPartition(*place): offset for place, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(positions, consumer.group))

    def commit(self):
        self._run(self._producer.commit_transaction())

    def abort(self):
        self._run(self._producer.abort_transaction())
        self._sent.clear()

    def close(self):
        self._run(self._producer.stop())


class AiokafkaConsumer(Consumer):
    def __init__(self, run, group, settings):
        self._run = run
        self.group = group

        async def start():
            consumer = aiokafka.AIOKafkaConsumer(group_id=group, **settings)
            await consumer.start()
            return consumer

        self._consumer = run(start())

    def subscribe(self, topic):
        self._consumer.subscribe([topic])

    def poll(self):
        found = self._run(self._consumer.getmany(timeout_ms=200))
        return [(r.partition, r.offset, r.key and r.key.decode(), r.value.decode(), list(r.headers))
                for records in found.values() for r in records]

    def assignment(self):
        return {(found.topic, found.partition) for found in self._consumer.assignment()}

    def read_all(self, topic, partitions):
        places = [TopicPartition(topic, partition) for partition in partitions]

        async def begin():
            self._consumer.assign(places)
            await self._consumer.seek_to_beginning()
            return await self._consumer.end_offsets(places)

        ends = self._run(begin())
        records = []

        def ended():
            records.extend(self.poll())
            return all(self._run(self._consumer.position(place)) >= end for place, end in ends.items())

        until(ended)
        return records

    def commit(self):
        self._run(self._consumer.commit())

    def committed(self, topic, partition):
        return self._run(self._consumer.committed(TopicPartition(topic, partition)))

    def close(self):
        self._run(self._consumer.stop())


class AiokafkaClient(Client):
    fenced = (aiokafka.errors.ProducerFenced, aiokafka.errors.InvalidProducerEpoch)
    errors = (aiokafka.errors.KafkaError,)

    def __init__(self, address):
        super().__init__(address)
        self._runner = asyncio.Runner()
        self._run = self._runner.run

    def close(self):
        self._runner.close()

    def create_topic(self, topic, partitions):
        async def create():
            admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                await admin.create_topics([NewTopic(topic, partitions, 1)])
            finally:
                await admin.close()

        self._run(create())

    def producer(self, *, acks='all', idempotent=True):
        return AiokafkaProducer(self._run, {'bootstrap_servers': self.address, 'acks': acks,
                                            'enable_idempotence': idempotent})

    def transactional(self, transactional_id, timeout_ms=60_000):
        return AiokafkaProducer(self._run, {'bootstrap_servers': self.address, 'transactional_id': transactional_id,
                                            'transaction_timeout_ms': timeout_ms})

    def consumer(self, group, isolation='read_uncommitted'):
        return AiokafkaConsumer(self._run, group, {
            'bootstrap_servers': self.address, 'isolation_level': isolation, 'auto_offset_reset': 'earliest',
            'enable_auto_commit': False, 'session_timeout_ms': 10_000, 'heartbeat_interval_ms': 500})


class TestAiokafka(Behaviours):
    library = AiokafkaClient


class TestAiokafkaOverRestarts(Restarts):
    library = AiokafkaClient
