"""The registry of topics: changes by clients, agreement of the metadata with the files, and restarts."""
import pytest
from support.brokers.broker_fixtures import in_process_broker
from support.brokers.in_process_broker import InProcessBroker

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker.base.long_work import run_to_end
from kbroker.log.append import Origin
from kbroker.record.batch import encode_batch


def delete(broker, name):
    run_to_end(broker.topics.delete_many([broker.topics.topic(name)]))


def record():
    return encode_batch([(1_700_000_000_000, b'k', b'v')])


broker = in_process_broker()


def test_a_topic_is_found_by_name_and_by_id_until_it_is_deleted(broker):
    topic = broker.topics.create('orders', 2, {})
    assert broker.topics.topic('orders') is topic and broker.topics.topic_by_id(topic.topic_id) is topic
    assert broker.topics.get('orders', 1) is topic.partitions[1]
    delete(broker, 'orders')
    assert broker.topics.topic('orders') is None and broker.topics.topic_by_id(topic.topic_id) is None
    with pytest.raises(KafkaError) as refused:
        broker.topics.get('orders', 1)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize('partition', [-1, 2, 2**31 - 1])
def test_a_partition_that_is_not_there_is_not_found(broker, partition):
    broker.topics.create('orders', 2, {})
    assert broker.topics.find('orders', partition) is None


def test_listeners_are_notified_when_topics_become_usable_and_when_they_no_longer_are(broker):
    heard = []
    topics = broker.topics
    topics.on_topic_created.append(lambda topic: heard.append(('created', topics.topic(topic.name) is topic)))
    topics.on_topic_deleted.append(lambda topic: heard.append(('deleted', topics.topic(topic.name) is None)))
    broker.topics.create('orders', 1, {})
    delete(broker, 'orders')
    assert heard == [('created', True), ('deleted', True)]


def test_a_recreated_topic_has_another_id_and_an_empty_log(broker):
    first = broker.topics.create('orders', 1, {})
    broker.topics.get('orders', 0).append_batch(record(), Origin.CLIENT)
    broker.turn()
    delete(broker, 'orders')
    second = broker.topics.create('orders', 1, {})
    assert second.topic_id != first.topic_id
    assert second.partitions[0].log_end_offset == 0


def test_more_partitions_are_empty_and_the_old_ones_keep_their_records(broker):
    broker.topics.create('orders', 1, {})
    broker.topics.get('orders', 0).append_batch(record(), Origin.CLIENT)
    run_to_end(broker.topics.add_partitions({'orders': 3}))
    assert [partition.log_end_offset for partition in broker.topics.topic('orders').partitions] == [1, 0, 0]


@pytest.mark.parametrize(('name', 'partitions'), [(CONSUMER_OFFSETS, 50), (TRANSACTION_STATE, 50)])
def test_internal_topics_are_made_at_first_use_with_kafkas_configs(broker, name, partitions):
    topic = broker.topics.ensure_internal(name)
    assert topic.is_internal and len(topic.partitions) == partitions
    assert topic.config.cleanup_policy == {'compact'} and topic.config.segment_bytes == 104857600
    assert broker.topics.ensure_internal(name) is topic


def test_a_changed_config_reaches_the_log(broker):
    broker.topics.create('orders', 1, {'retention.ms': '1000'})
    run_to_end(broker.metadata.configs.alter({(2, 'orders'): {'retention.ms': None, 'segment.ms': '5000'}}))
    run_to_end(broker.topics.configure_topic('orders'))
    config = broker.logs.logs['orders', 0].config
    assert (config.retention_ms, config.segment_ms) == (604800000, 5000)


def test_a_restart_finds_topics_records_and_configs(tmp_path):
    with InProcessBroker(tmp_path) as broker:
        topic = broker.topics.create('orders', 2, {'retention.ms': '1000'})
        broker.topics.get('orders', 1).append_batch(record(), Origin.CLIENT)
        broker.turn()
    with InProcessBroker(tmp_path) as broker:
        again = broker.topics.topic('orders')
        assert (again.topic_id, again.config.retention_ms) == (topic.topic_id, 1000)
        assert [partition.high_watermark for partition in again.partitions] == [0, 1]
        assert again.partitions[1].leader_epoch > topic.partitions[1].leader_epoch


def test_a_directory_of_no_topic_is_set_aside_and_a_missing_one_is_made(tmp_path):
    with InProcessBroker(tmp_path) as broker:
        broker.topics.create('orders', 2, {})
    (tmp_path / 'orders-1').rename(tmp_path / 'nobody-0')
    with InProcessBroker(tmp_path) as broker:
        assert broker.topics.topic('nobody') is None
        assert broker.topics.get('orders', 1).log_end_offset == 0
    assert [path.name.endswith('-stray') for path in tmp_path.glob('nobody*')] == [True]


def test_flush_ms_is_honoured_at_the_interval_of_the_scheduler(tmp_path):
    settings = {'kbroker.durability': 'page-cache', 'log.flush.scheduler.interval.ms': '1000'}
    with InProcessBroker(tmp_path, settings) as broker:
        broker.topics.create('orders', 1, {'flush.ms': '500'})
        log = broker.logs.logs['orders', 0]
        broker.topics.get('orders', 0).append_batch(record(), Origin.CLIENT)
        broker.turn()
        assert log.flushed_offset == 0
        broker.clock.advance(1000)
        broker.turn()
        assert log.flushed_offset == 1
