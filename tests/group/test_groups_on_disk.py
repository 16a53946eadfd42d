"""Groups in a complete broker with its log on a disk, and crashes of this broker."""

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.worlds.group_coordinator import subscription

from kbroker.protocol.messages import (
    CreateTopicsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

GROUP = 'g1'
SETTINGS = {
    'group.initial.rebalance.delay.ms': '0',
    'offsets.topic.num.partitions': '3',
    'transaction.state.log.num.partitions': '3',
}


def start(directory):
    return InProcessBroker(directory, SETTINGS)


def prepare(broker):
    topic = CreateTopicsRequest.CreatableTopic(name='orders', num_partitions=2, replication_factor=1)
    broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    for key_type in (0, 1):
        answer = broker.ask(FindCoordinatorRequest(coordinator_keys=[GROUP], key_type=key_type))
        assert answer.coordinators[0].error_code == 0


def commit(broker, partition, offset):
    partitions = [OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)]
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name='orders', partitions=partitions)
    answer = broker.ask(OffsetCommitRequest(group_id=GROUP, topics=[topic]), 9)
    return answer.topics[0].partitions[0].error_code


def fetched(broker, require_stable=False):
    """Fetch the offsets of the partitions 0 and 1 of `orders`. Return {partition: (offset, error code)}."""
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(name='orders', partition_indexes=[0, 1])
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])
    answer = broker.ask(OffsetFetchRequest(groups=[group], require_stable=require_stable), 9)
    partitions = answer.groups[0].topics[0].partitions
    return {partition.partition_index: (partition.committed_offset, partition.error_code) for partition in partitions}


def test_offsets_survive_a_crash(tmp_path):
    broker = start(tmp_path)
    with broker:
        prepare(broker)
        assert commit(broker, 0, 5) == commit(broker, 0, 6) == commit(broker, 1, 7) == 0
        broker.crash()
    with start(tmp_path) as broker:
        assert fetched(broker) == {0: (6, 0), 1: (7, 0)}


def test_a_stable_group_survives_a_crash(tmp_path):
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name='range', metadata=subscription('orders'))
    broker = start(tmp_path)
    with broker:
        prepare(broker)
        join = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            group_instance_id='i1',
            protocol_type='consumer',
            protocols=[protocol],
        )
        parked = broker.begin(join, 9)
        broker.turn()
        joined = broker.answer_to(parked, join, 9)
        assignment = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b'all')
        sync = SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id='i1',
            protocol_type='consumer',
            protocol_name='range',
            assignments=[assignment],
        )
        assert broker.ask(sync, 5).assignment == b'all'
        broker.crash()
    with start(tmp_path) as broker:
        assert broker.ask(sync, 5).assignment == b'all'


@pytest.mark.parametrize('committed', [True, False])
def test_offsets_of_a_transaction_survive_a_crash_in_its_middle(tmp_path, committed):
    broker = start(tmp_path)
    with broker:
        prepare(broker)
        commit(broker, 0, 1)
        init = InitProducerIdRequest(transactional_id='tx-1', transaction_timeout_ms=60_000)
        producer = broker.ask(init, 5)
        partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=9)
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name='orders', partitions=[partition])
        in_transaction = TxnOffsetCommitRequest(
            transactional_id='tx-1',
            group_id=GROUP,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=[topic],
        )
        answer = broker.ask(in_transaction, 5)
        assert answer.topics[0].partitions[0].error_code == 0
        assert fetched(broker, require_stable=True)[0] == (-1, 88)
        broker.crash()
    with start(tmp_path) as broker:
        assert fetched(broker, require_stable=True)[0] == (-1, 88)
        assert fetched(broker)[0] == (1, 0)
        end = EndTxnRequest(
            transactional_id='tx-1',
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=committed,
        )
        assert broker.ask(end, 5).error_code == 0
        broker.turn()
        assert fetched(broker, require_stable=True)[0] == ((9, 0) if committed else (1, 0))


def test_a_fenced_producer_commits_no_offsets(tmp_path):
    with start(tmp_path) as broker:
        prepare(broker)
        init = InitProducerIdRequest(transactional_id='tx-1', transaction_timeout_ms=60_000)
        old = broker.ask(init, 5)
        broker.ask(init, 5)
        partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=9)
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name='orders', partitions=[partition])
        answer = broker.ask(
            TxnOffsetCommitRequest(
                transactional_id='tx-1',
                group_id=GROUP,
                producer_id=old.producer_id,
                producer_epoch=old.producer_epoch,
                topics=[topic],
            ),
            5,
        )
        assert answer.topics[0].partitions[0].error_code == 47
        assert fetched(broker, require_stable=True)[0] == (-1, 0)
