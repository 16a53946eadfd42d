"""Requests that name many resources, or one resource many times. The answer has each resource once, is built in parts,
and has a bound."""
import time

import pytest
from api_client import ApiClient
from support.brokers.in_process_broker import frame_of
from support.messages.message_builder import build
from support.runner.attempts import assert_within

from kbroker.apis.serving import long_answers
from kbroker.base.errors import ErrorCode
from kbroker.base.long_work import run_to_end

TOPIC, BROKER = 2, 4
TIMES = 200
SLICE_S = 0.010


@pytest.fixture
def group(client):
    """Create a group with the offsets of 1,500 partitions, and return its name."""
    client.create_topic('wide', 1500)
    client.ask('FindCoordinator', coordinator_keys=['group'])
    answer = client.ask('OffsetCommit', 8, group_id='group', generation_id_or_member_epoch=-1, topics=[
        {'name': 'wide', 'partitions': [
            {'partition_index': index, 'committed_offset': index, 'committed_metadata': 'm' * 10}
            for index in range(1500)]}])
    assert {partition.error_code for topic in answer.topics for partition in topic.partitions} == {0}
    return 'group'


def reply_bytes(client, api, version, **fields):
    asked = client.begin(api, version, **fields)
    assert asked.is_answered and asked.connection.closed is None
    return len(asked.connection.replies[-1])


@pytest.mark.parametrize('version', [8, 9])
def test_a_group_that_is_named_many_times_is_fetched_once(client, group, version):
    wanted = {'group_id': group, 'topics': None}
    once = reply_bytes(client, 'OffsetFetch', version, groups=[wanted])
    assert reply_bytes(client, 'OffsetFetch', version, groups=[wanted] * TIMES) == once > 15_000


def test_what_places_of_a_request_name_of_one_group_is_fetched_together(client, group):
    (answer,) = client.ask('OffsetFetch', 9, groups=[
        {'group_id': group, 'topics': [{'name': 'wide', 'partition_indexes': [1, 1, 2]}]},
        {'group_id': group, 'topics': [{'name': 'wide', 'partition_indexes': [2, 3]}]}]).groups
    (topic,) = answer.topics
    assert [(found.partition_index, found.committed_offset) for found in topic.partitions] == [(1, 1), (2, 2), (3, 3)]


def test_a_resource_that_is_named_many_times_is_described_once(client):
    resource = {'resource_type': BROKER, 'resource_name': '1', 'configuration_keys': None}
    once = reply_bytes(client, 'DescribeConfigs', 4, resources=[resource])
    assert reply_bytes(client, 'DescribeConfigs', 4, resources=[resource] * 20_000) == once
    (result,) = client.ask('DescribeConfigs', resources=[
        {'resource_type': TOPIC, 'resource_name': 'orders', 'configuration_keys': [key]}
        for key in ('retention.ms', 'segment.ms')]).results
    assert {config.name for config in result.configs} == {'retention.ms', 'segment.ms'}


def partitions(key, indexes, name='orders', **fields):
    return [{key: name, indexes: [0] * TIMES, **fields}] * 3


REPEATED = {
    'Metadata': (12, {'topics': [{'name': 'orders'}] * TIMES}, 'topics', None),
    'DescribeGroups': (5, {'groups': ['group'] * TIMES}, 'groups', None),
    'DescribeTransactions': (0, {'transactional_ids': ['tx'] * TIMES}, 'transaction_states', None),
    'DescribeProducers': (0, {'topics': partitions('name', 'partition_indexes')}, 'topics', 'partitions'),
    'DescribeTopicPartitions': (0, {'topics': [{'name': 'orders'}] * TIMES}, 'topics', None),
    'FindCoordinator': (4, {'key_type': 0, 'coordinator_keys': ['group'] * TIMES}, 'coordinators', None),
    'ElectLeaders': (2, {'topic_partitions': partitions('topic', 'partitions')}, 'replica_election_results',
                     'partition_result'),
    'OffsetForLeaderEpoch': (4, {'replica_id': -1, 'topics': [
        {'topic': 'orders', 'partitions': [{'partition': 0, 'current_leader_epoch': -1, 'leader_epoch': 0}] * TIMES}
    ] * 3}, 'topics', 'partitions'),
    'ListOffsets': (9, {'replica_id': -1, 'topics': [
        {'name': 'orders', 'partitions': [{'partition_index': 0, 'timestamp': 5}] * TIMES}] * 3}, 'topics',
        'partitions'),
    'AlterConfigs': (2, {'resources': [
        {'resource_type': TOPIC, 'resource_name': 'orders', 'configs': []}] * TIMES}, 'responses', None),
    'IncrementalAlterConfigs': (1, {'resources': [
        {'resource_type': TOPIC, 'resource_name': 'orders', 'configs': []}] * TIMES}, 'responses', None),
    'ListTransactions': (1, {'state_filters': ['Nonsense'] * TIMES}, 'unknown_state_filters', None),
}


@pytest.mark.parametrize('api', REPEATED)
def test_a_name_that_is_repeated_is_answered_once(client, api):
    version, fields, field, inner = REPEATED[api]
    (found,) = getattr(client.ask(api, version, **fields), field)
    if inner is not None:
        assert len(getattr(found, inner)) == 1


def test_configs_of_a_resource_that_is_named_twice_are_not_changed(client):
    resources = [{'resource_type': TOPIC, 'resource_name': 'orders',
                  'configs': [{'name': 'retention.ms', 'value': value}]} for value in ('5', '6')]
    (response,) = client.ask('AlterConfigs', resources=resources).responses
    assert response.error_code == ErrorCode.INVALID_REQUEST
    (result,) = client.ask('DescribeConfigs', resources=[
        {'resource_type': TOPIC, 'resource_name': 'orders', 'configuration_keys': ['retention.ms']}]).results
    assert result.configs[0].value == '604800000'


LONG = {
    'OffsetFetch': (9, lambda: {'groups': [{'group_id': 'group', 'topics': None}]}),
    'Metadata': (12, lambda: {'topics': None}),
    'Metadata, topics that do not exist': (12, lambda: {'topics': [
        {'name': f'no-{number}'} for number in range(20_000)], 'allow_auto_topic_creation': False}),
    'DescribeConfigs': (4, lambda: {'resources': [
        {'resource_type': TOPIC, 'resource_name': f'no-{number}', 'configuration_keys': None}
        for number in range(20_000)]}),
    'ListOffsets': (9, lambda: {'replica_id': -1, 'topics': [{'name': 'wide', 'partitions': [
        {'partition_index': index, 'timestamp': 5} for index in range(1500)]}]}),
    'DescribeLogDirs': (4, lambda: {'topics': None}),
    'DescribeProducers': (0, lambda: {'topics': [{'name': 'wide', 'partition_indexes': list(range(1500))}]}),
    'OffsetForLeaderEpoch': (4, lambda: {'replica_id': -1, 'topics': [{'topic': 'wide', 'partitions': [
        {'partition': index, 'current_leader_epoch': -1, 'leader_epoch': 0} for index in range(1500)]}]}),
    'DescribeTopicPartitions': (0, lambda: {'topics': [{'name': f'no-{number}'} for number in range(20_000)]}),
}


@pytest.mark.parametrize('case', LONG)
@pytest.mark.usefixtures('no_collector')
def test_a_long_answer_is_made_in_parts_between_which_others_are_served(client, group, case):
    version, fields = LONG[case]
    broker, connection = client.broker, client.broker.connect()
    request = build(f'{case.partition(",")[0]}Request', **fields())
    broker.serve(connection, frame_of(request, version))
    assert not connection.replies
    slices_s = []
    while not connection.replies:
        before_s = time.thread_time()
        broker.long_work.run_slice()
        slices_s.append(time.thread_time() - before_s)
    # The last slice has no limit here, because it encodes the answer.
    assert_within(max(slices_s[:-1], default=0), SLICE_S)
    assert broker.answer_to(connection, request, version) is not None


def test_a_full_answer_leaves_the_other_groups_for_the_next_request(client, group, monkeypatch):
    monkeypatch.setattr(long_answers, 'MOST_REPLY_BYTES', 100_000)
    answer = client.ask('OffsetFetch', 9, groups=[
        {'group_id': name, 'topics': None} for name in ('group', 'other', 'third')])
    assert [(found.group_id, found.error_code) for found in answer.groups] == [
        ('group', 0), ('other', ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ('third', ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
    answer = client.ask('OffsetFetch', 9, groups=[{'group_id': name, 'topics': None} for name in ('other', 'third')])
    assert [found.error_code for found in answer.groups] == [0, 0]


def test_a_full_answer_refuses_to_describe_further_resources(client, monkeypatch):
    monkeypatch.setattr(long_answers, 'MOST_REPLY_BYTES', 5_000)
    for name in ('a', 'b'):
        client.create_topic(name, retention_ms='5')
    first, second = client.ask('DescribeConfigs', resources=[
        {'resource_type': TOPIC, 'resource_name': name, 'configuration_keys': None} for name in ('a', 'b')]).results
    assert (first.error_code, len(first.configs) > 20) == (0, True)
    assert (second.error_code, second.error_message) == (
        ErrorCode.INVALID_REQUEST, 'the answer has reached 5000 bytes: ask for less at once')


def test_topics_with_the_same_configs_share_their_description(client):
    for name in ('a', 'b', 'c'):
        client.create_topic(name, **({'retention_ms': '5'} if name == 'c' else {}))
    results = client.ask('DescribeConfigs', resources=[
        {'resource_type': TOPIC, 'resource_name': name, 'configuration_keys': ['retention.ms']}
        for name in ('a', 'b', 'c')]).results
    assert [result.configs[0].value for result in results] == ['604800000', '604800000', '5']


def test_an_all_topics_answer_leaves_out_what_is_deleted_meanwhile(client):
    for number in range(200):
        client.create_topic(f't{number}')
    connection = client.broker.connect()
    request = build('MetadataRequest', topics=None)
    client.broker.serve(connection, frame_of(request, 12))
    assert not connection.replies
    run_to_end(client.broker.topics.delete_many([client.broker.topics.topic('t199')]))
    client.broker.turn()
    names = {topic.name for topic in client.broker.answer_to(connection, request, 12).topics}
    assert 't199' not in names and len(names) == 200


def test_matching_a_costly_pattern_does_not_hold_the_loop(producer):
    text = 'a' * 2000
    other = ApiClient(producer.broker)
    other.ask('InitProducerId', 5, transactional_id=text, transaction_timeout_ms=60000)
    connection = producer.broker.connect()
    request = build('ListTransactionsRequest', transactional_id_pattern='(a?){400}b')
    producer.broker.serve(connection, frame_of(request, 2))
    assert not connection.replies and len(producer.broker.long_work) == 1


@pytest.mark.parametrize('version', [4, 5, 6])
def test_many_offsets_of_a_transaction_are_committed_in_parts_and_each_is_answered(producer, version):
    """The second topic does not exist; the first has fewer partitions than the request names."""
    ids = {'wide': producer.create_topic('wide', 1500), 'nothing': b'\7' * 16}
    producer.ask('FindCoordinator', coordinator_keys=['group'])
    names = {'transactional_id': producer.transactional_id, 'group_id': 'group', 'producer_id': producer.producer_id,
             'producer_epoch': producer.producer_epoch}
    if version < 5:
        producer.ask('AddOffsetsToTxn', 3, **names)
    by_id = version >= 6
    answer = producer.ask('TxnOffsetCommit', version, **names, topics=[
        {**({'topic_id': ids[name]} if by_id else {'name': name}),
         'partitions': [{'partition_index': index, 'committed_offset': index} for index in range(count)]}
        for name, count in (('wide', 1501), ('nothing', 2))])
    assert [(topic.topic_id if by_id else topic.name, [partition.partition_index for partition in topic.partitions])
            for topic in answer.topics] == [
        (ids['wide'] if by_id else 'wide', list(range(1501))), (ids['nothing'] if by_id else 'nothing', [0, 1])]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [partition.error_code for topic in answer.topics for partition in topic.partitions] == (
        [0] * 1500 + [unknown] + [ErrorCode.UNKNOWN_TOPIC_ID if by_id else unknown] * 2)
    assert producer.begin_end(committed=True).is_answered
    (fetched,) = producer.ask('OffsetFetch', 9, groups=[{'group_id': 'group', 'topics': None}]).groups
    assert sorted(found.committed_offset for found in fetched.topics[0].partitions) == list(range(1500))


def test_many_offsets_of_a_transaction_of_another_producer_are_refused_one_by_one(producer):
    producer.create_topic('wide', 1500)
    producer.ask('FindCoordinator', coordinator_keys=['group'])
    answer = producer.ask('TxnOffsetCommit', 5, transactional_id=producer.transactional_id, group_id='group',
                          producer_id=producer.producer_id, producer_epoch=producer.producer_epoch + 1, topics=[
                              {'name': 'wide', 'partitions': [{'partition_index': index} for index in range(1500)]}])
    assert {partition.error_code for partition in answer.topics[0].partitions} == {
        ErrorCode.INVALID_PRODUCER_EPOCH}
