"""librdkafka under quotas reports throttling to its program, and loses no message."""
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.client.admin import Admin
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig

pytestmark = pytest.mark.timeout(600)

LIMIT_S = 120
RATE = 1_000_000
VALUE_BYTES = 10_000
MESSAGES = 500      # 5 MB: 3 s more than a rate of 1 MB a second lets pass in its 2 s
EXPECTED = {number.to_bytes(4, 'big') for number in range(MESSAGES)}


@pytest.fixture
def broker(start_broker):
    return start_broker({'quota.window.num': '3'})


def limit(address, client_id, **quotas):
    cluster = Cluster(ClientConfig.load(address))
    assert Admin(cluster).alter_client_quotas([('client-id', client_id)], quotas) is None
    cluster.close()


def create_topic(address):
    admin = AdminClient({'bootstrap.servers': address})
    admin.create_topics([NewTopic('orders', 1)])['orders'].result()


def test_a_producer_above_its_quota_is_notified_and_loses_nothing(broker):
    create_topic(broker.address)
    limit(broker.address, 'greedy', producer_byte_rate=RATE)
    events, failures = [], []
    producer = confluent_kafka.Producer({
        'bootstrap.servers': broker.address, 'client.id': 'greedy', 'linger.ms': 5, 'batch.size': 200_000,
        'throttle_cb': events.append})
    for number in range(MESSAGES):
        producer.produce('orders', number.to_bytes(4, 'big') + bytes(VALUE_BYTES), partition=0,
                         on_delivery=lambda error, _: error and failures.append(error))
        producer.poll(0)
    assert producer.flush(LIMIT_S) == 0 and failures == []
    assert max(event.throttle_time for event in events) > 0
    assert read_all(broker.address, 'modest')[0] == EXPECTED


def test_a_consumer_above_its_quota_is_notified_and_loses_nothing(broker):
    create_topic(broker.address)
    limit(broker.address, 'greedy', consumer_byte_rate=RATE)
    producer = confluent_kafka.Producer({'bootstrap.servers': broker.address, 'batch.size': 200_000})
    for number in range(MESSAGES):
        producer.produce('orders', number.to_bytes(4, 'big') + bytes(VALUE_BYTES), partition=0)
        producer.poll(0)
    assert producer.flush(LIMIT_S) == 0
    values, events = read_all(broker.address, 'greedy')
    assert values == EXPECTED
    assert max(event.throttle_time for event in events) > 0


def read_all(address, client_id):
    """Read all messages. Return the first four bytes of each, and the throttling events that librdkafka reported."""
    events = []
    consumer = confluent_kafka.Consumer({
        'bootstrap.servers': address, 'group.id': 'readers', 'client.id': client_id, 'throttle_cb': events.append,
        'fetch.message.max.bytes': 2_000_000, 'check.crcs': True})
    consumer.assign([confluent_kafka.TopicPartition('orders', 0, 0)])
    values = []
    while len(values) < MESSAGES:
        message = consumer.poll(LIMIT_S)
        assert message is not None and message.error() is None
        values.append(message.value()[:4])
    consumer.close()
    assert len(values) == len(set(values))
    return set(values), events
