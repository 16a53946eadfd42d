"""kafka-python."""
import kafka
import pytest
from behaviours import LIMIT_S, Behaviours, Client, Consumer, Producer, Restarts, until
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.structs import OffsetAndMetadata

pytestmark = pytest.mark.timeout(600)


class KafkaPythonProducer(Producer):
    def __init__(self, **settings):
        self._sent = []
        self._producer = kafka.KafkaProducer(**settings)
        if settings.get('transactional_id'):
            self._producer.init_transactions()

    def send(self, topic, partition, value, key=None, headers=()):
        self._sent.append(self._producer.send(topic, value.encode(), key and key.encode(), list(headers), partition))

    def flush(self):
        self._producer.flush(LIMIT_S)
        for future in self._sent:
            future.get(LIMIT_S)
        self._sent.clear()

    def begin(self):
        self._producer.begin_transaction()

    def send_offsets(self, offsets, consumer):
        positions = {TopicPartition(*place): OffsetAndMetadata(offset, '', -1) for place, offset in offsets.items()}
        self._producer.send_offsets_to_transaction(positions, consumer.group_metadata())

    def commit(self):
        self._producer.commit_transaction()

    def abort(self):
        self._producer.abort_transaction()
        self._sent.clear()

    def close(self):
        self._producer.close(LIMIT_S)


class KafkaPythonConsumer(Consumer):
    def __init__(self, **settings):
        self._consumer = kafka.KafkaConsumer(**settings)

    def subscribe(self, topic):
        self._consumer.subscribe([topic])

    def poll(self):
        return [(r.partition, r.offset, r.key and r.key.decode(), r.value.decode(), list(r.headers))
                for records in self._consumer.poll(200).values() for r in records]

    def assignment(self):
        return {(found.topic, found.partition) for found in self._consumer.assignment()}

    def read_all(self, topic, partitions):
        places = [TopicPartition(topic, partition) for partition in partitions]
        self._consumer.assign(places)
        self._consumer.seek_to_beginning()
        ends = self._consumer.end_offsets(places)
        records = []

        def ended():
            records.extend(self.poll())
            return all(self._consumer.position(place) >= end for place, end in ends.items())

        until(ended)
        return records

    def commit(self):
        self._consumer.commit()

    def committed(self, topic, partition):
        return self._consumer.committed(TopicPartition(topic, partition))

    def group_metadata(self):
        return self._consumer.group_metadata()

    def close(self):
        self._consumer.close()


class KafkaPythonClient(Client):
    fenced = (kafka.errors.ProducerFencedError, kafka.errors.InvalidProducerEpochError)
    errors = (kafka.errors.KafkaError,)

    def create_topic(self, topic, partitions):
        admin = KafkaAdminClient(bootstrap_servers=self.address)
        admin.create_topics([NewTopic(topic, partitions, 1)])
        admin.close()

    def producer(self, *, acks='all', idempotent=True):
        return KafkaPythonProducer(bootstrap_servers=self.address, acks=acks, enable_idempotence=idempotent)

    def transactional(self, transactional_id, timeout_ms=60_000):
        return KafkaPythonProducer(bootstrap_servers=self.address, transactional_id=transactional_id,
                                   transaction_timeout_ms=timeout_ms)

    def consumer(self, group, isolation='read_uncommitted'):
        return KafkaPythonConsumer(bootstrap_servers=self.address, group_id=group, isolation_level=isolation,
                                   auto_offset_reset='earliest', enable_auto_commit=False, session_timeout_ms=10_000,
                                   heartbeat_interval_ms=500)


class TestKafkaPython(Behaviours):
    library = KafkaPythonClient


class TestKafkaPythonOverRestarts(Restarts):
    library = KafkaPythonClient
