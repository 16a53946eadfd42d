"""A broker with many partitions: the creation of their directories, and a lack of descriptors."""
import os
import resource

import pytest
from support.broker_process import BrokerProcess
from support.in_process_broker import InProcessBroker
from support.stepwise_work import StepwiseWork

from kbroker.clock import ManualClock
from kbroker.errors import ErrorCode
from kbroker.log.fs import shared_open_files
from kbroker.log.origin import Origin
from kbroker.log.shortage import SHORTAGE_PAUSE_MS, shortage
from kbroker.long_work import run_to_end
from kbroker.protocol.messages import ProduceRequest
from kbroker.record.batch import encode_batch

MANY = 100


def record():
    return encode_batch([(0, b'key', b'value')])


def stepwise_broker(tmp_path):
    """Return a broker that does long work only when the test says so."""
    broker = InProcessBroker(tmp_path)
    broker.long_work = StepwiseWork(broker.timers)
    return broker


def directories(tmp_path):
    return {path.name for path in tmp_path.glob('orders-*')}


def produce(broker, partition):
    """Send a Produce. Return a function that returns the error code of the answer, or None before the answer."""
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[ProduceRequest.TopicProduceData(
        name='orders', partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=bytes(record()))])])
    connection = broker.begin(request, 9)
    return lambda: (broker.answer_to(connection, request, 9).responses[0].partition_responses[0].error_code
                    if connection.replies else None)


def test_directories_of_a_large_topic_are_made_between_turns(tmp_path):
    with stepwise_broker(tmp_path) as broker:
        broker.topics.create('orders', MANY, {})
        for made in (1, 2, 3):
            assert len(directories(tmp_path)) == made
            broker.long_work.step()
        broker.long_work.finish()
    assert len(directories(tmp_path)) == MANY
    for name in directories(tmp_path):
        assert {path.name for path in (tmp_path / name).iterdir()} == {
            '00000000000000000000.log', '00000000000000000000.index', 'partition.metadata'}


def test_an_append_does_not_wait_for_its_directory_to_be_made(tmp_path):
    with stepwise_broker(tmp_path) as broker:
        last = broker.topics.create('orders', MANY, {}).partitions[-1]
        last.append_batch(record(), Origin.CLIENT)
        assert directories(tmp_path) == {'orders-0', f'orders-{MANY - 1}'}
        broker.turn()
        assert last.high_watermark == 1


def test_a_clean_stop_makes_what_is_left_and_a_start_what_a_crash_took(tmp_path):
    with stepwise_broker(tmp_path) as broker:
        broker.topics.create('orders', MANY, {})
        broker.topics.get('orders', 0).append_batch(record(), Origin.CLIENT)
        broker.turn()
        broker.crash()
    assert len(directories(tmp_path)) < MANY
    with InProcessBroker(tmp_path) as broker:
        assert broker.topics.get('orders', 0).log_end_offset == 1
        assert broker.topics.get('orders', MANY - 1).log_end_offset == 0
    assert len(directories(tmp_path)) == MANY


def test_a_topic_deleted_before_its_directories_were_made_leaves_none(tmp_path):
    with stepwise_broker(tmp_path) as broker:
        topic = broker.topics.create('orders', MANY, {})
        run_to_end(broker.topics.delete_many([topic]))
        broker.long_work.finish()
        assert {name.rpartition('.')[2][-7:] for name in directories(tmp_path)} == {'-delete'}
        assert len(directories(tmp_path)) < MANY


@pytest.mark.parametrize('durability', ['disk', 'page-cache'])
def test_many_logs_are_closed_and_recovered_with_what_they_hold(tmp_path, durability):
    settings = {'kbroker.durability': durability}
    with InProcessBroker(tmp_path, settings) as broker:
        for partition in broker.topics.create('orders', MANY, {}).partitions:
            partition.append_batch(record(), Origin.CLIENT)
        while broker.topics.get('orders', MANY - 1).high_watermark == 0:
            broker.turn()
        broker.crash()
    for _ in range(2):
        with InProcessBroker(tmp_path, settings) as broker:
            ends = [partition.log_end_offset for partition in broker.topics.topic('orders').partitions]
            assert ends == [1] * MANY
    assert (tmp_path / '.kafka_cleanshutdown').exists()
    assert not list(tmp_path.glob('orders-*/*.tmp'))


class Hog:
    """Holds every free descriptor."""

    def __enter__(self):
        shared_open_files().release(len(shared_open_files()))
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, self.limits[1]))
        self.held = []
        self.fill()
        return self

    def fill(self):
        while True:
            try:
                self.held.append(os.dup(0))
            except OSError:
                return

    def __exit__(self, *_):
        for descriptor in self.held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)


def test_without_descriptors_requests_are_refused_and_the_directory_stays_online(tmp_path, caplog):
    """Once, a broker without a free descriptor took its log directory offline, as if the disk had failed."""
    with InProcessBroker(tmp_path, clock=ManualClock(1_700_000_000_000)) as broker:
        broker.topics.create('orders', 3, {})
        for number in range(3):
            assert produce(broker, number)() == ErrorCode.NONE
        shortage.__init__()
        with Hog():
            for _ in range(5):
                assert produce(broker, 0)() == ErrorCode.KAFKA_STORAGE_ERROR
            broker.logs.checkpoint_high_watermarks()
            assert broker.logs.failure is None
        assert caplog.text.count('Too many open files') == 1
        assert [produce(broker, number)() for number in range(3)] == [ErrorCode.NONE] * 3
        with Hog() as hog:      # files that can be opened again are closed
            os.close(hog.held.pop())
            assert [produce(broker, number)() for number in range(3)] == [ErrorCode.NONE] * 3
        assert broker.topics.get('orders', 0).log_end_offset == 3


def test_a_sync_that_finds_no_descriptor_is_made_later(tmp_path):
    with InProcessBroker(tmp_path, clock=ManualClock(1_700_000_000_000)) as broker:
        partition = broker.topics.create('orders', 1, {}).partitions[0]
        partition.append_batch(record(), Origin.CLIENT)      # its directory has to be opened for the sync
        with Hog():
            broker.turn()
            assert partition.high_watermark == 0 and broker.logs.failure is None
        broker.clock.advance(SHORTAGE_PAUSE_MS)
        broker.timers.run_due()
        assert partition.high_watermark == 1


def test_a_live_broker_serves_more_partitions_than_it_may_have_descriptors(tmp_path):
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (64, 64))
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=broker.address, retries=20)
        sent = [producer.send(f'topic-{number}', b'value', partition=0) for number in range(200)]
        assert [future.get(60).offset for future in sent] == [0] * 200
        producer.close()
        assert len(os.listdir(f'/proc/{broker.pid}/fd')) <= 64
    finally:
        broker.stop()
    assert not broker.tracebacks() and 'offline' not in ''.join(broker.lines)
