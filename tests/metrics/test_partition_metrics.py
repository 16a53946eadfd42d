"""The metrics of topics, groups and their lags, and that collectors work in short parts."""
import pytest
from support.brokers.collected import collected
from support.brokers.in_process_broker import InProcessBroker
from support.clients.tv1_producer import InProcessPeer, Tv1Producer, create_topics, sound
from support.messages.message_builder import build

from kbroker.base.long_work import run_to_end
from kbroker.metrics import groups, partitions, transactions
from kbroker.metrics.table import MOST_SERIES

SETTINGS = {'offsets.topic.num.partitions': '3', 'transaction.state.log.num.partitions': '3'}


@pytest.fixture
def broker(tmp_path):
    with InProcessBroker(tmp_path / 'data', SETTINGS) as broker:
        create_topics(InProcessPeer(broker), orders=2, audit=1)
        broker.ask(build('FindCoordinatorRequest', key_type=0, coordinator_keys=['any']))
        yield broker


def commit(broker, group, **offsets):
    """Commit an offset in partition 0 of each of these topics."""
    sound(broker.ask(build('OffsetCommitRequest', group_id=group, generation_id_or_member_epoch=-1, topics=[
        dict(name=topic, partitions=[dict(partition_index=0, committed_offset=offset)])
        for topic, offset in offsets.items()]), 9))


def written(broker, topic, partition, records, committed=True):
    producer = Tv1Producer(InProcessPeer(broker), f'{topic}-{partition}')
    producer.add(topic, partition)
    for _ in range(records):
        producer.write(topic, partition)
    if committed is not None:
        producer.end(committed)
    return producer


def test_sizes_segments_and_offsets_are_those_of_the_logs(broker):
    written(broker, 'orders', 1, 3)
    found = collected(partitions.collect(broker))
    assert found['kbroker_topic_partitions', 'orders'] == 2
    assert found['kbroker_topic_segments', 'orders'] == 2
    assert found['kbroker_topic_size_bytes', 'audit'] == 0
    sizes = [broker.topics.get('orders', index).size_bytes for index in (0, 1)]
    assert found['kbroker_topic_size_bytes', 'orders'] == sum(sizes) > 0
    assert found['kbroker_partition_high_watermark', 'orders', '1'] == 4      # three records and a marker
    assert found['kbroker_partition_log_start_offset', 'orders', '1'] == 0
    assert found['kbroker_topics',] == 4 and found['kbroker_partitions',] == 3 + 3 + 3
    assert found['kbroker_partitions_offline',] == 0
    broker.topics.get('orders', 1).delete_records(2)
    assert collected(partitions.collect(broker))['kbroker_partition_log_start_offset', 'orders', '1'] == 2


def test_after_a_failure_of_the_disk_all_partitions_are_offline(broker):
    broker.logs.fail('a test')
    broker.turn()
    found = collected(partitions.collect(broker))
    assert found['kbroker_partitions_offline',] == found['kbroker_partitions',] == 6
    assert collected(groups.collect(broker)) == {}
    assert collected(transactions.collect(broker))['kbroker_transactions_open',] == 0
    broker.crash()


def test_lags_are_counted_to_both_ends_by_group_and_by_topic(broker):
    written(broker, 'audit', 0, 4)
    written(broker, 'orders', 0, 2, committed=None)
    commit(broker, 'slow', audit=1, orders=0)
    commit(broker, 'fast', audit=5)
    commit(broker, 'ahead', audit=99)
    found = collected(groups.collect(broker))
    assert found['kbroker_groups', 'classic', 'Empty'] == 3
    assert found['kbroker_group_members', 'classic', 'slow'] == 0
    assert (found['kbroker_group_lag', 'slow'], found['kbroker_group_stable_lag', 'slow']) == (4 + 2, 4 + 0)
    assert (found['kbroker_group_topic_lag', 'slow', 'orders'],
            found['kbroker_group_topic_stable_lag', 'slow', 'orders']) == (2, 0)
    assert found['kbroker_group_lag', 'fast'] == found['kbroker_group_lag', 'ahead'] == 0
    worst = run_to_end(groups.survey(broker)).worst()
    assert [(lag.group_id, lag.to_end, lag.to_stable, lag.partitions) for lag in worst] == [('slow', 6, 4, 2)]


def test_a_topic_and_a_group_may_be_removed_between_two_parts(broker):
    create_topics(InProcessPeer(broker), wide=600)
    for number in range(200):
        commit(broker, f'group-{number}', audit=0)
    assert sum(1 for _ in groups.survey(broker)) >= 200 * groups.GROUP_COST // 64      # short parts
    assert sum(1 for _ in partitions.survey(broker)) >= 600 // 128
    for collect in (partitions.collect, groups.collect, transactions.collect):
        samples = collect(broker)
        next(samples)
        broker.begin(build('DeleteTopicsRequest', topics=[dict(name='wide')], timeout_ms=1000), 6)
        broker.begin(build('DeleteGroupsRequest', groups_names=['group-199', 'group-150']), 2)
        broker.long_work.finish()
        broker.turn()
        collected(samples)
    assert broker.topics.topic('wide') is None and len(broker.groups.list_groups()) == 198


def test_pairs_of_group_and_topic_beyond_the_bound_are_only_counted(broker, monkeypatch):
    monkeypatch.setattr(groups, 'MOST_SERIES', 3)
    for number in range(4):
        commit(broker, f'group-{number}', audit=0, orders=0)
    survey = run_to_end(groups.survey(broker))
    assert (len(survey.topic_lags), survey.topics_left_out) == (3, 5)
    assert MOST_SERIES > 3
    samples = [sample for sample in groups.collect(broker) if sample and sample[0] is groups.TOPIC_LAG]
    assert len(samples) == 8
