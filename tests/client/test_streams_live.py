"""Producer and consumer with a live broker: reads after writes, ends of transactions, assignments within groups."""
import threading
import time
from contextlib import contextmanager

import pytest

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.config import ClientConfig
from kbroker.client.consumer import Consumer
from kbroker.client.producer import Producer
from kbroker.client.stream_settings import ConsumerSettings, ProducerSettings
from kbroker.client.transaction_manager import OffsetAndMetadata
from kbroker.client.transaction_state import FatalProducerError, ProducerState
from kbroker.record.compression import Compression

LIMIT_S = 120
QUICK = {'session_timeout_ms': 6000, 'heartbeat_interval_ms': 200, 'auto_offset_reset': 'earliest'}


@pytest.fixture
def cluster(shared_broker):
    found = Cluster(ClientConfig.load(shared_broker.address))
    yield found
    found.close()


@pytest.fixture
def topic(cluster, request):
    name = request.node.name.replace('[', '-').replace(']', '')[:200]
    assert Admin(cluster).create_topics([NewTopic(name, 3)]) == {name: None}
    return name


def read_all(cluster, topic, count, **settings):
    """Poll until `count` values have arrived. Return all values of these polls by partition."""
    consumer = Consumer(cluster, ConsumerSettings(auto_offset_reset='earliest', **settings))
    consumer.assign((topic, partition) for partition in range(3))
    found = {0: [], 1: [], 2: []}
    deadline = time.monotonic() + LIMIT_S
    while sum(map(len, found.values())) < count and time.monotonic() < deadline:
        for batch in consumer.poll(1000):
            found[batch.partition] += [record.value for record in batch.records()]
    consumer.close()
    return found


@pytest.mark.parametrize('compression', list(Compression))
def test_what_is_written_is_read_in_order(cluster, topic, compression):
    producer = Producer(cluster, ProducerSettings(compression=compression, batch_size_bytes=500, linger_ms=0))
    values = [b'%d' % number * (number % 50) for number in range(600)]
    for number, value in enumerate(values):
        producer.send(topic, value, partition=number % 3)
    producer.flush()
    assert read_all(cluster, topic, 600) == {partition: values[partition::3] for partition in range(3)}


@pytest.mark.parametrize('acks', [0, 1])
def test_weaker_acks_are_enough_where_nothing_goes_wrong(cluster, topic, acks):
    producer = Producer(cluster, ProducerSettings(acks=acks, enable_idempotence=False))
    producer.send(topic, b'v', b'k', [('h', None)], timestamp_ms=int(time.time() * 1000))
    producer.flush()
    assert [value for values in read_all(cluster, topic, 1).values() for value in values] == [b'v']


def test_a_large_batch_is_split_for_a_topic_that_takes_small_ones(cluster, request):
    topic = request.node.name
    Admin(cluster).create_topics([NewTopic(topic, 3, configs={'max.message.bytes': '1000'})])
    producer = Producer(cluster, ProducerSettings())
    values = [b'%d' % number * 30 for number in range(100)]
    for value in values:
        producer.send(topic, value, partition=0)
    producer.flush()
    assert read_all(cluster, topic, 100)[0] == values


def test_only_committed_transactions_are_read(cluster, topic, request):
    producer = Producer(cluster, ProducerSettings(transactional_id=request.node.name, batch_size_bytes=0, linger_ms=0))
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        producer.send(topic, b'%d' % number, partition=number % 3)
        producer.send(topic, b'offset', partition=(number + 1) % 3)
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    assert producer.transactions.producer.producer_epoch == 6
    found = read_all(cluster, topic, 6, isolation_level='read_committed')
    assert {key: [value for value in values if value != b'offset'] for key, values in found.items()} == {
        0: [b'0'], 1: [b'4'], 2: [b'2']}
    assert sum(map(len, read_all(cluster, topic, 12).values())) == 12


def test_transactions_work_where_the_cluster_has_not_agreed_to_version_2(cluster, topic, request):
    cluster.coordinator(KeyType.TRANSACTION, request.node.name).finalized_features['transaction.version'] = 1
    producer = Producer(cluster, ProducerSettings(transactional_id=request.node.name))
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        producer.send(topic, b'%d' % number, partition=0)
        producer.flush()
        if number == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    assert producer.transactions.producer.producer_epoch == 0
    assert read_all(cluster, topic, 3, isolation_level='read_committed')[0] == [b'0', b'2', b'3']


def test_the_former_user_of_a_transactional_id_is_fenced(cluster, topic, request):
    settings = ProducerSettings(transactional_id=request.node.name)
    old, new = Producer(cluster, settings), Producer(cluster, settings)
    old.init_transactions()
    old.begin_transaction()
    old.send(topic, b'old', partition=0)
    old.flush()
    new.init_transactions()
    with pytest.raises(FatalProducerError, match='another producer uses'):
        old.commit_transaction()
    assert old.transactions.state is ProducerState.FATAL_ERROR
    new.begin_transaction()
    new.send(topic, b'new', partition=0)
    new.commit_transaction()
    assert read_all(cluster, topic, 1, isolation_level='read_committed')[0] == [b'new']


def test_offsets_are_committed_with_the_transaction_or_not_at_all(cluster, topic, request):
    producer = Producer(cluster, ProducerSettings(transactional_id=request.node.name))
    consumer = Consumer(cluster, ConsumerSettings(group_id=request.node.name, **QUICK))
    consumer.subscribe([topic])
    wait_for(lambda: consumer.poll(100) == [] and consumer.assignment, lambda: consumer.assignment)
    producer.init_transactions()
    for offset, commits in ((5, True), (9, False)):
        producer.begin_transaction()
        producer.send_offsets_to_transaction({(topic, 0): OffsetAndMetadata(offset)}, consumer.group_metadata)
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    committed = Admin(cluster).list_group_offsets(request.node.name, require_stable=True)
    assert committed[topic, 0].offset == 5
    consumer.close(commits=False)


def test_a_consumer_begins_where_auto_offset_reset_says(cluster, topic):
    producer = Producer(cluster)
    producer.send(topic, b'before', partition=0)
    producer.flush()
    consumer = Consumer(cluster, ConsumerSettings(auto_offset_reset='latest'))
    consumer.assign([(topic, 0)])
    wait_for(lambda: consumer.poll(1) == [] and consumer.position(topic, 0) == 1, lambda: consumer.position(topic, 0))
    consumer.seek(topic, 0, 100)
    wait_for(lambda: consumer.poll(100) == [] and consumer.position(topic, 0) == 1, lambda: consumer.position(topic, 0))
    consumer.seek(topic, 0, 0)
    while not (batches := consumer.poll(1000)):
        pass
    assert [record.value for record in batches[0].records()] == [b'before']
    consumer.close()
    nowhere = Consumer(cluster, ConsumerSettings(auto_offset_reset='none'))
    nowhere.assign([(topic, 0)])
    with pytest.raises(KafkaError, match=r'there is no offset to begin at, and auto\.offset\.reset is none'):
        nowhere.poll(60_000)


def test_a_group_goes_on_where_it_was(cluster, topic, request):
    producer = Producer(cluster)
    for part in (range(0, 10), range(10, 20)):
        for number in part:
            producer.send(topic, b'%d' % number, partition=0)
        producer.flush()
        consumer = Consumer(cluster, ConsumerSettings(group_id=request.node.name, **QUICK))
        consumer.subscribe([topic])
        found = []
        while len(found) < 10:
            found += [record.value for batch in consumer.poll(1000) for record in batch.records()]
        consumer.close()
        assert found == [b'%d' % number for number in part]


@contextmanager
def members(address, topic, group, count):
    """Run consumers of a group, each in its own thread. Yield their assignments and the values they read."""
    ended = [threading.Event() for _ in range(count)]
    assignments, found, errors = [frozenset()] * count, [], []

    def run(number):
        cluster = Cluster(ClientConfig.load(address))
        consumer = Consumer(cluster, ConsumerSettings(group_id=group, **QUICK))
        try:
            consumer.subscribe([topic])
            while not ended[number].is_set():
                found.extend(record.value for batch in consumer.poll(100) for record in batch.records())
                assignments[number] = consumer.assignment
            consumer.close()
        except Exception as error:
            errors.append(error)
        finally:
            assignments[number] = frozenset()
            cluster.close()
    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    yield assignments, found, ended
    for event in ended:
        event.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not errors, errors


def wait_for(condition, what):
    deadline = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, what()
        pause.wait(0.02)


def test_members_share_the_partitions_and_take_over_from_one_that_leaves(shared_broker, cluster, topic, request):
    producer = Producer(cluster)
    with members(shared_broker.address, topic, request.node.name, 2) as (assignments, found, ended):
        wait_for(lambda: sorted(map(len, assignments)) == [1, 2], lambda: assignments)
        assert frozenset.union(*assignments) == {(topic, partition) for partition in range(3)}
        for number in range(30):
            producer.send(topic, b'%d' % number, partition=number % 3)
        producer.flush()
        wait_for(lambda: len(found) >= 30, lambda: found)
        ended[0].set()
        wait_for(lambda: len(assignments[1]) == 3, lambda: assignments)
        producer.send(topic, b'last', partition=0)
        producer.flush()
        wait_for(lambda: b'last' in found, lambda: found)
    assert sorted(found) == sorted([*(b'%d' % number for number in range(30)), b'last'])


def test_a_group_shares_with_members_of_another_client(shared_broker, cluster, topic, request):
    from confluent_kafka import Consumer as ConfluentConsumer
    other = ConfluentConsumer({'bootstrap.servers': shared_broker.address, 'group.id': request.node.name,
                               'partition.assignment.strategy': 'range', 'session.timeout.ms': 6000,
                               'heartbeat.interval.ms': 200})
    other.subscribe([topic])
    with members(shared_broker.address, topic, request.node.name, 1) as (assignments, _, _):
        def shares():
            other.poll(0.05)
            return list(assignments[0]), [(entry.topic, entry.partition) for entry in other.assignment()]

        def are_shared():
            ours, theirs = shares()
            return ours and theirs and sorted(ours + theirs) == [(topic, partition) for partition in range(3)]
        wait_for(are_shared, shares)
        other.close()
        wait_for(lambda: len(assignments[0]) == 3, lambda: assignments)


def test_a_topic_that_does_not_exist_is_reported(cluster):
    consumer = Consumer(cluster)
    consumer.assign([('nowhere', 0)])
    with pytest.raises(KafkaError, match='topic nowhere') as raised:
        consumer.poll(60_000)
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_every_record_is_written_once_though_the_broker_dies_in_between(broker):
    cluster = Cluster(ClientConfig.load(broker.address))
    Admin(cluster).create_topics([NewTopic('once', 3)])
    producer = Producer(cluster, ProducerSettings(batch_size_bytes=500, linger_ms=0))
    values = [b'%d' % number for number in range(3000)]
    for number, value in enumerate(values):
        producer.send('once', value, partition=number % 3)
        if number in (1000, 2000):
            broker.kill9()
            broker.start()
    producer.flush()
    assert read_all(cluster, 'once', 3000) == {partition: values[partition::3] for partition in range(3)}
    cluster.close()


def test_a_transaction_ends_though_the_broker_dies_in_between(broker):
    cluster = Cluster(ClientConfig.load(broker.address))
    Admin(cluster).create_topics([NewTopic('ends', 3)])
    producer = Producer(cluster, ProducerSettings(transactional_id='ends', batch_size_bytes=0, linger_ms=0))
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        producer.send('ends', b'%d' % number, partition=0)
        if number < 2:
            producer.flush()
        broker.kill9()
        broker.start()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    assert read_all(cluster, 'ends', 2, isolation_level='read_committed')[0] == [b'0', b'2']
    cluster.close()


def test_a_member_goes_on_though_the_broker_dies_in_between(broker):
    cluster = Cluster(ClientConfig.load(broker.address))
    Admin(cluster).create_topics([NewTopic('goes-on', 3)])
    producer = Producer(cluster, ProducerSettings(linger_ms=0))
    consumer = Consumer(cluster, ConsumerSettings(group_id='goes-on', **QUICK))
    consumer.subscribe(['goes-on'])
    found = []
    for number in range(3):
        producer.send('goes-on', b'%d' % number, partition=number)
        producer.flush()
        wait_for(lambda: found.extend(record.value for batch in consumer.poll(100) for record in batch.records())
                 or len(found) > number, lambda: found)      # noqa: B023
        broker.kill9()
        broker.start()
    assert found == [b'0', b'1', b'2']
    consumer.close()
    assert sum(entry.offset for entry in Admin(cluster).list_group_offsets('goes-on').values()) == 3
    cluster.close()


def test_a_consumer_of_its_own_goes_on_though_the_broker_dies_in_between(broker):
    cluster = Cluster(ClientConfig.load(broker.address))
    Admin(cluster).create_topics([NewTopic('alone', 1)])
    producer = Producer(cluster, ProducerSettings(linger_ms=0))
    consumer = Consumer(cluster, ConsumerSettings(auto_offset_reset='earliest'))
    consumer.assign([('alone', 0)])
    for value in (b'before', b'after'):
        producer.send('alone', value)
        producer.flush()
        batches = consumer.poll(LIMIT_S * 1000)
        assert [record.value for batch in batches for record in batch.records()] == [value]
        broker.kill9()
        broker.start()
    cluster.close()
