"""Single requests of transactions to a complete broker with a real log directory."""
from __future__ import annotations

import pytest
from support.brokers.in_process_broker import InProcessBroker

from kbroker.base.errors import ErrorCode
from kbroker.protocol import messages
from kbroker.record.batch import encode_batch, iter_batches
from kbroker.record.control import read_end_txn_marker

READ_COMMITTED = 1


def start(directory):
    return InProcessBroker(directory, {'transaction.state.log.num.partitions': '3',
                                       'offsets.topic.num.partitions': '3'})


def create_topic(broker, name='orders', partitions=2):
    request = messages.CreateTopicsRequest
    response = broker.ask(request(topics=[request.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1)], timeout_ms=1000))
    assert response.topics[0].error_code == 0


def initialise(broker, version=5, transactional_id='tx-1'):
    found = broker.ask(messages.FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id]))
    if found.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
        found = broker.ask(messages.FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id]))
    assert found.coordinators[0].error_code == 0
    response = broker.ask(messages.InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60000), version)
    assert response.error_code == 0
    return response.producer_id, response.producer_epoch


def produce(broker, producer, partition, sequence=0, version=12):
    request = messages.ProduceRequest
    batch = encode_batch([(broker.clock.wall_ms(), b'k', b'v')], producer_id=producer[0], producer_epoch=producer[1],
                         base_sequence=sequence, transactional=True)
    response = broker.ask(request(transactional_id='tx-1', acks=-1, timeout_ms=1000, topic_data=[
        request.TopicProduceData(name='orders', partition_data=[
            request.PartitionProduceData(index=partition, records=bytes(batch))])]), version)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def add(broker, producer, partition):
    request = messages.AddPartitionsToTxnRequest
    response = broker.ask(request(
        v3_and_below_transactional_id='tx-1', v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[request.AddPartitionsToTxnTopic(name='orders', partitions=[partition])]), 3)
    return ErrorCode(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


def end(broker, producer, committed, version=5):
    return broker.ask(messages.EndTxnRequest(transactional_id='tx-1', producer_id=producer[0],
                                             producer_epoch=producer[1], committed=committed), version)


def fetch(broker, partition):
    """Fetch a partition with read_committed. Return the batches, the aborted transactions and the last stable
    offset."""
    request = messages.FetchRequest
    response = broker.ask(request(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=READ_COMMITTED, topics=[request.FetchTopic(
            topic='orders', partitions=[request.FetchPartition(partition=partition, fetch_offset=0,
                                                               partition_max_bytes=1 << 20)])]), 12)
    found = response.responses[0].partitions[0]
    assert found.error_code == 0
    batches = list(iter_batches(bytes(found.records or b'')))
    aborted = [(entry.producer_id, entry.first_offset) for entry in found.aborted_transactions or []]
    return batches, aborted, found.last_stable_offset


def test_a_committed_transaction_of_tv2_is_read_on_every_partition(tmp_path):
    with start(tmp_path) as broker:
        create_topic(broker)
        producer = initialise(broker)
        for partition in range(2):
            assert produce(broker, producer, partition) is ErrorCode.NONE
            assert fetch(broker, partition) == ([], [], 0)
        ended = end(broker, producer, True)
        assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, producer[0], producer[1] + 1)
        for partition in range(2):
            (data, _), (marker, batch) = fetch(broker, partition)[0]
            assert (data.producer_epoch, marker.producer_epoch) == (producer[1], producer[1] + 1)
            assert read_end_txn_marker(batch).control_type.name == 'COMMIT'


def test_an_aborted_transaction_is_named_to_committed_readers(tmp_path):
    with start(tmp_path) as broker:
        create_topic(broker)
        producer = initialise(broker)
        produce(broker, producer, 0)
        assert end(broker, producer, False).error_code == 0
        batches, aborted, last_stable_offset = fetch(broker, 0)
        assert (len(batches), aborted, last_stable_offset) == (2, [(producer[0], 0)], 2)


def test_a_producer_of_old_adds_its_partitions_and_is_verified(tmp_path):
    with start(tmp_path) as broker:
        create_topic(broker)
        producer = initialise(broker, version=1)
        assert produce(broker, producer, 0, version=9) is ErrorCode.INVALID_TXN_STATE
        assert produce(broker, producer, 0, version=11) is ErrorCode.TRANSACTION_ABORTABLE
        assert add(broker, producer, 0) is ErrorCode.NONE
        assert produce(broker, producer, 0, version=9) is ErrorCode.NONE
        assert end(broker, producer, True, version=1).error_code == 0
        assert len(fetch(broker, 0)[0]) == 2


def test_a_late_write_of_an_ended_transaction_is_refused(tmp_path):
    """If a write that arrives after the abort of its transaction were appended, it would leave a hanging
    transaction."""
    with start(tmp_path) as broker:
        create_topic(broker)
        producer = initialise(broker)
        produce(broker, producer, 0)
        end(broker, producer, False)
        assert produce(broker, producer, 0, sequence=1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert produce(broker, producer, 0, sequence=1, version=9) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert fetch(broker, 0)[2] == 2


@pytest.mark.parametrize('committed', [True, False])
def test_a_broker_that_is_killed_goes_on_where_it_was(tmp_path, committed):
    with start(tmp_path) as broker:
        create_topic(broker)
        producer = initialise(broker)
        produce(broker, producer, 0)
        broker.crash()
    with start(tmp_path) as broker:
        assert produce(broker, producer, 1) is ErrorCode.NONE
        assert end(broker, producer, committed).error_code == 0
        broker.crash()
    with start(tmp_path) as broker:
        again = end(broker, producer, committed)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (0, producer[0], producer[1] + 1)
        for partition in range(2):
            batches, aborted, _ = fetch(broker, partition)
            # There are two markers: the Complete row was not on the disk when the broker was killed, so the next start
            # wrote the markers again.
            assert [header.is_control for header, _ in batches] == [False, True, True]
            assert len({read_end_txn_marker(batch).control_type for _, batch in batches[1:]}) == 1
            assert bool(aborted) != committed


def test_a_transaction_past_its_timeout_is_aborted_in_the_log(tmp_path):
    with start(tmp_path) as broker:
        create_topic(broker)
        producer = initialise(broker)
        produce(broker, producer, 0)
        broker.clock.advance(70_001)
        broker.turn()
        broker.turn()
        assert fetch(broker, 0)[1] == [(producer[0], 0)]
        assert end(broker, producer, True).error_code == ErrorCode.PRODUCER_FENCED


def test_a_repaired_partition_lets_its_readers_go_on(tmp_path):
    """The test sends the WriteTxnMarkers request of `kafka-transactions abort`. Its marker has the producer's current
    epoch, which only the epoch rule before TV2 accepts."""
    with start(tmp_path) as broker:
        create_topic(broker)
        producer = initialise(broker)
        produce(broker, producer, 0)
        producers = messages.DescribeProducersRequest
        found = broker.ask(producers(topics=[producers.TopicRequest(name='orders', partition_indexes=[0])]))
        (state,) = found.topics[0].partitions[0].active_producers
        assert (state.producer_id, state.producer_epoch, state.current_txn_start_offset) == (*producer, 0)
        request = messages.WriteTxnMarkersRequest
        broker.ask(request(markers=[request.WritableTxnMarker(
            producer_id=producer[0], producer_epoch=producer[1], transaction_result=False, coordinator_epoch=0,
            topics=[request.WritableTxnMarkerTopic(name='orders', partition_indexes=[0])])]), 1)
        assert fetch(broker, 0)[1:] == ([(producer[0], 0)], 2)


def test_the_tools_see_the_transaction(tmp_path):
    with start(tmp_path) as broker:
        create_topic(broker)
        producer = initialise(broker)
        produce(broker, producer, 1)
        (described,) = broker.ask(messages.DescribeTransactionsRequest(transactional_ids=['tx-1'])).transaction_states
        assert (described.transaction_state, described.producer_id) == ('Ongoing', producer[0])
        assert [(topic.topic, topic.partitions) for topic in described.topics] == [('orders', [1])]
        (listed,) = broker.ask(messages.ListTransactionsRequest(state_filters=['Ongoing'])).transaction_states
        assert (listed.transactional_id, listed.producer_id) == ('tx-1', producer[0])
