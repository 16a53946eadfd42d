"""The APIs for transactional producers and for transaction tools, tested through their wire formats."""
from __future__ import annotations

import importlib
from collections.abc import Generator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.in_process_broker import InProcessConnection, frame_of, read_answer
from support.messages.message_builder import build
from support.worlds.transaction_coordinator import STATE_TOPIC, World

from kbroker.apis.serving.dispatch import Dispatcher
from kbroker.apis.serving.request import RequestCounts
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import LongWork, run_to_end
from kbroker.protocol import messages
from kbroker.protocol.codec import decode, encode
from kbroker.record.batch import encode_batch
from kbroker.record.control import encode_end_txn_marker
from kbroker.security.audit import Audit

NONE = ErrorCode.NONE
FILES = {
    'InitProducerId': 'init_producer_id', 'AddPartitionsToTxn': 'add_partitions_to_txn',
    'AddOffsetsToTxn': 'add_offsets_to_txn', 'EndTxn': 'end_txn', 'WriteTxnMarkers': 'write_txn_markers',
    'DescribeProducers': 'describe_producers', 'DescribeTransactions': 'describe_transactions',
    'ListTransactions': 'list_transactions',
}


def api(name):
    return importlib.import_module(f'kbroker.apis.{FILES[name]}').API


def ask(world, request, version):
    """Send a request as a frame. Return its connection."""
    node = SimpleNamespace(transactions=world.coordinator, topics=world.topics, clock=world.clock, config=world.config,
                           long_work=LongWork(world.timers), request_counts=RequestCounts(),
                           groups=SimpleNamespace(partition_of=lambda group_id: 2),
                           audit=Audit(), change_log=None, timers=world.timers)
    connection = InProcessConnection(1)
    apis = [api(type(request).__name__.removesuffix('Request'))]
    Dispatcher(node, apis).handle(connection, 0, memoryview(bytearray(frame_of(request, version))))
    assert connection.closed is None, connection.closed
    return connection


def call(world, name, version, **fields):
    """Send a request. Return the answer, or None while it is parked."""
    request = build(f'{name}Request', **fields)
    connection = ask(world, request, version)
    assert len(connection.replies) <= 1
    return read_answer(request, version, connection.replies[0]) if connection.replies else None


@pytest.fixture
def world():
    world = World()
    world.init()
    return world


def test_each_api_serves_the_versions_of_kafka():
    assert {name: (api(name).min_version, api(name).max_version) for name in FILES} == {
        'InitProducerId': (0, 5), 'AddPartitionsToTxn': (0, 5), 'AddOffsetsToTxn': (0, 4), 'EndTxn': (0, 5),
        'WriteTxnMarkers': (1, 2), 'DescribeProducers': (0, 0), 'DescribeTransactions': (0, 0),
        'ListTransactions': (0, 2)}


@pytest.mark.parametrize('name', FILES)
def test_each_api_answers_a_request_that_failed_as_a_whole_in_every_version(name):
    request_class, response_class = getattr(messages, f'{name}Request'), getattr(messages, f'{name}Response')
    found = api(name)
    if found.error_response is None:
        assert 'error_code' in response_class._layout.names
        return
    for version in range(found.min_version, found.max_version + 1):
        response = found.failure(request_class(), ErrorCode.UNKNOWN_SERVER_ERROR, 'why', version)
        if isinstance(response, Generator):
            response = run_to_end(response)
        assert decode(response_class, encode(response, version), version) == response


# -- InitProducerId


@pytest.mark.parametrize('version', range(6))
def test_a_producer_is_initialised(world, version):
    response = call(world, 'InitProducerId', version, transactional_id='tx-2', transaction_timeout_ms=60000)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (0, 1001, 0)
    response = call(world, 'InitProducerId', version, transactional_id=None, transaction_timeout_ms=60000)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (0, 1002, 0)


@pytest.mark.parametrize(('version', 'code'), [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED),
                                               (5, ErrorCode.PRODUCER_FENCED)])
def test_an_initialisation_fences_by_the_code_that_its_version_knows(world, version, code):
    response = call(world, 'InitProducerId', version, transactional_id='tx-1', transaction_timeout_ms=60000,
                    producer_id=77, producer_epoch=5)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (code, -1, -1)


# -- AddPartitionsToTxn


def add(world, version, topics, producer=(1000, 0), transactional_id='tx-1'):
    response = call(
        world, 'AddPartitionsToTxn', version, v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer[0], v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[{'name': name, 'partitions': partitions} for name, partitions in topics.items()])
    return results(response.results_by_topic_v3_and_below)


def results(topic_results):
    return {(topic.name, partition.partition_index): ErrorCode(partition.partition_error_code)
            for topic in topic_results for partition in topic.results_by_partition}


@pytest.mark.parametrize('version', range(4))
def test_a_producer_adds_partitions(world, version):
    assert add(world, version, {'orders': [0, 2], 'audit': [0]}) == {
        ('orders', 0): NONE, ('orders', 2): NONE, ('audit', 0): NONE}
    assert world.row().partitions == {('orders', 0), ('orders', 2), ('audit', 0)}
    assert world.row().client_transaction_version == 0


TOPIC_NAMES = st.sampled_from(['orders', 'audit', 'ä' * 70, '', '__transaction_state'])


@given(version=st.integers(0, 3), name=st.sampled_from(['tx-1', '', 'nobody']),
       topics=st.lists(st.tuples(TOPIC_NAMES, st.lists(st.integers(-1, 2**31 - 1) | st.integers(0, 2), max_size=3)),
                       max_size=3))
def test_the_answer_has_a_code_for_each_partition_asked_for(version, name, topics):
    """The hand-written reader and writer agree with the generic codec, which interprets the message table."""
    world = World()
    world.init()
    response = call(world, 'AddPartitionsToTxn', version, v3_and_below_transactional_id=name,
                    v3_and_below_producer_id=1000, v3_and_below_producer_epoch=0, v3_and_below_topics=[
                        {'name': topic, 'partitions': partitions} for topic, partitions in topics])
    found = [(topic.name, partition.partition_index, ErrorCode(partition.partition_error_code))
             for topic in response.results_by_topic_v3_and_below for partition in topic.results_by_partition]
    wanted = [(topic, partition) for topic, partitions in topics for partition in partitions]
    refused = {(topic, partition): ErrorCode.TOPIC_AUTHORIZATION_FAILED if topic == STATE_TOPIC
               else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic, partition in wanted
               if topic == STATE_TOPIC or world.topics.find(topic, partition) is None}
    code = {'tx-1': NONE, '': ErrorCode.INVALID_REQUEST, 'nobody': ErrorCode.INVALID_PRODUCER_ID_MAPPING}[name]
    if refused and name:
        code = ErrorCode.OPERATION_NOT_ATTEMPTED
    assert [topic.name for topic in response.results_by_topic_v3_and_below] == [topic for topic, _ in topics]
    assert found == [(*each, refused.get(each, code) if name else code) for each in wanted]
    assert world.row().partitions == (set(wanted) if code is NONE else set())


@pytest.mark.parametrize('version', range(4))
def test_partitions_that_do_not_parse_close_the_connection_and_add_nothing(world, version):
    request = build('AddPartitionsToTxnRequest', v3_and_below_transactional_id='tx-1', v3_and_below_producer_id=1000,
                    v3_and_below_topics=[{'name': 'orders', 'partitions': [0, 1]}])
    frame = frame_of(request, version)
    broker = SimpleNamespace(transactions=world.coordinator, topics=world.topics, request_counts=RequestCounts())
    body = len(encode(request, version)) - (version == 3)       # the content of tags after the body is not checked
    for size in range(len(frame) - body - (version == 3), len(frame) - (version == 3)):
        connection = InProcessConnection(1)
        Dispatcher(broker, [api('AddPartitionsToTxn')]).handle(connection, 0, memoryview(bytearray(frame[:size])))
        assert connection.closed is not None and connection.replies == []
    assert world.states() == ['Empty']


@pytest.mark.parametrize(('name', 'version'), [('AddPartitionsToTxn', 3), ('AddOffsetsToTxn', 3)])
def test_the_next_transaction_waits_for_the_completion_of_the_one_before_but_not_for_long(name, version):
    """A librdkafka producer begins the next transaction after the answer to its commit, before the markers exist."""
    fields = {'AddOffsetsToTxn': {'transactional_id': 'tx-1', 'producer_id': 1000, 'group_id': 'g1'},
              'AddPartitionsToTxn': {'v3_and_below_transactional_id': 'tx-1', 'v3_and_below_producer_id': 1000,
                                     'v3_and_below_topics': [{'name': 'audit', 'partitions': [0]}]}}[name]
    for is_quick in (True, False):
        world = World(immediate=False)
        world.init()
        world.flush()
        world.add((1000, 0))
        world.flush()
        world.end((1000, 0), True)
        world.flush(STATE_TOPIC)
        assert call(world, name, version, **fields) is None
        if is_quick:
            for _ in range(4):
                world.flush()
            assert world.row().state.title == 'Ongoing'
        else:
            for _ in range(5):
                world.pass_time(20)
            world.run_until_idle()
            assert world.row().state.title == 'CompleteCommit'


def test_one_bad_partition_keeps_all_out(world):
    assert add(world, 3, {'orders': [0, 3], '__consumer_offsets': [1], 'nowhere': [0]}) == {
        ('orders', 0): ErrorCode.OPERATION_NOT_ATTEMPTED, ('orders', 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ('__consumer_offsets', 1): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ('nowhere', 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert world.row().partitions == frozenset()


def test_partitions_without_a_transactional_id_are_an_invalid_request(world):
    assert add(world, 3, {'orders': [0], 'nowhere': [0]}, transactional_id='') == {
        ('orders', 0): ErrorCode.INVALID_REQUEST, ('nowhere', 0): ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize(('version', 'code'), [(0, ErrorCode.INVALID_PRODUCER_EPOCH),
                                               (1, ErrorCode.INVALID_PRODUCER_EPOCH),
                                               (2, ErrorCode.PRODUCER_FENCED), (3, ErrorCode.PRODUCER_FENCED)])
def test_partitions_of_a_zombie_are_refused_by_the_code_that_its_version_knows(world, version, code):
    world.init()
    assert add(world, version, {'orders': [0]}) == {('orders', 0): code}


def batched(world, version, *transactions):
    response = call(world, 'AddPartitionsToTxn', version, transactions=[
        {'transactional_id': transactional_id, 'producer_id': producer_id, 'producer_epoch': 0,
         'verify_only': verify_only,
         'topics': [{'name': name, 'partitions': partitions} for name, partitions in topics.items()]}
        for transactional_id, producer_id, verify_only, topics in transactions])
    return response and {result.transactional_id: results(result.topic_results)
                         for result in response.results_by_transaction}


@pytest.mark.parametrize('version', [4, 5])
def test_a_batch_adds_and_verifies_transaction_by_transaction(world, version):
    world.init('tx-2')
    world.add((1000, 0), ('orders', 0))
    assert batched(world, version, ('tx-1', 1000, True, {'orders': [0, 1]}),
                   ('tx-2', 1001, False, {'orders': [2], '__consumer_offsets': [0]}),
                   ('tx-3', 1, False, {'orders': [2]}), ('tx-4', 1, True, {'orders': [9, 0]})) == {
        'tx-1': {('orders', 0): NONE, ('orders', 1): ErrorCode.TRANSACTION_ABORTABLE},
        'tx-2': {('orders', 2): NONE, ('__consumer_offsets', 0): NONE},
        'tx-3': {('orders', 2): ErrorCode.INVALID_PRODUCER_ID_MAPPING},
        'tx-4': {('orders', 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ('orders', 0): ErrorCode.OPERATION_NOT_ATTEMPTED}}
    assert world.row('tx-2').client_transaction_version == 2


def test_an_empty_batch_is_answered(world):
    assert batched(world, 5) == {}


# -- AddOffsetsToTxn and EndTxn


@pytest.mark.parametrize('version', range(5))
def test_the_offsets_of_a_group_join(world, version):
    fields = {'transactional_id': 'tx-1', 'producer_id': 1000, 'group_id': 'g1'}
    assert call(world, 'AddOffsetsToTxn', version, producer_epoch=0, **fields).error_code == 0
    assert world.row().partitions == {('__consumer_offsets', 2)}
    code = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert call(world, 'AddOffsetsToTxn', version, producer_epoch=4, **fields).error_code == code


def test_offsets_join_where_the_group_is_kept_though_the_topic_got_partitions_since(producer):
    """With five partitions of the offsets topic, the group belongs to another partition, in which the broker looks for
    it after its next start."""
    producer.ask('FindCoordinator', coordinator_keys=['g1'], key_type=0)
    grown, = producer.ask('CreatePartitions', topics=[{'name': '__consumer_offsets', 'count': 5, 'assignments': None}],
                          timeout_ms=1000).results
    fields = {'transactional_id': 'tx', 'producer_id': producer.producer_id, 'producer_epoch': producer.producer_epoch,
              'group_id': 'g1'}
    added = producer.ask('AddOffsetsToTxn', 3, **fields)
    committed = producer.ask('TxnOffsetCommit', 3, generation_id_or_member_epoch=-1, topics=[
        {'name': 'orders', 'partitions': [{'partition_index': 0, 'committed_offset': 5}]}], **fields)
    assert [grown.error_code, added.error_code, committed.topics[0].partitions[0].error_code] == [0, 0, 0]
    producer.end(committed=True, version=4)
    fetched = producer.ask('OffsetFetch', 7, group_id='g1', require_stable=True, topics=[
        {'name': 'orders', 'partition_indexes': [0]}])
    assert fetched.topics[0].partitions[0].committed_offset == 5


@pytest.mark.parametrize('version', range(6))
def test_a_transaction_is_committed(world, version):
    world.transaction((1000, 0), version=2 if version == 5 else 0)
    fields = {'transactional_id': 'tx-1', 'producer_id': 1000, 'committed': True}
    response = call(world, 'EndTxn', version, producer_epoch=0, **fields)
    assert response.error_code == 0
    assert (response.producer_id, response.producer_epoch) == ((1000, 1) if version == 5 else (-1, -1))
    assert world.endings() == ['COMMIT']
    response = call(world, 'EndTxn', version, producer_epoch=9, **fields)
    assert response.error_code == (ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH)
    assert (response.producer_id, response.producer_epoch) == (-1, -1)


def test_an_ending_is_parked_until_its_decision_is_durable():
    world = World(immediate=False)
    world.init()
    world.flush()
    world.add((1000, 0), version=2)
    world.flush()
    assert call(world, 'EndTxn', 5, transactional_id='tx-1', producer_id=1000, producer_epoch=0,
                committed=True) is None


# -- WriteTxnMarkers


def write_markers(world, version, *markers):
    response = call(world, 'WriteTxnMarkers', version, markers=[
        {'producer_id': producer_id, 'producer_epoch': epoch, 'transaction_result': committed, 'coordinator_epoch': 3,
         'transaction_version': 2 if version == 2 else 0,
         'topics': [{'name': name, 'partition_indexes': indexes} for name, indexes in topics.items()]}
        for producer_id, epoch, committed, topics in markers])
    return response and [
        {(topic.name, partition.partition_index): ErrorCode(partition.error_code)
         for topic in marker.topics for partition in topic.partitions} for marker in response.markers]


@pytest.mark.parametrize('version', [1, 2])
def test_markers_are_written_where_they_are_asked_for(world, version):
    assert write_markers(world, version, (1000, 1, False, {'orders': [0, 1], '__consumer_offsets': [2]}),
                         (7, 0, True, {'orders': [0, 9]})) == [
        {('orders', 0): NONE, ('orders', 1): NONE, ('__consumer_offsets', 2): NONE},
        {('orders', 0): NONE, ('orders', 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}]
    assert world.markers() == [('ABORT', 1000, 1, 3), ('COMMIT', 7, 0, 3)]


@pytest.mark.parametrize(('version', 'code'), [(1, NONE), (2, ErrorCode.INVALID_PRODUCER_EPOCH)])
def test_the_strict_epoch_rule_applies_from_version_2(world, version, code):
    world.write((1000, 5))
    assert write_markers(world, version, (1000, 5, False, {'orders': [0]})) == [{('orders', 0): code}]


def test_markers_are_answered_when_all_are_durable():
    world = World(immediate=False)
    asked = build('WriteTxnMarkersRequest', markers=[{
        'producer_id': 1, 'producer_epoch': 0, 'transaction_result': True, 'coordinator_epoch': 0,
        'topics': [{'name': 'orders', 'partition_indexes': [0, 1]}]}])
    connection = ask(world, asked, 1)
    world.topics.get('orders', 0).flush()
    assert connection.replies == []
    world.topics.get('orders', 1).fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    answer = read_answer(asked, 1, connection.replies[0])
    codes = [partition.error_code for partition in answer.markers[0].topics[0].partitions]
    assert codes == [0, ErrorCode.KAFKA_STORAGE_ERROR]


def test_no_markers_are_answered_at_once(world):
    assert write_markers(world, 2) == []


# -- ListTransactions, DescribeTransactions and DescribeProducers


def test_transactions_are_described(world):
    world.add((1000, 0), ('orders', 1), ('orders', 0), ('audit', 0))
    found, empty, unknown = call(world, 'DescribeTransactions', 0,
                                 transactional_ids=['tx-1', '', 'tx-9']).transaction_states
    assert (found.error_code, found.transaction_state, found.producer_id, found.producer_epoch) == (
        0, 'Ongoing', 1000, 0)
    assert (found.transaction_timeout_ms, found.transaction_start_time_ms) == (60000, world.clock.wall_ms())
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [('audit', [0]), ('orders', [0, 1])]
    assert empty.error_code == ErrorCode.INVALID_REQUEST
    assert (unknown.transactional_id, unknown.error_code) == ('tx-9', ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)


def listed(world, version=2, **filters):
    response = call(world, 'ListTransactions', version, **filters)
    assert response.error_code == 0
    return sorted(state.transactional_id for state in response.transaction_states)


@pytest.fixture
def busy(world):
    """Return a coordinator in which tx-1 has been open for 10 s, tx-2 was just opened, and tx-3 is Empty."""
    world.add((1000, 0))
    world.clock.advance(10_000)
    world.init('tx-2')
    world.add((1001, 0), transactional_id='tx-2')
    world.init('tx-3')
    return world


@pytest.mark.parametrize(('filters', 'found'), [
    ({}, ['tx-1', 'tx-2', 'tx-3']),
    ({'state_filters': ['Ongoing']}, ['tx-1', 'tx-2']),
    ({'state_filters': ['Empty', 'CompleteAbort']}, ['tx-3']),
    ({'producer_id_filters': [1001, 5]}, ['tx-2']),
    ({'duration_filter': 5_000}, ['tx-1', 'tx-3']),
    ({'duration_filter': 10_000}, ['tx-3']),
    ({'transactional_id_pattern': 'tx-[12]'}, ['tx-1', 'tx-2']),
    ({'transactional_id_pattern': 'tx'}, []),
    ({'transactional_id_pattern': ''}, ['tx-1', 'tx-2', 'tx-3']),
    ({'state_filters': ['Ongoing'], 'duration_filter': 5_000}, ['tx-1']),
])
def test_transactions_are_listed_by_filters_that_all_must_pass(busy, filters, found):
    assert listed(busy, **filters) == found


def test_the_names_of_unknown_states_come_back(busy):
    response = call(busy, 'ListTransactions', 0, state_filters=['Ongoing', 'Asleep'])
    assert response.unknown_state_filters == ['Asleep']
    assert len(response.transaction_states) == 2


def test_a_bad_pattern_is_named_as_such(busy):
    response = call(busy, 'ListTransactions', 2, transactional_id_pattern='tx-[')
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_the_producers_of_a_partition_are_described(world):
    partition = world.topics.get('orders', 0)
    partition.append_batch(encode_batch([(0, b'', b'')] * 39))
    partition.append_batch(encode_end_txn_marker(commit=True, producer_id=1000, producer_epoch=2, coordinator_epoch=2,
                                           timestamp_ms=0))
    partition.append_batch(encode_batch([(123, b'', b'')], producer_id=1000, producer_epoch=3, base_sequence=7,
                                  transactional=True))
    found, missing = call(world, 'DescribeProducers', 0, topics=[
        {'name': 'orders', 'partition_indexes': [0, 9]}]).topics[0].partitions
    (state,) = found.active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence, state.last_timestamp,
            state.coordinator_epoch, state.current_txn_start_offset) == (1000, 3, 7, 123, 2, 40)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert 'orders-9' in missing.error_message


END_TXN_BODIES = {
    'cut in the id': b'\x05tx', 'cut behind the epoch': b'\x05tx-1' + bytes(10), 'a null id': b'\x00' + bytes(12),
    'an id that is not UTF-8': b'\x02\xff' + bytes(12),
}


def send_end_txn(world, body, version=5):
    """Send `body` after the header of the request. Return the connection."""
    connection = InProcessConnection(1)
    header = frame_of(messages.EndTxnRequest(), version)[:-len(encode(messages.EndTxnRequest(), version))]
    broker = SimpleNamespace(transactions=world.coordinator, request_counts=RequestCounts())
    Dispatcher(broker, [api('EndTxn')]).handle(connection, 0, memoryview(bytearray(header + body)))
    return connection


@pytest.mark.parametrize('what', END_TXN_BODIES)
def test_an_end_txn_that_does_not_parse_closes_the_connection_and_ends_nothing(world, what):
    world.transaction((1000, 0), version=2)
    connection = send_end_txn(world, END_TXN_BODIES[what])
    assert connection.closed is not None
    assert connection.replies == []
    assert world.states()[-1] == 'Ongoing'


def test_an_end_txn_may_carry_unknown_tagged_fields_and_bytes(world):
    world.transaction((1000, 0), version=2)
    request = messages.EndTxnRequest(transactional_id='tx-1', producer_id=1000, producer_epoch=0, committed=True)
    connection = send_end_txn(world, encode(request, 5)[:-1] + b'\x01\x07\x02ab' + b'more')
    answer = read_answer(request, 5, connection.replies[0])
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, 1000, 1)
    assert world.row().state.title == 'CompleteCommit'
