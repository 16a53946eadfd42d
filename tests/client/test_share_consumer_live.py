"""Share consumers with a live broker: outcomes of records, gaps, several members of a group, and lost sessions.

Covers KIP-932.
"""
import time

import pytest
from support.brokers.broker_process import BrokerProcess

from kbroker.base.errors import ConfigError, ErrorCode, KafkaError
from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.producer import Producer
from kbroker.client.share_consumer import ShareConsumer
from kbroker.client.share_sessions import Acknowledgement, AcknowledgeType, joined
from kbroker.client.stream_settings import ProducerSettings, ShareConsumerSettings

LIMIT_S = 60
SETTINGS = {
    'group.share.heartbeat.interval.ms': '100', 'group.share.min.heartbeat.interval.ms': '100',
    'group.share.assignment.interval.ms': '0', 'offsets.topic.num.partitions': '1',
    'share.coordinator.state.topic.num.partitions': '1',
}
ACCEPT, GAP, REJECT, RELEASE = (AcknowledgeType.ACCEPT, AcknowledgeType.GAP, AcknowledgeType.REJECT,
                                AcknowledgeType.RELEASE)


@pytest.fixture(scope='module')
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp('share-consumers'), SETTINGS) as broker:
        yield broker


@pytest.fixture
def topic(cluster, request):
    """Create a topic of two partitions, and a group of the same name that begins at the topic's start."""
    name = request.node.name
    assert Admin(cluster).create_topics([NewTopic(name, 2)]) == {name: None}
    begun = Admin(cluster).alter_share_group_offsets(name, {(name, 0): 0, (name, 1): 0})
    assert begun == {(name, 0): None, (name, 1): None}
    return name


@pytest.fixture
def join(broker, topic):
    """Yield a function that opens a new member of the group."""
    members = []

    def opened(on_refused=None, **settings):
        consumer = ShareConsumer(Cluster(ClientConfig.load(broker.address)),
                                 ShareConsumerSettings(group_id=topic, fetch_max_wait_ms=50, **settings),
                                 **({} if on_refused is None else {'on_refused': on_refused}))
        consumer.subscribe([topic])
        members.append(consumer)
        return consumer

    yield opened
    for consumer in members:
        consumer.close()


def write(cluster, topic, *values, partition=0, **settings):
    producer = Producer(cluster, ProducerSettings(**settings))
    if settings.get('transactional_id'):
        producer.init_transactions()
        producer.begin_transaction()
    for value in values:
        producer.send(topic, value, partition=partition)
    producer.flush()
    return producer


def read(consumer, count):
    """Read `count` records. Return (offset, delivery count, value) of each."""
    found, deadline = [], time.monotonic() + LIMIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += [(record.offset, batch.delivery_count, record.value) for batch in consumer.poll(100)
                  for record in batch.records]
    return found


def until(found, ask):
    deadline = time.monotonic() + LIMIT_S
    while (last := ask()) != found:
        assert time.monotonic() < deadline, last


def lag(cluster, topic):
    return sum(row.lag for row in Admin(cluster).list_share_group_offsets(topic).values())


def test_polling_accepts_the_records_of_the_last_poll(cluster, topic, join):
    write(cluster, topic, b'a', b'b')
    consumer = join()
    assert read(consumer, 2) == [(0, 1, b'a'), (1, 1, b'b')]
    assert lag(cluster, topic) == 2
    consumer.poll(0)
    until(0, lambda: consumer.poll(0) or lag(cluster, topic))


def test_closing_accepts_the_records_of_the_last_poll_and_leaves(cluster, topic, join):
    write(cluster, topic, b'a')
    consumer = join()
    read(consumer, 1)
    consumer.close()
    assert lag(cluster, topic) == 0
    described = Admin(cluster).describe_share_groups([topic])[topic]
    assert (described.state, described.members) == ('Empty', ())


def test_each_record_has_its_own_outcome(cluster, topic, join):
    write(cluster, topic, b'accepted', b'released', b'rejected', b'kept')
    consumer = join(is_explicit=True)
    read(consumer, 4)
    for offset, kind in [(0, ACCEPT), (1, RELEASE), (2, REJECT)]:
        consumer.acknowledge(topic, 0, offset, kind)
    consumer.commit()
    assert lag(cluster, topic) == 2
    assert read(consumer, 1) == [(1, 2, b'released')]
    consumer.close()
    assert read(join(), 2) == [(1, 3, b'released'), (3, 2, b'kept')]


def test_a_record_has_one_outcome(cluster, topic, join):
    write(cluster, topic, b'a')
    consumer = join(is_explicit=True)
    read(consumer, 1)
    consumer.acknowledge(topic, 0, 0, ACCEPT)
    for offset in (0, 7):
        with pytest.raises(KafkaError, match=f'{topic}-0, offset {offset}: ') as refused:
            consumer.acknowledge(topic, 0, offset, ACCEPT)
        assert refused.value.code is ErrorCode.INVALID_RECORD_STATE


def test_markers_are_acknowledged_as_gaps(cluster, topic, join):
    write(cluster, topic, b'a', transactional_id='marks').commit_transaction()
    write(cluster, topic, b'b')
    consumer = join()
    assert read(consumer, 2) == [(0, 1, b'a'), (2, 1, b'b')]
    consumer.close()
    assert lag(cluster, topic) == 0


def test_members_share_the_records_of_a_topic(cluster, topic, join):
    first, second = join(), join()
    until((1, 1), lambda: (first.poll(0), second.poll(0)) and (len(first.assignment), len(second.assignment)))
    values = {b'%d' % number for number in range(20)}
    for value in sorted(values):
        write(cluster, topic, value, partition=int(value) % 2)
    found = []
    deadline = time.monotonic() + LIMIT_S
    while len(found) < len(values):
        assert time.monotonic() < deadline, found
        found += [record.value for consumer in (first, second) for batch in consumer.poll(20)
                  for record in batch.records]
    assert sorted(found) == sorted(values)


def test_a_lost_connection_releases_the_records_and_begins_a_new_session(cluster, topic, join):
    write(cluster, topic, b'a', b'b')
    refused = []
    consumer = join(on_refused=lambda at, error: refused.append((at.topic, at.partition, error.code)), is_explicit=True)
    read(consumer, 2)
    consumer.acknowledge(topic, 0, 0, ACCEPT)
    for connection in list(consumer._sessions):
        connection._socket.shutdown(2)
    assert read(consumer, 2) == [(0, 2, b'a'), (1, 2, b'b')]
    assert refused == [(topic, 0, ErrorCode.NETWORK_EXCEPTION)]


def test_a_session_that_the_broker_does_not_know_begins_again(cluster, topic, join):
    refused = []
    consumer = join(on_refused=lambda at, error: refused.append(error.code), is_explicit=True)
    write(cluster, topic, b'a')
    read(consumer, 1)
    consumer.acknowledge(topic, 0, 0, ACCEPT)
    for session in consumer._sessions.values():
        session._epoch += 5
    write(cluster, topic, b'b')
    assert (1, 1, b'b') in read(consumer, 1)
    assert refused == [ErrorCode.INVALID_SHARE_SESSION_EPOCH]


def test_a_session_limit_by_records_takes_no_more(cluster, topic, join):
    write(cluster, topic, *[b'%d' % number for number in range(5)])
    consumer = join(acquire_mode='record_limit', max_poll_records=2)
    assert [offset for offset, _, _ in read(consumer, 2)] == [0, 1]
    assert [offset for offset, _, _ in read(consumer, 2)] == [2, 3]


def test_neighbours_of_one_outcome_are_acknowledged_as_one():
    assert joined([Acknowledgement(4, 4, ACCEPT), Acknowledgement(1, 2, GAP), Acknowledgement(3, 3, ACCEPT),
                   Acknowledgement(6, 6, ACCEPT)]) == [
        Acknowledgement(1, 2, GAP), Acknowledgement(3, 4, ACCEPT), Acknowledgement(6, 6, ACCEPT)]


@pytest.mark.parametrize(('properties', 'name'), [
    ({}, 'group.id'), ({'group.id': 'g', 'isolation.level': 'read_committed'}, 'isolation.level'),
    ({'group.id': 'g', 'auto.offset.reset': 'earliest'}, 'auto.offset.reset'),
    ({'group.id': 'g', 'share.acquire.mode': 'all'}, 'share.acquire.mode'),
    ({'group.id': 'g', 'max.poll.records': '0'}, 'max.poll.records'),
])
def test_settings_that_a_share_consumer_cannot_have_are_refused(properties, name):
    with pytest.raises(ConfigError) as refused:
        ShareConsumerSettings.from_properties(properties)
    assert refused.value.name == name


def test_settings_have_kafkas_names():
    assert ShareConsumerSettings.from_properties({
        'group.id': 'g', 'share.acknowledgement.mode': 'EXPLICIT', 'share.acquire.mode': 'record_limit',
        'max.poll.records': '7', 'fetch.min.bytes': '2', 'fetch.max.wait.ms': '3', 'fetch.max.bytes': '4',
        'check.crcs': 'false', 'client.rack': 'r',
    }) == ShareConsumerSettings('g', True, 'record_limit', 7, 2, 3, 4, False, 'r')
