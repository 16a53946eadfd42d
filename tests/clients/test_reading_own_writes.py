"""A client reads the records that the broker has acknowledged to it, with acks=1 too."""
import confluent_kafka
import kafka
import pytest
from behaviours import LIMIT_S
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ROUNDS = 30
TOPIC = 'orders'


@pytest.fixture
def admin(broker):
    admin = AdminClient({'bootstrap.servers': broker.address})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(LIMIT_S)
    return admin


def test_librdkafka_finds_and_deletes_what_it_has_just_written(broker, admin):
    producer = confluent_kafka.Producer({'bootstrap.servers': broker.address, 'acks': 1, 'linger.ms': 0})
    consumer = confluent_kafka.Consumer({'bootstrap.servers': broker.address, 'group.id': 'g'})
    partition = TopicPartition(TOPIC, 0)
    found = []
    for number in range(ROUNDS):
        producer.produce(TOPIC, b'value', partition=0)
        assert producer.flush(LIMIT_S) == 0
        found.append(consumer.get_watermark_offsets(partition, LIMIT_S)[1])
        if number % 2:
            deleted = admin.delete_records([TopicPartition(TOPIC, 0, number + 1)])
            (result,) = deleted.values()
            assert result.result(LIMIT_S).low_watermark == number + 1
    consumer.close()
    assert found == [*range(1, ROUNDS + 1)]


def test_kafka_python_finds_and_reads_what_it_has_just_written(broker, admin):
    producer = kafka.KafkaProducer(bootstrap_servers=broker.address, acks=1)
    partition = kafka.TopicPartition(TOPIC, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.address, auto_offset_reset='earliest')
    consumer.assign([partition])
    found = []
    for _ in range(ROUNDS):
        producer.send(TOPIC, b'value', partition=0).get(LIMIT_S)
        found.append(consumer.end_offsets([partition])[partition])
    assert found == [*range(1, ROUNDS + 1)]
    read = []
    while len(read) < ROUNDS:
        read += consumer.poll(1000 * LIMIT_S).get(partition, [])
    producer.close()
    consumer.close()
