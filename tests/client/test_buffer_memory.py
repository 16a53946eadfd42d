"""The bound `buffer.memory` of a producer: with many partitions, with columns, and with a broker that does not
answer."""
import pytest
from support.brokers.fake_cluster import FakeCluster

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.producer import Producer
from kbroker.client.stream_settings import ProducerSettings

LIMIT = 20_000
PARTITIONS = 400
HOUR_MS = 3_600_000


class Watched:
    """A producer whose batches linger for an hour. `most_bytes` is the largest number of bytes that the producer
    held."""

    def __init__(self, cluster, **settings):
        self.clock = ManualClock()
        self.most_bytes = 0
        self.deliveries = []
        self.producer = Producer(cluster, ProducerSettings(linger_ms=HOUR_MS, buffer_memory_bytes=LIMIT, **settings),
                                 self.deliveries.append, self.clock, lambda s: self.clock.advance(int(s * 1000)))
        appender = self.producer._appender
        send_due = self.producer._send_due

        def note_and_send():
            self.most_bytes = max(self.most_bytes, appender.buffered_bytes)
            send_due()

        self.producer._send_due = note_and_send


def values_by_partition(cluster):
    found = {}
    for partition, _, _, values in cluster.broker.sent:
        found.setdefault(partition, []).extend(values)
    return found


def test_records_of_many_partitions_hold_no_more_than_buffer_memory():
    cluster = FakeCluster(PARTITIONS)
    watched = Watched(cluster)
    for number in range(4 * PARTITIONS):
        watched.producer.send('t', b'%d' % number * 10, partition=number % PARTITIONS)
        assert watched.producer.stats()['buffer_available_bytes'] >= 0
    watched.producer.flush()
    assert LIMIT // 2 < watched.most_bytes <= LIMIT
    assert values_by_partition(cluster) == {
        index: [b'%d' % number * 10 for number in range(index, 4 * PARTITIONS, PARTITIONS)]
        for index in range(PARTITIONS)}


@pytest.mark.parametrize('batch_bytes', [500, 16_384, 1 << 20])
def test_columns_over_many_partitions_hold_no_more_than_buffer_memory(batch_bytes):
    cluster = FakeCluster(PARTITIONS)
    watched = Watched(cluster, batch_size_bytes=batch_bytes)
    values = [b'%d' % number * 10 for number in range(4 * PARTITIONS)]
    watched.producer.send_batch('t', values, [b'%d' % (number % 999) for number in range(len(values))])
    watched.producer.flush()
    assert watched.most_bytes <= LIMIT
    assert sorted(value for found in values_by_partition(cluster).values() for value in found) == sorted(values)


def test_a_batch_that_can_fill_waits_for_answers_before_it_is_sent():
    """The producer sends open batches early only if no batch in flight holds memory. Otherwise a slow broker would get
    tiny batches."""
    cluster = FakeCluster(2)
    watched = Watched(cluster, batch_size_bytes=LIMIT // 4)
    for number in range(400):
        watched.producer.send('t', bytes(400), partition=number % 2)
    assert {len(values) for *_, values in cluster.broker.sent} == {12}


def test_a_send_that_finds_no_room_within_max_block_ms_raises_and_queues_nothing():
    cluster = FakeCluster()
    watched = Watched(cluster, max_block_ms=5000)
    cluster.config = cluster.config.__class__(cluster.config.bootstrap, retry_backoff_ms=100)
    cluster.codes[0] = [ErrorCode.NOT_ENOUGH_REPLICAS] * 10_000
    began_ms = watched.clock.monotonic_ms()
    with pytest.raises(KafkaError, match=r'found no room for \d+ bytes within max\.block\.ms \(5000 ms\)') as raised:
        for number in range(10_000):
            watched.producer.send('t', b'%d' % number * 100, context=number)
    assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert 5000 <= watched.clock.monotonic_ms() - began_ms < 7000
    cluster.codes[0].clear()
    with pytest.raises(KafkaError, match='within max'):
        cluster.codes[0] += [ErrorCode.NOT_ENOUGH_REPLICAS] * 100
        watched.producer.send_batch('t', [bytes(100)] * 3)
    cluster.codes[0].clear()
    watched.producer.send('t', b'last', context='last')
    watched.producer.flush()
    queued = [context for delivery in watched.deliveries for context in delivery.contexts]
    assert queued == [*range(len(queued) - 1), 'last']
    assert watched.producer.stats()['buffer_available_bytes'] == LIMIT


def test_a_record_larger_than_buffer_memory_is_refused():
    watched = Watched(FakeCluster())
    for send in (lambda: watched.producer.send('t', bytes(LIMIT)),
                 lambda: watched.producer.send_batch('t', [b'', bytes(LIMIT)])):
        with pytest.raises(KafkaError, match=f'the record takes 20024 bytes, buffer.memory is {LIMIT}') as raised:
            send()
        assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
    watched.producer.flush()
    assert watched.deliveries == []


def test_a_failure_during_the_wait_for_room_refuses_the_record():
    """In a transaction, only an abort may follow. The producer must queue no record after a lost one."""
    cluster = FakeCluster()
    watched = Watched(cluster, transactional_id='x')
    watched.producer.init_transactions()
    watched.producer.begin_transaction()
    cluster.codes[0] = [ErrorCode.INVALID_RECORD]
    with pytest.raises(KafkaError, match='INVALID_RECORD'):
        for number in range(10_000):
            watched.producer.send('t', bytes(100), context=number)
    watched.producer.abort_transaction()
    assert watched.producer.stats()['buffer_available_bytes'] == LIMIT
