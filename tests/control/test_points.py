"""Each point holds its operation with the state that its description promises, and lets all other operations go on."""
import pytest
from apis.api_client import ApiClient, TransactionalClient
from controlled_broker import SECOND_MS, ControlledBroker
from support.brokers.in_process_broker import InProcessBroker

from kbroker.base.errors import ErrorCode
from kbroker.control.points import POINTS
from kbroker.topics.flusher import Flusher

NONE = ErrorCode.NONE


def commit_offset(client, generation=-1):
    return client.begin('OffsetCommit', 8, group_id='g', generation_id_or_member_epoch=generation, topics=[
        {'name': 'orders', 'partitions': [{'partition_index': 0, 'committed_offset': 5}]}])


def committed_offset(client, group='g'):
    answer = client.ask('OffsetFetch', 7, group_id=group, topics=[{'name': 'orders', 'partition_indexes': [0]}])
    return answer.topics[0].partitions[0].committed_offset


def find_group(client, group='g'):
    assert client.ask('FindCoordinator', coordinator_keys=[group]).coordinators[0].error_code == NONE


def test_no_part_of_a_broker_without_control_passes_points(tmp_path):
    with InProcessBroker(tmp_path) as broker:
        assert broker.steps is None
        assert broker.transactions.ender.steps is None
        assert type(broker.flusher) is Flusher


# Requests and replies

def test_a_request_that_is_held_has_no_effect_until_it_goes_on(broker):
    held = broker.hold('request', api='Produce', topic='orders')
    produced = broker.client.begin_produce(broker.client.batch())
    assert not produced.is_answered
    assert (held.matched, len(held.held), broker.end_offset('orders')) == (1, 1, 0)
    assert broker.client.ask('Metadata', topics=None).topics[0].name == 'orders'     # other requests go on
    broker.release(held)
    assert produced.answer.responses[0].partition_responses[0].error_code == NONE
    assert (len(held.held), broker.end_offset('orders')) == (0, 1)


def test_a_hold_that_was_released_holds_the_next_operation(broker):
    held = broker.hold('request', api='Produce')
    broker.client.begin_produce(broker.client.batch())
    broker.release(held)
    assert not broker.client.begin_produce(broker.client.batch()).is_answered
    assert (held.matched, len(held.held)) == (2, 1)


def test_a_removed_hold_lets_its_operations_go_on(broker):
    held = broker.hold('request', api='Produce')
    produced = broker.client.begin_produce(broker.client.batch())
    assert broker.rules.remove(held.id).matched == 1
    broker.client.settle()
    assert produced.is_answered


def test_a_reply_that_is_held_has_had_its_effect(broker):
    held = broker.hold('reply', api='Produce')
    produced = broker.client.begin_produce(broker.client.batch())
    assert not produced.is_answered
    assert broker.high_watermark('orders') == 1
    broker.release(held)
    assert produced.answer.responses[0].partition_responses[0].base_offset == 0


def test_a_reply_that_is_ready_at_once_is_held_too(broker):
    held = broker.hold('reply', api='Metadata')
    asked = broker.client.begin('Metadata', topics=None)
    assert not asked.is_answered
    broker.release(held)
    assert asked.answer.topics[0].name == 'orders'


def test_a_request_of_a_connection_that_has_closed_has_no_effect(broker):
    held = broker.hold('request', api='Produce')
    produced = broker.client.begin_produce(broker.client.batch())
    broker.disconnect(produced.connection)
    assert (held.matched, len(held.held)) == (1, 0)
    broker.release(held)
    assert broker.end_offset('orders') == 0


def test_a_request_names_what_it_is_about(broker):
    find_group(broker.client)
    commit_offset(broker.client)
    (step,) = [step for step in broker.steps_at('request') if step['api'] == 'OffsetCommit']
    assert {name: step[name] for name in ('version', 'client_id', 'group', 'topic', 'partition', 'occurrence')} == {
        'version': 8, 'client_id': 'test', 'group': 'g', 'topic': 'orders', 'partition': 0, 'occurrence': 1}


def test_a_request_for_several_partitions_matches_each_of_them(broker):
    held = broker.hold('request', topic='orders', partition=2)
    requests = [broker.client.begin('ListOffsets', 9, replica_id=-1, topics=[
        {'name': 'orders', 'partitions': [{'partition_index': index, 'timestamp': -1} for index in indexes]}])
        for indexes in ([0, 1], [1, 2])]
    assert [request.is_answered for request in requests] == [True, False]
    broker.release(held)


# Appends

def test_an_append_that_is_held_before_its_sync_is_not_durable(broker):
    held = broker.hold('append.written', topic='orders', partition=0)
    produced = broker.client.begin_produce(broker.client.batch())
    assert not produced.is_answered
    assert (broker.end_offset('orders'), broker.high_watermark('orders')) == (1, 0)
    assert broker.client.produce(broker.client.batch(), partition=1).error_code == NONE
    broker.release(held)
    assert produced.is_answered
    assert broker.high_watermark('orders') == 1


def test_an_append_that_is_held_after_its_sync_is_not_visible(broker):
    held = broker.hold('append.durable', topic='orders')
    produced = broker.client.begin_produce(broker.client.batch())
    assert not produced.is_answered
    assert broker.high_watermark('orders') == 0
    broker.release(held)
    assert produced.is_answered
    assert broker.high_watermark('orders') == 1


@pytest.mark.parametrize('point', ['append.written', 'append.durable'])
def test_appends_to_a_partition_that_is_held_are_durable_after_it(broker, point):
    held = broker.hold(point, topic='orders', occurrence=1)
    produced = [broker.client.begin_produce(broker.client.batch()) for _ in range(3)]
    assert not any(each.is_answered for each in produced)
    broker.release(held)
    assert all(each.is_answered for each in produced)
    assert broker.high_watermark('orders') == 3


@pytest.mark.parametrize('point', ['append.written', 'append.durable'])
def test_an_append_that_is_held_for_longer_than_its_timeout_is_answered(broker, point):
    broker.hold(point, topic='orders')
    produced = broker.client.begin_produce(broker.client.batch())
    broker.clock.advance(2 * SECOND_MS)
    broker.turn()
    assert produced.answer.responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize('point', ['append.written', 'append.durable'])
def test_a_topic_that_is_deleted_while_an_append_is_held_fails_the_append(broker, point):
    held = broker.hold(point, topic='orders')
    produced = broker.client.begin_produce(broker.client.batch())
    broker.client.ask('DeleteTopics', 5, topic_names=['orders'])
    assert produced.answer.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.rules.remove(held.id)
    broker.client.settle()
    broker.client.create_topic('orders')
    assert broker.client.produce(broker.client.batch()).error_code == NONE


# Transactions

def test_a_decision_that_is_held_is_durable_and_not_answered(broker):
    producer = broker.open_transaction()
    held = broker.hold('transaction.prepared', transactional_id='tx')
    commit = broker.begin_commit(producer)
    assert not commit.is_answered
    assert state_of(broker) == 'PrepareCommit'
    assert broker.steps_at('transaction.marker') == []
    broker.release(held)
    assert commit.answer.error_code == NONE
    assert state_of(broker) == 'CompleteCommit'
    assert broker.stable_offset('orders') == 2


def test_the_marker_of_one_partition_is_held_and_the_others_are_written(broker):
    producer = broker.open_transaction(partitions=3)
    held = broker.hold('transaction.marker', topic='orders', partition=1)
    commit = broker.begin_commit(producer)
    assert commit.answer.error_code == NONE
    assert [broker.stable_offset('orders', partition) for partition in range(3)] == [2, 0, 2]
    assert state_of(broker) == 'PrepareCommit'
    broker.release(held)
    assert [broker.stable_offset('orders', partition) for partition in range(3)] == [2, 2, 2]
    assert state_of(broker) == 'CompleteCommit'


def test_the_markers_of_a_large_transaction_are_held_one_by_one(broker):
    broker.client.create_topic('wide', 40)
    producer = broker.open_transaction(40, 'wide')
    held = broker.hold('transaction.marker', topic='wide')
    broker.begin_commit(producer)
    broker.client.settle()
    assert len(held.held) == 40
    broker.release(held)
    assert state_of(broker) == 'CompleteCommit'
    assert [step['partition'] for step in broker.steps_at('transaction.marker')] == list(range(40))


def test_a_transaction_that_is_held_before_its_end_has_all_markers(broker):
    producer = broker.open_transaction(partitions=2)
    held = broker.hold('transaction.marked')
    broker.begin_commit(producer)
    assert [broker.stable_offset('orders', partition) for partition in range(2)] == [2, 2]
    again = producer.begin('AddPartitionsToTxn', 3, v3_and_below_transactional_id='tx',
                           v3_and_below_producer_id=producer.producer_id,
                           v3_and_below_producer_epoch=producer.producer_epoch,
                           v3_and_below_topics=[{'name': 'orders', 'partitions': [0]}])
    assert not again.is_answered        # it waits for the end of the transaction before it
    broker.release(held)
    assert again.answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == NONE


@pytest.mark.parametrize('point', ['transaction.prepared', 'transaction.marker', 'transaction.marked'])
def test_a_topic_that_is_deleted_while_its_transaction_is_held_needs_no_marker(broker, point):
    producer = broker.open_transaction()
    held = broker.hold(point)
    broker.begin_commit(producer)
    broker.client.ask('DeleteTopics', 5, topic_names=['orders'])
    broker.client.settle()
    broker.rules.remove(held.id)
    broker.client.settle()
    assert state_of(broker) == 'CompleteCommit'


def test_a_transaction_that_the_broker_aborts_passes_the_points(broker):
    producer = broker.open_transaction()
    held = broker.hold('transaction.prepared')
    broker.clock.advance(120 * SECOND_MS)
    broker.client.settle()
    assert len(held.held) == 1
    assert state_of(broker) == 'PrepareAbort'
    broker.release(held)
    assert broker.begin_commit(producer).answer.error_code != NONE
    assert broker.stable_offset('orders') == 2


def state_of(broker):
    answer = broker.client.ask('DescribeTransactions', transactional_ids=['tx'])
    return answer.transaction_states[0].transaction_state


# Offsets

def test_offsets_that_are_held_before_their_commit_are_not_written(broker):
    find_group(broker.client)
    held = broker.hold('offsets.committing', group='g')
    commit = commit_offset(broker.client)
    assert not commit.is_answered
    assert broker.end_offset('__consumer_offsets') == 0
    broker.release(held)
    assert commit.answer.topics[0].partitions[0].error_code == NONE
    assert committed_offset(broker.client) == 5


def test_offsets_that_are_held_after_their_commit_are_visible_and_not_answered(broker):
    find_group(broker.client)
    held = broker.hold('offsets.committed', group='g')
    commit = commit_offset(broker.client)
    assert not commit.is_answered
    assert committed_offset(broker.client) == 5
    broker.release(held)
    assert commit.answer.topics[0].partitions[0].error_code == NONE


def test_offsets_that_are_refused_after_they_were_held_are_answered_with_the_error(broker):
    find_group(broker.client)
    held = broker.hold('offsets.committing')
    commit = commit_offset(broker.client, generation=3)
    broker.release(held)
    assert commit.answer.topics[0].partitions[0].error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize('point', ['offsets.committing', 'offsets.committed'])
def test_offsets_of_a_transaction_are_held(broker, point):
    find_group(broker.client)
    producer = TransactionalClient(broker)
    held = broker.hold(point, transactional_id='tx')
    commit = producer.begin(
        'TxnOffsetCommit', 5, transactional_id='tx', group_id='g', producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch, generation_id_or_member_epoch=-1, topics=[
            {'name': 'orders', 'partitions': [{'partition_index': 0, 'committed_offset': 7}]}])
    assert not commit.is_answered
    assert broker.end_offset('__consumer_offsets') == (point == 'offsets.committed')
    broker.release(held)
    assert commit.answer.topics[0].partitions[0].error_code == NONE
    assert broker.begin_commit(producer).answer.error_code == NONE
    broker.client.settle()
    assert committed_offset(broker.client) == 7


# Groups

def join(client, member_id='', group='g'):
    return client.begin('JoinGroup', 5, group_id=group, session_timeout_ms=30_000, rebalance_timeout_ms=60_000,
                        member_id=member_id, protocol_type='consumer', protocols=[{'name': 'range', 'metadata': b'm'}])


def begin_heartbeat(client, group='g', member_epoch=0):
    return client.begin('ConsumerGroupHeartbeat', 0, group_id=group, member_id='m', member_epoch=member_epoch,
                        rebalance_timeout_ms=60_000, subscribed_topic_names=['orders'], topic_partitions=[])


def test_a_rebalance_of_a_classic_group_is_held_before_its_generation(broker):
    find_group(broker.client)
    held = broker.hold('group.rebalance', group='g')
    member_id = join(broker.client).answer.member_id
    joined = join(broker.client, member_id)
    broker.clock.advance(1)
    broker.client.settle()
    assert not joined.is_answered
    assert len(held.held) == 1
    other = ApiClient(broker, 'other')
    joined_later = join(other, join(other).answer.member_id)
    broker.client.settle()
    assert (held.matched, joined_later.is_answered) == (1, False)      # it joins the held rebalance
    broker.rules.remove(held.id)
    broker.client.settle()
    assert (joined.answer.generation_id, joined_later.answer.generation_id) == (1, 1)


def test_a_rebalance_of_a_consumer_group_is_held_before_its_epoch(broker):
    find_group(broker.client)
    held = broker.hold('group.rebalance', group='g')
    joined, joined_to_other = (begin_heartbeat(broker.client, group) for group in ('g', 'h'))
    broker.client.settle()
    assert not joined.is_answered
    assert len(held.held) == 1
    broker.release(held)
    assert joined.answer.error_code == NONE
    assert joined.answer.member_epoch == joined_to_other.answer.member_epoch


@pytest.mark.parametrize(('api', 'version', 'fields'), [
    ('ShareGroupHeartbeat', 1, {'subscribed_topic_names': ['orders']}),
    ('StreamsGroupHeartbeat', 0, {
        'rebalance_timeout_ms': 60_000, 'active_tasks': [], 'standby_tasks': [], 'warmup_tasks': [], 'process_id': 'p',
        'topology': {'epoch': 0, 'subtopologies': [{'subtopology_id': '0', 'source_topics': ['orders']}]}}),
])
def test_a_rebalance_of_another_kind_of_group_is_held(broker, api, version, fields):
    find_group(broker.client)
    held = broker.hold('group.rebalance', group='g')
    beat = broker.client.begin(api, version, group_id='g', member_id='m', member_epoch=0, **fields)
    broker.client.settle()
    assert (beat.is_answered, len(held.held)) == (False, 1)
    broker.release(held)
    assert beat.answer.error_code == NONE


def test_a_member_that_leaves_a_consumer_group_begins_a_rebalance(broker):
    find_group(broker.client)
    joined = begin_heartbeat(broker.client)
    broker.client.settle()
    epoch = joined.answer.member_epoch
    held = broker.hold('group.rebalance', group='g')
    left = begin_heartbeat(broker.client, member_epoch=-1)
    broker.client.settle()
    assert (left.is_answered, len(held.held)) == (False, 1)
    late = begin_heartbeat(broker.client, member_epoch=epoch)
    broker.client.settle()
    assert not late.is_answered         # the operations on a group keep their order
    broker.release(held)
    assert left.answer.error_code == NONE
    assert late.answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


# All points

def reach(broker, point):
    """Make an operation reach a point."""
    if point in ('request', 'reply', 'append.written', 'append.durable'):
        broker.client.begin_produce(broker.client.batch())
    elif point.startswith('transaction'):
        broker.begin_commit(broker.open_transaction())
    elif point.startswith('offsets'):
        find_group(broker.client)
        commit_offset(broker.client)
    else:
        find_group(broker.client)
        begin_heartbeat(broker.client)
    broker.client.settle()


HOLDING = [name for name, point in POINTS.items() if 'hold' in point.actions]


@pytest.mark.parametrize('point', HOLDING)
def test_a_broker_stops_cleanly_while_an_operation_is_held(tmp_path, point):
    with ControlledBroker(tmp_path) as broker:
        broker.client.create_topic('orders', 3)
        held = broker.hold(point)
        reach(broker, point)
        assert held.held
    with ControlledBroker(tmp_path) as broker:
        assert broker.logs.clean_shutdown
        if point.startswith('transaction'):
            assert state_of(broker) == 'CompleteCommit'
        broker.rules.add({'point': point, 'action': 'delay', 'delay_ms': 1})
        reach(broker, point)


@pytest.mark.parametrize('point', HOLDING)
def test_a_broker_that_crashes_while_an_operation_is_held_starts_again(tmp_path, point):
    with ControlledBroker(tmp_path) as broker:
        broker.client.create_topic('orders', 3)
        held = broker.hold(point)
        reach(broker, point)
        assert held.held
        broker.crash()
    with ControlledBroker(tmp_path) as broker:
        broker.client.settle()
        if point.startswith('transaction'):
            assert state_of(broker) == 'CompleteCommit'
            assert broker.stable_offset('orders') == broker.end_offset('orders')


@pytest.mark.parametrize('point', HOLDING)
def test_a_step_has_only_the_facts_of_its_point(broker, point):
    reach(broker, point)
    step, *_ = broker.steps_at(point)
    assert set(step) <= set(POINTS[point].describe()['facts'])
    assert step['occurrence'] == 1


@pytest.mark.parametrize('point', HOLDING)
def test_an_operation_that_is_delayed_goes_on_after_the_delay(broker, point):
    rule = broker.rules.add({'point': point, 'action': 'delay', 'delay_ms': 50, 'select': {'times': 1}})
    reach(broker, point)
    assert (rule.matched, len(broker.rules.waiting)) == (1, 1)
    broker.clock.advance(49)
    broker.client.settle()
    assert len(broker.rules.waiting) == 1
    broker.clock.advance(1)
    broker.client.settle()
    assert not broker.rules.waiting
