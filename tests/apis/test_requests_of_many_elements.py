"""Requests with many small elements. Each part of the work handles only a few elements, and the number of elements has
a bound."""
import collections
import importlib
import time
from types import SimpleNamespace

import pytest
from support.brokers.in_process_broker import frame_of
from support.messages.message_builder import build
from support.runner.attempts import assert_within

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import PART
from kbroker.security.mechanism import LARGEST_TOKEN_BYTES
from kbroker.security.principal import ANONYMOUS
from kbroker.security.session import LoginState, Session

COUNT = 1_000
NAMES = [f'name-{number}' for number in range(COUNT)]
TOPIC = 2
SHARED = dict(group_id='g', member_id='m', share_session_epoch=0, max_wait_ms=0, max_bytes=1, max_records=1)
TAGS = b'\xe8\x07' + b'\5\0' * 1_000
"""As many tagged fields as one struct may have."""


class Counted(list):
    """A list that counts the elements that a handler takes."""

    def __init__(self, elements, work):
        super().__init__(elements)
        self.work = work

    def __iter__(self):
        for element in super().__iter__():
            self.work.taken += 1
            yield element


class Work:
    """The request of a handler. It counts the elements and the checks of rights in each part of the work."""

    def __init__(self, node, monkeypatch, api, is_allowed):
        self.taken = 0
        self.is_allowed = is_allowed
        module = importlib.import_module(f'kbroker.apis.{api}')
        self.api, self.handle = module.API, getattr(module, 'add_in_parts', None) or getattr(module, 'handle', None)
        monkeypatch.setattr(module, 'answering', lambda *_: None, raising=False)    # needs a request of a connection
        self.request = SimpleNamespace(
            node=node, api=self.api, version=self.api.max_version, may=self.may, access=None,
            principal=ANONYMOUS, advertised_address=('localhost', 9092), start_work=lambda *_: None,
            reply=lambda _: None, connection=node.connect())

    def may(self, *_, **__):
        self.taken += 1
        return self.is_allowed

    def body(self, path, fields):
        """Build the request, and count the elements that the handler takes from the list at `path`."""
        body = holder = build(self.api.request_class.__name__, **fields)
        *outer, name = path.split('.')
        for step in outer:
            holder = getattr(holder, step)[0]
        setattr(holder, name, Counted(getattr(holder, name), self))
        return body

    def longest_part(self, steps):
        longest = 0
        try:
            while True:
                before = self.taken
                next(steps)
                longest = max(longest, self.taken - before)
        except (StopIteration, KafkaError):
            return max(longest, self.taken - before)


def named(field, names=NAMES, **more):
    return [{field: name, **more} for name in names]


HANDLED = [
    ('find_coordinator', False, 'coordinator_keys', dict(coordinator_keys=NAMES)),
    ('describe_groups', False, 'groups', dict(groups=NAMES)),
    ('delete_groups', False, 'groups_names', dict(groups_names=NAMES)),
    ('list_groups', True, 'states_filter', dict(states_filter=NAMES)),
    ('list_groups', True, 'types_filter', dict(types_filter=NAMES)),
    ('list_transactions', True, 'state_filters', dict(state_filters=NAMES)),
    ('list_transactions', True, 'producer_id_filters', dict(producer_id_filters=list(range(COUNT)))),
    ('describe_transactions', False, 'transactional_ids', dict(transactional_ids=NAMES)),
    ('consumer_group_describe', False, 'group_ids', dict(group_ids=NAMES)),
    ('offset_for_leader_epoch', False, 'topics', dict(topics=named('topic', partitions=[]))),
    ('describe_producers', False, 'topics', dict(topics=named('name', partition_indexes=[]))),
    ('describe_share_group_offsets', False, 'groups', dict(groups=named('group_id', topics=[]))),
    ('offset_delete', True, 'topics', dict(group_id='g', topics=named('name', partitions=[]))),
    ('alter_share_group_offsets', True, 'topics', dict(group_id='g', topics=named('topic_name', partitions=[]))),
    ('elect_leaders', True, 'topic_partitions', dict(topic_partitions=named('topic', partitions=[]))),
    ('write_txn_markers', True, 'markers.topics', dict(markers=[dict(topics=named('name', partition_indexes=[]))])),
    ('add_partitions_to_txn', True, 'transactions', dict(transactions=named('transactional_id', topics=[]))),
]
FAILED = [
    ('offset_commit', 'topics', dict(topics=named('name', partitions=[]))),
    ('offset_commit', 'topics.partitions', dict(topics=[dict(partitions=named('partition_index', range(COUNT)))])),
    ('txn_offset_commit', 'topics', dict(topics=named('name', partitions=[]))),
    ('txn_offset_commit', 'topics.partitions', dict(topics=[dict(partitions=named('partition_index', range(COUNT)))])),
    ('write_txn_markers', 'markers', dict(markers=[dict(topics=[])] * COUNT)),
    ('write_txn_markers', 'markers.topics', dict(markers=[dict(topics=named('name', partition_indexes=[]))])),
    ('elect_leaders', 'topic_partitions', dict(topic_partitions=named('topic', partitions=[]))),
    ('elect_leaders', 'topic_partitions.partitions', dict(topic_partitions=[dict(partitions=list(range(COUNT)))])),
    ('find_coordinator', 'coordinator_keys', dict(coordinator_keys=NAMES)),
    ('consumer_group_describe', 'group_ids', dict(group_ids=NAMES)),
    ('describe_share_group_offsets', 'groups', dict(groups=named('group_id', topics=[]))),
    ('describe_user_scram_credentials', 'users', dict(users=named('name'))),
    ('alter_user_scram_credentials', 'deletions', dict(deletions=named('name'))),
    ('alter_configs', 'resources', dict(resources=named('resource_name', resource_type=TOPIC, configs=[]))),
    ('incremental_alter_configs', 'resources', dict(resources=named('resource_name', resource_type=TOPIC, configs=[]))),
    ('describe_configs', 'resources', dict(resources=named('resource_name', resource_type=TOPIC))),
]


@pytest.mark.parametrize(('api', 'is_allowed', 'path', 'fields'), HANDLED)
def test_a_handler_treats_few_elements_in_a_part(node, monkeypatch, api, is_allowed, path, fields):
    """Topics without partitions count, too. A part once lasted until the handler reached a topic with a partition,
    which held the loop for seconds."""
    work = Work(node, monkeypatch, api, is_allowed)
    assert work.longest_part(work.handle(work.request, work.body(path, fields))) <= 2 * PART + 2
    assert work.taken >= COUNT


@pytest.mark.parametrize(('api', 'path', 'fields'), FAILED)
def test_the_answer_to_a_long_request_that_failed_as_a_whole_is_made_in_parts(node, monkeypatch, api, path, fields):
    work = Work(node, monkeypatch, api, False)
    failure = work.api.failure(work.body(path, fields), ErrorCode.GROUP_AUTHORIZATION_FAILED, 'why',
                                     work.api.max_version)
    assert work.longest_part(failure) <= 2 * PART + 2
    assert work.taken >= COUNT


def test_a_long_commit_that_is_refused_as_a_whole_is_answered(node, client):
    client.ask('FindCoordinator', coordinator_keys=['g'])
    topics = [dict(name=name, partitions=[dict(partition_index=0)]) for name in NAMES * 20]
    answer = client.ask('OffsetCommit', 9, group_id='g', topics=topics)
    assert [topic.name for topic in answer.topics] == NAMES * 20
    assert {topic.partitions[0].error_code for topic in answer.topics} == {ErrorCode.UNKNOWN_SERVER_ERROR}


# ---- bounds

def begin(node, frame):
    connection = node.connect()
    node.serve(connection, frame)
    return connection


def produce(partitions, tags):
    part = bytes(4) + b'\0' + tags
    return (b'\0\0\0\x09' + bytes(4) + b'\xff\xff\0' + b'\0\xff\xff' + bytes(4) + b'\2\7orders'
            + bytes([partitions + 1]) + part * partitions + b'\0\0')


def fetch(topics, tags):
    return (b'\0\1\0\x0c' + bytes(4) + b'\xff\xff\0' + b'\xff\xff\xff\xff' + bytes(17) + b'\xff\xff\xff\xff'
            + bytes([topics + 1]) + (b'\2o\1' + tags) * topics + b'\1\1\0')


def add_partitions(topics, tags):
    return (b'\0\x18\0\3' + bytes(4) + b'\xff\xff\0' + b'\3id' + bytes(10) + bytes([topics + 1])
            + (b'\2o\1' + tags) * topics + b'\0')


@pytest.mark.parametrize('request_of', [produce, fetch, add_partitions])
def test_a_request_has_a_bounded_number_of_tagged_fields(node, client, request_of):
    """The broker once counted the fields of each struct separately. Skipping the fields of all structs then held the
    loop for 130 ms."""
    assert begin(node, request_of(40, TAGS)).closed is None
    assert 'tagged fields' in begin(node, request_of(60, TAGS)).closed


def test_a_fetch_has_a_bounded_number_of_tagged_fields_in_a_struct(node):
    assert '10000 expected' in begin(node, fetch(1, b'\x91\x4e' + b'\5\0' * 10_001)).closed


@pytest.mark.parametrize(('topics', 'partitions', 'is_read'), [(1, 19_999, True), (1, 20_000, False),
                                                               (10_000, 1, True), (10_001, 1, False)])
def test_a_producer_adds_a_bounded_number_of_partitions_at_once(node, topics, partitions, is_read):
    """The broker once turned a frame of 8 MiB into two million tuples in one turn."""
    named = dict(name='orders', partitions=[0] * partitions)
    connection = begin(node, frame_of(build('AddPartitionsToTxnRequest', v3_and_below_transactional_id='id',
                                            v3_and_below_topics=[named] * topics), 3))
    assert (connection.closed is None) == is_read


@pytest.mark.parametrize(('partitions', 'code'), [(9_999, ErrorCode.NONE), (10_000, ErrorCode.INVALID_REQUEST)])
def test_each_of_many_transactions_gets_a_bounded_number_of_partitions_at_once(client, partitions, code):
    answer = client.ask('AddPartitionsToTxn', 5, transactions=[dict(
        transactional_id='id', verify_only=True, topics=[dict(name='orders', partitions=[7] * partitions)])])
    assert answer.error_code == code


def resources(count, **fields):
    return [dict(resource_type=TOPIC, resource_name=f'{number}', **fields) for number in range(count)]


@pytest.mark.parametrize('api', ['AlterConfigs', 'IncrementalAlterConfigs'])
@pytest.mark.parametrize(('count', 'code'), [(10_000, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                                             (10_001, ErrorCode.POLICY_VIOLATION)])
def test_a_request_changes_a_bounded_number_of_resources(client, api, count, code):
    """Before the bound, 200,000 resources, or 200,000 configs of one resource, held the loop for 20 to 50 ms."""
    answer = client.ask(api, resources=resources(count, configs=[]))
    assert collections.Counter(row.error_code for row in answer.responses) == {code: count}


@pytest.mark.parametrize(('api', 'fields'), [('AlterConfigs', {}),
                                             ('IncrementalAlterConfigs', dict(config_operation=0))])
@pytest.mark.parametrize(('count', 'code'), [(10_000, ErrorCode.INVALID_CONFIG), (10_001, ErrorCode.POLICY_VIOLATION)])
def test_a_bounded_number_of_configs_of_a_resource_is_changed(client, api, fields, count, code):
    changed = dict(resource_type=TOPIC, resource_name='orders', configs=[
        dict(name=f'{number}', value='1', **fields) for number in range(count)])
    assert [row.error_code for row in client.ask(api, resources=[changed]).responses] == [code]


@pytest.mark.parametrize(('count', 'code'), [(50_000, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                                             (50_001, ErrorCode.INVALID_REQUEST)])
def test_a_request_describes_a_bounded_number_of_resources(client, count, code):
    answer = client.ask('DescribeConfigs', resources=resources(count))
    assert collections.Counter(row.error_code for row in answer.results) == {code: count}


@pytest.mark.parametrize(('count', 'code'), [(49_999, ErrorCode.NONE), (50_000, ErrorCode.INVALID_REQUEST)])
def test_a_request_asks_for_a_bounded_number_of_configs_by_name(client, count, code):
    described = dict(resource_type=TOPIC, resource_name='orders', configuration_keys=[f'{n}' for n in range(count)])
    assert [row.error_code for row in client.ask('DescribeConfigs', resources=[described]).results] == [code]


@pytest.mark.parametrize(('count', 'code'), [(10_000, ErrorCode.RESOURCE_NOT_FOUND),
                                             (10_001, ErrorCode.POLICY_VIOLATION)])
def test_a_request_changes_a_bounded_number_of_credentials(client, count, code):
    deletions = [dict(name=f'{number}', mechanism=1) for number in range(count)]
    answer = client.ask('AlterUserScramCredentials', deletions=deletions, upsertions=[])
    assert collections.Counter(row.error_code for row in answer.results) == {code: count}


def shared(topics, partitions):
    return [dict(topic_id=number.to_bytes(16, 'big'), partitions=[dict(partition_index=0)] * partitions)
            for number in range(topics)]


@pytest.mark.parametrize(('topics', 'partitions', 'code'), [
    (20_000, 1, ErrorCode.NONE), (20_001, 1, ErrorCode.INVALID_REQUEST), (1, 39_999, ErrorCode.NONE),
    (1, 40_000, ErrorCode.INVALID_REQUEST)])
def test_a_share_fetch_names_a_bounded_number_of_partitions(client, topics, partitions, code):
    """Before the bound, 200,000 partitions held the loop for up to 39 ms."""
    assert client.ask('ShareFetch', **SHARED, topics=shared(topics, partitions)).error_code == code


@pytest.mark.parametrize(('topics', 'code'), [(20_000, ErrorCode.SHARE_SESSION_NOT_FOUND),
                                              (20_001, ErrorCode.INVALID_REQUEST)])
def test_a_share_acknowledge_names_a_bounded_number_of_partitions(client, topics, code):
    answer = client.ask('ShareAcknowledge', group_id='g', member_id='m', share_session_epoch=1,
                        topics=shared(topics, 1))
    assert answer.error_code == code


def test_a_share_session_grows_to_a_bounded_number_of_partitions(client):
    def fetch(epoch, first, count):
        topics = [dict(topic_id=b't' * 16, partitions=[dict(partition_index=first + n) for n in range(count)])]
        return client.ask('ShareFetch', **SHARED | dict(share_session_epoch=epoch), topics=topics).error_code

    assert fetch(0, 0, 19_999) == ErrorCode.NONE
    assert fetch(1, 0, 20_001) == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert fetch(1, 10, 19_990) == ErrorCode.NONE
    assert fetch(0, 0, 20_001) == ErrorCode.SHARE_SESSION_LIMIT_REACHED


def test_a_long_token_without_a_header_is_not_copied_whole(node):
    """After a client's first login, its frames may have up to 100 MiB."""
    tokens = []
    node.authentication = SimpleNamespace(take_bare_token=lambda _request, token: tokens.append(token))
    connection = node.connect(Session(ANONYMOUS, None, LoginState.BARE_TOKENS))
    for size in (0, 5, LARGEST_TOKEN_BYTES, LARGEST_TOKEN_BYTES + 1, 1 << 20):
        node.serve(connection, b't' * size)
    assert [len(token) for token in tokens] == [0, 5, LARGEST_TOKEN_BYTES, *[LARGEST_TOKEN_BYTES + 1] * 2]


@pytest.mark.parametrize('operation', [2, 3])
def test_long_lists_are_appended_and_subtracted_without_comparing_each_pair(client, operation):
    """When each pair was compared, a list of 32 KB held the loop for seconds."""
    name = 'leader.replication.throttled.replicas'
    stored, given = (','.join(f'{partition}:{broker}' for partition in partitions for broker in range(100))
                     for partitions in (range(50), range(50, 100)))

    assert client.change(TOPIC, 'orders', (name, 0, stored)).error_code == ErrorCode.NONE
    began_s = time.thread_time()
    client.change(TOPIC, 'orders', (name, operation, given))
    assert_within(time.thread_time() - began_s, 0.1)


def test_an_error_that_quotes_a_long_name_is_answered(client):
    """The error message was once too long for the answer, so that the broker closed the connection and logged a
    traceback."""
    name = '\u0100' * 16_383
    deleted, = client.ask('DeleteTopics', 6, topics=[dict(name=name)], timeout_ms=1_000).responses
    assert (deleted.error_code, deleted.name) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
    assert len(deleted.error_message.encode()) > 8_000


@pytest.mark.parametrize(('count', 'code'), [(10_000, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
                                             (10_001, ErrorCode.POLICY_VIOLATION)])
def test_assignments_that_are_wrong_or_too_many_are_refused_with_an_answer(client, count, code):
    assignments = [dict(partition_index=70_000, broker_ids=[1])] * count
    created, = client.ask('CreateTopics', 7, timeout_ms=1_000, topics=[dict(
        name='new', num_partitions=-1, replication_factor=-1, assignments=assignments)]).topics
    assert created.error_code == code
