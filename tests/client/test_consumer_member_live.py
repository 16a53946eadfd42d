"""Consumers of KIP-848 with a live broker: assignments within a group, regular expressions, static members, fencing."""
import threading
import time
from contextlib import contextmanager

import pytest
from support.brokers.broker_process import BrokerProcess
from support.runner.command_runner import run_in_process

from kbroker.base.errors import ConfigError, ErrorCode, KafkaError
from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.config import ClientConfig
from kbroker.client.consumer import Consumer
from kbroker.client.producer import Producer
from kbroker.client.stream_settings import ConsumerSettings
from kbroker.protocol import messages

LIMIT_S = 120
SETTINGS = {
    'group.consumer.heartbeat.interval.ms': '100', 'group.consumer.min.heartbeat.interval.ms': '100',
    'group.consumer.assignment.interval.ms': '0', 'offsets.topic.num.partitions': '1',
}


@pytest.fixture(scope='module')
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp('consumer-members'), SETTINGS) as broker:
        yield broker


@pytest.fixture
def topic(cluster, request):
    assert Admin(cluster).create_topics([NewTopic(request.node.name, 3)]) == {request.node.name: None}
    return request.node.name


def settings(group, **more):
    return ConsumerSettings(group_id=group, group_protocol='consumer', auto_offset_reset='earliest', **more)


def write(cluster, topic, *values):
    producer = Producer(cluster)
    for number, value in enumerate(values):
        producer.send(topic, value, partition=number % 3)
    producer.flush()


def read(consumer, count):
    deadline, found = time.monotonic() + LIMIT_S, []
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += [record.value for batch in consumer.poll(100) for record in batch.records()]
    return found


def poll_until(consumer, condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, consumer.assignment
        consumer.poll(20)


@contextmanager
def member(address, topic, group):
    """Yield a consumer that polls in a separate thread, so that its assignment can change during the block."""
    ended, errors, ready = threading.Event(), [], []
    is_ready = threading.Event()

    def run():
        cluster = Cluster(ClientConfig.load(address))
        try:
            consumer = Consumer(cluster, settings(group))
            ready.append(consumer)
            consumer.subscribe([topic])
            is_ready.set()
            while not ended.is_set():
                consumer.poll(20)
            consumer.close()
        except Exception as error:
            errors.append(error)
            is_ready.set()
        finally:
            cluster.close()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert is_ready.wait(LIMIT_S) and not errors, errors
    yield ready[0]
    ended.set()
    thread.join(LIMIT_S)
    assert not errors and not thread.is_alive(), errors


def test_a_group_goes_on_where_it_was(cluster, topic):
    for part in (range(0, 10), range(10, 20)):
        write(cluster, topic, *(b'%d' % number for number in part))
        consumer = Consumer(cluster, settings(topic))
        consumer.subscribe([topic])
        found = read(consumer, 10)
        consumer.close()
        assert sorted(found) == [b'%d' % number for number in part]


def test_members_share_the_partitions_and_take_over_from_one_that_leaves(broker, cluster, topic):
    consumer = Consumer(cluster, settings(topic))
    consumer.subscribe([topic])
    poll_until(consumer, lambda: len(consumer.assignment) == 3)
    with member(broker.address, topic, topic) as other:
        poll_until(consumer, lambda: len(consumer.assignment) + len(other.assignment) == 3 and other.assignment)
        assert not consumer.assignment & other.assignment
        assert sorted(map(len, (consumer.assignment, other.assignment))) == [1, 2]
    poll_until(consumer, lambda: len(consumer.assignment) == 3)
    consumer.close()


def test_partitions_that_stay_are_not_read_again(broker, cluster, topic):
    """The group has no commits, so a consumer that lost its positions would read from the start again."""
    write(cluster, topic, b'0', b'1', b'2')
    consumer = Consumer(cluster, settings(topic, enable_auto_commit=False))
    consumer.subscribe([topic])
    assert sorted(read(consumer, 3)) == [b'0', b'1', b'2']
    kept = consumer.assignment
    with member(broker.address, topic, topic) as other:
        poll_until(consumer, lambda: len(consumer.assignment) < 3 and other.assignment)
        kept = consumer.assignment
    positions = {at: consumer.position(*at) for at in kept}
    assert set(positions.values()) == {1}
    consumer.close()


def test_the_broker_evaluates_expressions(cluster, topic, request):
    other = f'{topic}-other'
    Admin(cluster).create_topics([NewTopic(other, 1)])
    consumer = Consumer(cluster, settings(topic))
    consumer.subscribe(regex=f'{topic}(-o.*)?')
    poll_until(consumer, lambda: {name for name, _ in consumer.assignment} == {topic, other})
    consumer.close()
    with pytest.raises(KafkaError) as refused:
        wrong = Consumer(cluster, settings(f'{topic}-wrong'))
        wrong.subscribe(regex='a(')
        wrong.poll(60_000)
    assert refused.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_static_member_gets_its_partitions_back(cluster, topic):
    first = Consumer(cluster, settings(topic, group_instance_id='one'))
    first.subscribe([topic])
    poll_until(first, lambda: len(first.assignment) == 3)
    epoch = first.group_metadata.generation_id
    first.close()
    again = Consumer(cluster, settings(topic, group_instance_id='one'))
    again.subscribe([topic])
    poll_until(again, lambda: len(again.assignment) == 3)
    assert again.group_metadata.generation_id == epoch
    again.close()


def test_a_member_that_the_group_has_removed_joins_again(cluster, topic):
    write(cluster, topic, b'0', b'1', b'2')
    consumer = Consumer(cluster, settings(topic))
    consumer.subscribe([topic])
    assert len(read(consumer, 3)) == 3
    consumer.commit()
    member_id, epoch = consumer.group_metadata.member_id, consumer.group_metadata.generation_id
    cluster.coordinator(KeyType.GROUP, topic).call(messages.ConsumerGroupHeartbeatRequest(
        group_id=topic, member_id=member_id, member_epoch=-1))
    poll_until(consumer, lambda: consumer.group_metadata.generation_id > epoch and len(consumer.assignment) == 3)
    write(cluster, topic, b'3')
    assert read(consumer, 1) == [b'3']
    assert consumer.group_metadata.member_id == member_id
    consumer.close()


def test_an_expression_for_the_broker_needs_the_protocol(cluster):
    consumer = Consumer(cluster, ConsumerSettings(group_id='classic'))
    with pytest.raises(ConfigError, match='needs group'):
        consumer.subscribe(regex='.*')


@pytest.mark.parametrize(('protocol', 'name'), [
    ('consumer', 'session.timeout.ms'), ('classic', 'group.remote.assignor')])
def test_settings_that_the_protocol_does_not_have_are_refused(protocol, name):
    with pytest.raises(ConfigError, match=name):
        ConsumerSettings.from_properties({'group.protocol': protocol, name: '5000'})


def test_the_console_consumer_joins_by_the_protocol(broker, cluster, topic):
    write(cluster, topic, b'a', b'b', b'c')
    for how in (('--topic', topic), ('--include', f'{topic[:-1]}.')):
        run = run_in_process('consume', '--bootstrap-server', broker.address, *how, '--group', f'{topic}{how[0]}',
                             '--group-protocol', 'consumer', '--from-beginning', '--max-messages', '3',
                             '--timeout-ms', '20000')
        assert (run.returncode, sorted(run.stdout.split())) == (0, ['a', 'b', 'c']), run.stderr
    listed = run_in_process('groups', '--bootstrap-server', broker.address, '--list', '--type', 'consumer')
    assert f'{topic}--topic' in listed.stdout
