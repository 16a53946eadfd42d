"""A complete broker compacts its internal topics: they stay small, and their state survives a restart."""

import pytest
from support.brokers.in_process_broker import InProcessBroker

from kbroker.log.check import Severity, check_partition
from kbroker.protocol.messages import (
    CreateTopicsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)

GROUP = 'readers'
BACKOFF_MS = 15_000
DAY_MS = 86_400_000
SETTINGS = {
    'offsets.topic.num.partitions': '1',
    'transaction.state.log.num.partitions': '1',
}


def prepare(broker):
    topic = CreateTopicsRequest.CreatableTopic(name='orders', num_partitions=1, replication_factor=1)
    broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    for key_type in (0, 1):
        broker.ask(FindCoordinatorRequest(coordinator_keys=[GROUP], key_type=key_type))


def commit(broker, offset):
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name='orders', partitions=[partition])
    broker.ask(OffsetCommitRequest(group_id=GROUP, topics=[topic]), 9)


def commit_in_transaction(broker, offset, *, committed):
    """Commit or abort offsets in a transaction of TV2, which writes the offsets, the marker and the state rows."""
    producer = broker.ask(InitProducerIdRequest(transactional_id='copier', transaction_timeout_ms=60_000), 5)
    identity = {
        'transactional_id': 'copier',
        'producer_id': producer.producer_id,
        'producer_epoch': producer.producer_epoch,
    }
    partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name='orders', partitions=[partition])
    answer = broker.ask(TxnOffsetCommitRequest(group_id=GROUP, topics=[topic], **identity), 5)
    assert answer.topics[0].partitions[0].error_code == 0
    assert broker.ask(EndTxnRequest(committed=committed, **identity), 5).error_code == 0
    broker.turn()


def fetched(broker):
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(name='orders', partition_indexes=[0])
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])
    answer = broker.ask(OffsetFetchRequest(groups=[group], require_stable=True), 9)
    return answer.groups[0].topics[0].partitions[0].committed_offset


def let_it_clean(broker):
    """Roll the segments of the internal topics, which are large, and let the cleaner run."""
    for topic in ('__consumer_offsets', '__transaction_state'):
        log_of(broker, topic).roll()
    broker.clock.advance(BACKOFF_MS)
    broker.turn()


def log_of(broker, topic):
    return broker.logs.logs[topic, 0]


@pytest.mark.parametrize('crashes', [False, True])
def test_the_offsets_of_a_group_are_those_of_the_last_commit_after_compaction_and_a_restart(tmp_path, crashes):
    broker = InProcessBroker(tmp_path, SETTINGS)
    with broker:
        prepare(broker)
        for offset in range(100):
            commit(broker, offset)
        log = log_of(broker, '__consumer_offsets')
        before_bytes = log.segments.size_bytes
        let_it_clean(broker)
        assert log.segments.size_bytes < before_bytes / 4
        assert fetched(broker) == 99
        if crashes:
            broker.crash()
    with InProcessBroker(tmp_path, SETTINGS, clock=broker.clock) as broker:
        assert fetched(broker) == 99
        assert len(list(log_of(broker, '__consumer_offsets').batches())) < 40


@pytest.mark.parametrize('crashes', [False, True])
def test_transactions_and_their_offsets_go_on_after_compaction_and_a_restart(tmp_path, crashes):
    broker = InProcessBroker(tmp_path, SETTINGS)
    with broker:
        prepare(broker)
        for day in range(3):
            for number in range(20):
                commit_in_transaction(broker, 100 * day + number, committed=number % 2 == 0)
            let_it_clean(broker)
            broker.clock.advance(DAY_MS + 1)
        assert fetched(broker) == 218
        state = log_of(broker, '__transaction_state')
        assert len(list(state.batches())) < state.log_end_offset / 2
        if crashes:
            broker.crash()
    with InProcessBroker(tmp_path, SETTINGS, clock=broker.clock) as broker:
        assert fetched(broker) == 218
        commit_in_transaction(broker, 1000, committed=True)
        assert fetched(broker) == 1000
    for partition in ('__consumer_offsets-0', '__transaction_state-0'):
        assert [
            finding
            for finding in check_partition(broker.fs, str(tmp_path / partition))
            if finding.severity is Severity.ERROR
        ] == []


def test_a_broker_that_stops_leaves_the_first_dirty_offset_of_each_log_that_was_cleaned(tmp_path):
    with InProcessBroker(tmp_path, SETTINGS) as broker:
        prepare(broker)
        for offset in range(50):
            commit(broker, offset)
        let_it_clean(broker)
        first_dirty_offset = log_of(broker, '__consumer_offsets').segments[-1].base_offset
    assert (tmp_path / 'cleaner-offset-checkpoint').read_text() == f'0\n1\n__consumer_offsets 0 {first_dirty_offset}\n'
