"""Topics that change while a producer writes to them: partitions are added, or the topic is deleted and created
again."""
import pytest
from support.brokers.fake_cluster import FakeCluster

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.cluster import PartitionMetadata
from kbroker.client.errors import ClientError
from kbroker.client.partitioner import partition_for_key
from kbroker.client.producer import Producer
from kbroker.client.stream_settings import ProducerSettings

AGE_MS = 60_000


def rows(count):
    return {index: PartitionMetadata(index, 1, 0, (1,), (1,), (), ErrorCode.NONE) for index in range(count)}


def started(cluster, clock, **settings):
    return Producer(cluster, ProducerSettings(batch_size_bytes=0, linger_ms=0, metadata_max_age_ms=AGE_MS, **settings),
                    clock=clock, sleep=lambda seconds: clock.advance(max(int(seconds * 1000), 1)))


def partitions_of(cluster):
    return [partition for partition, *_ in cluster.broker.sent]


def test_partitions_that_are_added_are_used_after_metadata_max_age_ms(clock):
    cluster = FakeCluster(1)
    with started(cluster, clock) as producer:
        producer.send('t', b'a', b'key')
        cluster.rows = rows(50)
        clock.advance(AGE_MS - 1)
        producer.send('t', b'b', b'key')
        with pytest.raises(KafkaError, match='t-7 does not exist'):
            producer.send('t', b'c', partition=7)
        clock.advance(1)
        producer.poll(0)
        producer.send('t', b'c', partition=7)
        producer.send('t', b'd', b'key')
        producer.send_batch('t', [b'e'], [b'key'])
        producer.flush()
    assert partitions_of(cluster) == [0, 0, 7, *[partition_for_key(b'key', 50)] * 2]


def test_a_producer_that_only_sends_sees_new_partitions(clock):
    cluster = FakeCluster(1)
    with started(cluster, clock, delivery_timeout_ms=100 * AGE_MS) as producer:
        producer.send('t', b'a')
        cluster.rows = rows(2)
        for _ in range(50):
            clock.advance(AGE_MS)
            producer.send('t', b'b')
    assert set(partitions_of(cluster)) == {0, 1}


def test_a_topic_made_again_with_fewer_partitions_gets_its_records_where_it_has_partitions(clock):
    cluster = FakeCluster(50)
    key = next(b'%d' % number for number in range(100) if partition_for_key(b'%d' % number, 50) == 40)
    with started(cluster, clock) as producer:
        producer.send('t', b'a', key)
        producer.flush()
        cluster.rows = rows(1)
        clock.advance(AGE_MS)
        producer.poll(0)
        producer.send('t', b'b', key)
        with pytest.raises(KafkaError, match='t-40 does not exist: the topic has 1 partitions'):
            producer.send('t', b'c', partition=40)
        cluster.rows = rows(50)
        clock.advance(AGE_MS)
        producer.poll(0)
        producer.send('t', b'd', key)
    assert cluster.broker.sent == [(40, 0, 0, [b'a']), (0, 0, 0, [b'b']), (40, 0, 1, [b'd'])]


def test_a_leader_that_denies_its_partition_makes_the_producer_look_again_at_once(clock):
    cluster = FakeCluster(1)
    with started(cluster, clock) as producer:
        cluster.codes[0] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        cluster.rows = rows(3)
        producer.send('t', b'a', partition=0)
        cluster.rows = rows(5)
        producer.flush()
        producer.poll(0)
        producer.send('t', b'b', partition=4)
    assert partitions_of(cluster) == [0, 0, 4]


def test_a_deleted_topic_is_looked_up_by_the_next_send_and_keeps_its_sequence_numbers(clock):
    cluster = FakeCluster(1)
    with started(cluster, clock) as producer:
        producer.send('t', b'a')
        producer.flush()
        cluster.deleted.add('t')
        clock.advance(AGE_MS)
        producer.poll(0)
        found, cluster.topics = cluster.topics, lambda *_, **__: missing()
        with pytest.raises(KafkaError, match='it does not exist'):
            producer.send('t', b'b')
        cluster.topics = found
        cluster.deleted.clear()
        producer.send('t', b'c')
        assert len(producer._appender.queues) == 1
    assert cluster.broker.sent == [(0, 0, 0, [b'a']), (0, 0, 1, [b'c'])]


def missing():
    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 'topic t: it does not exist')


def test_metadata_that_cannot_be_fetched_is_asked_for_again_and_stops_nothing(clock):
    cluster = FakeCluster(1)
    asked = []
    with started(cluster, clock) as producer:
        producer.send('t', b'a')
        find_topics = cluster.find_topics

        def fail(names):
            asked.append(names)
            raise ClientError('the connection broke')

        cluster.find_topics = fail
        clock.advance(AGE_MS)
        producer.send('t', b'b')
        producer.poll(0)
        assert set(map(tuple, asked)) == {('t',)}
        cluster.find_topics = find_topics
        cluster.rows = rows(3)
        producer.poll(0)
        producer.send('t', b'c', partition=2)
    assert partitions_of(cluster) == [0, 0, 2]


# ---- topics without records

IDLE_MS = 5000


def wait_idle(producer, clock, *used):
    """Let metadata.max.idle.ms pass twice, while the program continues to write to the topics `used`."""
    for _ in range(8):
        clock.advance(IDLE_MS // 4)
        for topic in used:
            producer.send(topic, b'more')
        producer.flush()
        producer.poll(0)


def test_a_topic_without_records_is_forgotten_and_its_numbers_begin_again_under_the_next_epoch(clock):
    cluster = FakeCluster(2)
    with started(cluster, clock, metadata_max_idle_ms=IDLE_MS) as producer:
        for number in range(100):
            producer.send(f'once-{number}', b'a', partition=number % 2)
        producer.flush()
        wait_idle(producer, clock)
        assert (producer._appender.queues, producer._appender.topic_names()) == ([], [])
        assert len(cluster.forgotten_topics) == 100
        producer.send('once-0', b'b', partition=0)
    assert cluster.broker.sent[-1] == (0, 1, 0, [b'b'])


def test_a_topic_in_use_stays_and_so_does_one_whose_batch_waits(clock):
    cluster = FakeCluster(1)
    with started(cluster, clock, metadata_max_idle_ms=IDLE_MS) as producer:
        producer.send('idle', b'a')
        wait_idle(producer, clock, 't')
        assert producer._appender.topic_names() == ['t']
        assert next(number for _, epoch, number, _ in cluster.broker.sent if epoch == 1) == 0
        cluster.answers_flow = False
        producer.send('slow', b'a')
        producer.poll(0)
        for _ in range(8):
            clock.advance(IDLE_MS // 4)
            producer.poll(0)
        assert 'slow' in producer._appender.topic_names()
        cluster.answers_flow = True


def test_a_deleted_topic_is_forgotten_too(clock):
    cluster = FakeCluster(1)
    with started(cluster, clock, metadata_max_idle_ms=IDLE_MS) as producer:
        producer.send('t', b'a')
        producer.flush()
        cluster.deleted.add('t')
        clock.advance(AGE_MS)
        wait_idle(producer, clock)
        assert producer._appender.queues == []


@pytest.mark.parametrize('version', [1, 2])
def test_a_transaction_keeps_its_topics_and_below_version_2_their_numbers_stay(clock, version):
    cluster = FakeCluster(1)
    cluster.broker.finalized_features = {'transaction.version': version}
    with started(cluster, clock, metadata_max_idle_ms=IDLE_MS, transactional_id='x') as producer:
        with producer.transaction():
            producer.send('t', b'a')
            wait_idle(producer, clock)
            producer.send('t', b'b')
        wait_idle(producer, clock)
        assert producer._appender.topic_names() == ([] if version == 2 else ['t'])
        with producer.transaction():
            producer.send('t', b'c')
    numbers = [(epoch, sequence) for _, epoch, sequence, _ in cluster.broker.sent]
    assert numbers == ([(0, 0), (0, 1), (1, 0)] if version == 2 else [(0, 0), (0, 1), (0, 2)])


def test_a_producer_whose_transactions_follow_each_other_forgets_topics_too(clock):
    """The program never calls `poll` between two transactions."""
    with started(FakeCluster(1), clock, metadata_max_idle_ms=IDLE_MS, transactional_id='x') as producer:
        for number in range(50):
            with producer.transaction():
                producer.send(f'once-{number}', b'a')
                producer.poll(0)
            clock.advance(IDLE_MS // 4)
        assert 'once-49' in producer._appender.topic_names()
        assert len(producer._appender.topic_names()) <= 8
