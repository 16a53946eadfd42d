"""A librdkafka client that lacks some rights gets errors that it understands, and can do everything that its rights
allow. Covers KIP-11.
"""
import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from support.brokers.broker_process import PROMPT
from support.kafka.authorized_kafka import AuthorizedBroker, login_settings

LIMIT_S = 120
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.BROKER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
DENY = AclPermissionType.DENY


class Guarded:
    """A broker with the users admin, who may do everything, and alice, who needs ACLs."""

    def __init__(self, broker):
        self.broker = broker
        self.admin = AdminClient(self.settings('admin'))

    def settings(self, user='alice', **more):
        return login_settings(self.broker.address, user) | {
            name.replace('_', '.'): value for name, value in more.items()}

    def allow(self, operation, name, kind=TOPIC, permission=AclPermissionType.ALLOW):
        done(self.admin.create_acls([AclBinding(
            kind, name, ResourcePatternType.LITERAL, 'User:alice', '*', operation, permission)]))

    def create(self, *names):
        done(self.admin.create_topics([NewTopic(name, 1) for name in names]))
        producer = confluent_kafka.Producer(self.settings('admin'))
        for name in names:
            producer.produce(name, name, partition=0)
        assert producer.flush(LIMIT_S) == 0

    def consumer(self, **more):
        return confluent_kafka.Consumer(self.settings(
            group_id='readers', auto_offset_reset='earliest', enable_auto_commit=False) | more)


def done(futures):
    return [future.result(LIMIT_S) for future in futures.values()]


@pytest.fixture
def guarded(tmp_path):
    with AuthorizedBroker(tmp_path / 'data', PROMPT, ['admin', 'alice'], ['admin']) as broker:
        yield Guarded(broker)


def test_authorized_operations_follow_the_acls(guarded):
    guarded.create('orders')
    alice = AdminClient(guarded.settings())
    collection = confluent_kafka.TopicCollection(['orders'])
    with pytest.raises(KafkaException) as refused:
        done(alice.describe_topics(collection, include_authorized_operations=True))
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    guarded.allow(AclOperation.ALTER_CONFIGS, 'orders')
    guarded.allow(AclOperation.DELETE, 'orders')
    described, = done(alice.describe_topics(collection, include_authorized_operations=True))
    assert set(described.authorized_operations) == {
        AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS, AclOperation.DELETE, AclOperation.DESCRIBE}
    cluster = alice.describe_cluster(include_authorized_operations=True).result(LIMIT_S)
    assert not cluster.authorized_operations
    guarded.allow(AclOperation.ALTER, 'kafka-cluster', CLUSTER)
    cluster = alice.describe_cluster(include_authorized_operations=True).result(LIMIT_S)
    assert set(cluster.authorized_operations) == {AclOperation.ALTER, AclOperation.DESCRIBE}
    guarded.allow(AclOperation.READ, 'readers', GROUP)
    group, = done(alice.describe_consumer_groups(['readers'], include_authorized_operations=True))
    assert set(group.authorized_operations) == {AclOperation.READ, AclOperation.DESCRIBE}


def test_a_consumer_reads_the_topic_that_it_may_read_and_gets_an_error_for_the_other(guarded):
    guarded.create('orders', 'payments')
    guarded.allow(AclOperation.READ, 'readers', GROUP)
    guarded.allow(AclOperation.READ, 'orders')
    guarded.allow(AclOperation.DESCRIBE, 'payments')
    consumer = guarded.consumer()
    consumer.subscribe(['orders', 'payments'])
    found = {}
    while len(found) < 2:
        message = consumer.poll(LIMIT_S)
        assert message is not None
        found[message.topic()] = message.value() if message.error() is None else message.error().code()
    assert found['orders'] == b'orders'
    assert found['payments'] == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()


def test_a_topic_that_is_denied_is_hidden_among_all_topics(guarded):
    guarded.create('orders', 'payments')
    guarded.allow(AclOperation.DESCRIBE, '*')
    guarded.allow(AclOperation.ALL, 'payments', permission=DENY)
    alice = AdminClient(guarded.settings())
    assert 'orders' in alice.list_topics(timeout=LIMIT_S).topics
    assert 'payments' not in alice.list_topics(timeout=LIMIT_S).topics
    asked = alice.list_topics('payments', timeout=LIMIT_S).topics['payments']
    assert asked.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_topic_is_created_by_a_producer_that_may_create_it(guarded):
    answers = []

    def produced():
        producer = confluent_kafka.Producer(guarded.settings())
        producer.produce('new', 'text', on_delivery=lambda error, _: answers.append(error))
        assert producer.flush(LIMIT_S) == 0
        return None if answers[-1] is None else answers[-1].code()

    assert produced() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    guarded.allow(AclOperation.WRITE, 'new')
    assert produced() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    guarded.allow(AclOperation.CREATE, 'new')
    assert produced() is None


def test_a_transaction_needs_the_transactional_id_the_topics_and_the_group(guarded):
    guarded.create('orders')

    def begun():
        producer = confluent_kafka.Producer(guarded.settings(transactional_id='writer'))
        producer.init_transactions(LIMIT_S)
        producer.begin_transaction()
        return producer

    with pytest.raises(KafkaException) as refused:
        begun()
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    guarded.allow(AclOperation.WRITE, 'writer', TRANSACTIONAL_ID)
    producer = begun()
    producer.produce('orders', 'text', partition=0)
    with pytest.raises(KafkaException):
        producer.commit_transaction(LIMIT_S)
    producer.abort_transaction(LIMIT_S)
    guarded.allow(AclOperation.WRITE, 'orders')
    guarded.allow(AclOperation.READ, 'orders')
    guarded.allow(AclOperation.DESCRIBE, 'readers', GROUP)
    offsets = [TopicPartition('orders', 0, 1)]
    consumer = guarded.consumer()
    producer = begun()
    producer.produce('orders', 'text', partition=0)
    with pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), LIMIT_S)
    assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    producer.abort_transaction(LIMIT_S)
    guarded.allow(AclOperation.READ, 'readers', GROUP)
    producer = begun()
    producer.produce('orders', 'text', partition=0)
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), LIMIT_S)
    producer.commit_transaction(LIMIT_S)
    committed, = consumer.committed([TopicPartition('orders', 0)], LIMIT_S)
    assert committed.offset == 1
    consumer.close()
