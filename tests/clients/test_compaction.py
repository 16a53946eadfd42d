"""A consumer reads a topic while the broker's worker thread compacts it."""
import time

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

LIMIT_S = 120
KEYS = 10
WRITES = 1000


@pytest.fixture
def compacted(start_broker):
    broker = start_broker({'log.cleaner.backoff.ms': '50'})
    config = {'cleanup.policy': 'compact', 'segment.ms': '1000', 'min.cleanable.dirty.ratio': '0.01'}
    admin = AdminClient({'bootstrap.servers': broker.address})
    admin.create_topics([NewTopic('latest', 1, 1, config=config)])['latest'].result(LIMIT_S)
    return broker


def write(address):
    """Write each key many times, with timestamps a second apart, so that the broker rolls segments."""
    producer = confluent_kafka.Producer({'bootstrap.servers': address, 'enable.idempotence': True, 'linger.ms': 0})
    now_ms = int(time.time() * 1000)
    for number in range(WRITES):
        producer.produce('latest', str(number), key=str(number % KEYS), timestamp=now_ms - 1000 * (WRITES - number) * 2)
        if number % 20 == 0:
            producer.flush(LIMIT_S)
    assert producer.flush(LIMIT_S) == 0


def read_all(address):
    """Return (offset, key, value) of each record that is in the topic now."""
    config = {'bootstrap.servers': address, 'group.id': 'readers', 'enable.partition.eof': True}
    consumer = confluent_kafka.Consumer(config)
    consumer.assign([confluent_kafka.TopicPartition('latest', 0, 0)])
    found = []
    while True:
        message = consumer.poll(LIMIT_S)
        assert message is not None
        if message.error() is not None and message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
            consumer.close()
            return found
        found.append((message.offset(), message.key().decode(), message.value().decode()))


def test_a_consumer_sees_the_last_value_of_each_key_while_and_after_the_log_is_compacted(compacted):
    expected = {str(number % KEYS): str(number) for number in range(WRITES)}
    write(compacted.address)
    deadline = time.monotonic() + LIMIT_S
    found = read_all(compacted.address)
    while len(found) > WRITES / 2:
        assert time.monotonic() < deadline, f'{len(found)} records remain'
        assert {key: value for _, key, value in found} == expected
        found = read_all(compacted.address)
    compacted.stop()
    compacted.start()
    found = read_all(compacted.address)
    assert {key: value for _, key, value in found} == expected
    assert found[-1][0] == WRITES - 1
