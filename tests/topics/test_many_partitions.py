"""A broker with many partitions creates their directories in parts, and survives a shortage of file descriptors."""
import os
import resource

import pytest
from support.brokers.broker_process import BrokerProcess
from support.brokers.in_process_broker import InProcessBroker
from support.runner.alone import run_alone
from support.worlds.stepwise_work import StepwiseWork
from topics.descriptor_shortage import a_sync_is_made_later, requests_are_refused_and_the_directory_stays_online
from topics.produced import record

from kbroker.base.long_work import run_to_end
from kbroker.log.append import Origin

MANY = 100


def stepwise_broker(tmp_path):
    """Return a broker that does long work only when the test says so."""
    broker = InProcessBroker(tmp_path)
    broker.long_work = StepwiseWork(broker.timers)
    return broker


def directories(tmp_path):
    return {path.name for path in tmp_path.glob('orders-*')}


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


def test_without_descriptors_requests_are_refused_and_the_directory_stays_online(tmp_path):
    """When no file descriptor was free, the broker once took its log directory offline, as if the disk had failed."""
    run_alone(requests_are_refused_and_the_directory_stays_online, tmp_path)


def test_a_sync_that_finds_no_descriptor_is_made_later(tmp_path):
    run_alone(a_sync_is_made_later, tmp_path)


def test_a_live_broker_serves_more_partitions_than_it_may_have_descriptors(tmp_path):
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (64, 64))
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=broker.address, retries=20)
        sent = [producer.send(f'topic-{number}', b'value', partition=0) for number in range(100)]
        assert [future.get(180).offset for future in sent] == [0] * 100
        producer.close()
        assert len(os.listdir(f'/proc/{broker.pid}/fd')) <= 64
    finally:
        broker.stop()
    assert not broker.tracebacks() and 'offline' not in ''.join(broker.lines)
