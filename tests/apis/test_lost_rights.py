"""Rights that change while a client works, and answers that must not show what the client may not see."""
import gc
import time

import pytest
from api_client import ApiClient
from share_client import ShareClient
from support.brokers.in_process_broker import frame_of
from support.messages.message_builder import build
from support.runner.attempts import assert_within

from kbroker.base.errors import ErrorCode
from kbroker.group.streams.topology import Status
from kbroker.protocol.messages import AccessControlEntryRecord
from kbroker.security.acl_codes import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from kbroker.security.authorizer import Authorizer
from kbroker.security.principal import Principal
from kbroker.security.session import Session

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER


class Guard:
    """Gives alice rights on a broker, and removes them."""

    def __init__(self, broker):
        self.broker = broker
        self.authorizer = broker.authorizer = Authorizer()
        self.entries = {}

    def allow(self, operation, name, resource_type=TOPIC, permission=Permission.ALLOW):
        entry = AccessControlEntryRecord(
            id=len(self.entries).to_bytes(16, 'big'), resource_type=resource_type, resource_name=name,
            pattern_type=PatternType.LITERAL, principal='User:alice', host='*', operation=operation,
            permission_type=permission)
        self.entries[operation, name] = entry.id
        self.authorizer.put(entry)

    def take(self, operation, name):
        self.authorizer.remove(self.entries[operation, name])

    @property
    def session(self):
        principal = Principal('User', 'alice')
        return Session(principal, self.authorizer.access_of(principal, '127.0.0.1'))


@pytest.fixture
def guard(client, node):
    """Create the topics `orders` and `payments`. Return a Guard for alice, who has no rights yet."""
    client.create_topic('payments')
    return Guard(node)


@pytest.fixture
def alice(guard, node):
    return ApiClient(node, session=guard.session)


def codes(fetched):
    return {topic.topic: topic.partitions[0].error_code for topic in fetched.responses}


def fetch_session(client, session_id, epoch, *names):
    return client.ask('Fetch', 12, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_id=session_id,
                      session_epoch=epoch, topics=[
                          dict(topic=name, partitions=[dict(partition=0, partition_max_bytes=1 << 20)])
                          for name in names])


def test_a_session_reports_a_right_that_is_lost_on_a_quiet_partition(guard, alice):
    guard.allow(READ, 'orders')
    guard.allow(READ, 'payments')
    first = fetch_session(alice, 0, 0, 'orders', 'payments')
    assert codes(first) == {'orders': 0, 'payments': 0}
    assert codes(fetch_session(alice, first.session_id, 1)) == {}
    guard.take(READ, 'payments')
    assert codes(fetch_session(alice, first.session_id, 2)) == {'payments': DENIED}
    assert codes(fetch_session(alice, first.session_id, 3)) == {'payments': DENIED}
    guard.allow(READ, 'payments')
    assert codes(fetch_session(alice, first.session_id, 4)) == {'payments': 0}
    assert codes(fetch_session(alice, first.session_id, 5)) == {}


def test_a_large_session_reports_a_right_that_is_lost(guard, alice, client):
    client.create_topic('wide', partitions=300)
    guard.allow(READ, 'wide')

    def ask(session_id, epoch, indexes):
        topics = [dict(topic='wide', partitions=[
            dict(partition=index, partition_max_bytes=1 << 20) for index in indexes])] if indexes else []
        return alice.ask('Fetch', 12, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_id=session_id,
                         session_epoch=epoch, topics=topics)

    first = ask(0, 0, range(300))
    assert first.session_id and not ask(first.session_id, 1, ()).responses
    guard.take(READ, 'wide')
    found = ask(first.session_id, 2, ()).responses
    assert sum(len(topic.partitions) for topic in found) == 300
    assert {partition.error_code for topic in found for partition in topic.partitions} == {DENIED}


def test_a_session_that_another_client_continues_has_the_rights_of_that_client(guard, alice, node):
    guard.allow(READ, 'orders')
    first = fetch_session(alice, 0, 0, 'orders')
    principal = Principal('User', 'bob')
    bob = ApiClient(node, session=Session(principal, guard.authorizer.access_of(principal, '127.0.0.1')))
    assert codes(fetch_session(bob, first.session_id, 1)) == {'orders': DENIED}


def test_a_fetch_that_waits_finds_that_its_right_is_gone(guard, alice, client):
    guard.allow(READ, 'orders')
    waiting = alice.begin_fetch(max_wait_ms=10_000)
    assert not waiting.is_answered
    guard.take(READ, 'orders')
    client.produce(client.batch())
    partition = waiting.answer.responses[0].partitions[0]
    assert partition.error_code == DENIED
    assert (partition.high_watermark, bytes(partition.records), partition.aborted_transactions) == (-1, b'', [])


def test_a_share_fetch_that_waits_gets_no_records_of_a_topic_whose_right_is_gone(guard, client, node):
    """The partition does not change during the wait, so the fetch does not check it again before it acquires
    records."""
    guard.allow(READ, 'g1', ResourceType.GROUP)
    guard.allow(READ, 'orders')
    member = ShareClient(node, node.topics.topic('orders').topic_id)
    member.initialize()
    member.connection = node.connect(guard.session)
    client.produce(client.batch())
    waiting = member.begin_fetch_shares(min_bytes=1_000, max_wait_ms=5_000)
    assert not waiting.is_answered
    guard.take(READ, 'orders')
    node.clock.advance(5_000)
    member.settle()
    partition, = waiting.answer.responses[0].partitions
    assert (partition.error_code, bytes(partition.records or b''), partition.acquired_records) == (DENIED, b'', [])


def test_a_topic_that_may_not_be_described_is_not_deleted_by_its_id(guard, alice, node):
    """The answer to a deletion contains the topic's name, which the broker must not show."""
    guard.allow(Operation.DELETE, 'orders')
    guard.allow(DESCRIBE, 'orders', permission=Permission.DENY)
    deleted, = alice.ask('DeleteTopics', 6, timeout_ms=1000, topics=[
        dict(name=None, topic_id=node.topics.topic('orders').topic_id)]).responses
    assert (deleted.error_code, deleted.name) == (DENIED, None)
    assert node.topics.topic('orders') is not None


def test_a_produce_without_acknowledgement_that_is_denied_closes_the_connection(guard, alice, client):
    denied = alice.begin_produce(client.batch(), acks=0)
    assert denied.connection.closed is not None
    guard.allow(WRITE, 'orders')
    assert alice.begin_produce(client.batch(), acks=0).connection.closed is None


@pytest.mark.parametrize('acks', [-1, 1])
def test_a_denied_batch_is_not_appended_and_the_others_are(guard, alice, client, acks):
    guard.allow(WRITE, 'orders')
    topics = [dict(name=name, partition_data=[dict(index=0, records=client.batch())])
              for name in ('payments', 'orders', 'payments2', 'payments')]
    answer = alice.ask('Produce', 12, acks=acks, timeout_ms=1000, topic_data=topics)
    assert {topic.name: topic.partition_responses[0].error_code for topic in answer.responses} == {
        'orders': 0, 'payments': DENIED, 'payments2': DENIED}
    assert [client.list_offset(-1, topic=name).offset for name in ('orders', 'payments')] == [1, 0]


def test_partitions_of_many_topics_get_the_right_of_their_own_topic(guard, alice, client):
    guard.allow(WRITE, 'orders')
    client.create_topic('wide', partitions=300)
    topics = [dict(name=name, partition_data=[dict(index=index, records=client.batch()) for index in range(count)])
              for name, count in (('orders', 1), ('wide', 300), ('none', 2))]
    answer = alice.ask('Produce', 12, acks=-1, timeout_ms=1000, topic_data=topics)
    found = {topic.name: {partition.error_code for partition in topic.partition_responses}
             for topic in answer.responses}
    assert found == {'orders': {0}, 'wide': {DENIED}, 'none': {DENIED}}


def test_what_may_not_be_described_looks_like_what_does_not_exist(guard, alice):
    for name in ('orders', 'absent', 'no name'):
        described, = alice.ask('Metadata', 12, topics=[dict(name=name)], allow_auto_topic_creation=True).topics
        assert (described.error_code, described.topic_id, described.partitions) == (DENIED, bytes(16), [])
        deleted, = alice.ask('DeleteTopics', 6, topics=[dict(name=name)], timeout_ms=1000).responses
        assert (deleted.error_code, deleted.topic_id) == (DENIED, bytes(16))
    assert alice.ask('Metadata', 12, topics=None).topics == []
    assert alice.ask('ListGroups').groups == []


def test_a_topic_is_created_for_a_client_with_either_right(guard, alice, node):
    guard.allow(DESCRIBE, 'new')
    guard.allow(DESCRIBE, 'newer')

    def ask(name):
        return alice.ask('Metadata', 12, topics=[dict(name=name)], allow_auto_topic_creation=True).topics[0].error_code

    assert ask('new') == DENIED and node.topics.topic('new') is None
    guard.allow(Operation.CREATE, 'new')
    assert ask('new') == 0
    assert ask('newer') == DENIED
    guard.allow(Operation.CREATE, CLUSTER_NAME, CLUSTER)
    assert ask('newer') == 0


@pytest.mark.parametrize('partitions', [3, 300])
def test_partitions_of_any_number_join_a_transaction_or_are_refused_together(guard, alice, client, partitions):
    client.create_topic('wide', partitions=partitions)
    guard.allow(WRITE, 'id', ResourceType.TRANSACTIONAL_ID)
    client.ask('FindCoordinator', coordinator_keys=['id'], key_type=1)
    made = alice.ask('InitProducerId', 5, transactional_id='id', transaction_timeout_ms=60000)

    def added():
        answer = alice.ask('AddPartitionsToTxn', 3, v3_and_below_transactional_id='id',
                           v3_and_below_producer_id=made.producer_id, v3_and_below_producer_epoch=made.producer_epoch,
                           v3_and_below_topics=[dict(name='wide', partitions=list(range(partitions)))])
        return {partition.partition_error_code for topic in answer.results_by_topic_v3_and_below
                for partition in topic.results_by_partition}

    assert added() == {DENIED}
    guard.allow(WRITE, 'wide')
    assert added() == {0}


def test_a_transactional_commit_of_ten_thousand_denied_topics_takes_no_long_turn(guard, alice, client, node):
    """The loop once refused all of the topics in one turn. The turn is measured in processor time of this thread."""
    client.ask('FindCoordinator', coordinator_keys=['group'])
    guard.allow(WRITE, 'tx', ResourceType.TRANSACTIONAL_ID)
    guard.allow(READ, 'group', ResourceType.GROUP)
    request = build('TxnOffsetCommitRequest', transactional_id='tx', group_id='group', producer_id=1000, topics=[
        {'name': f'no-{number}', 'partitions': [{'partition_index': 0, 'committed_offset': 5}]}
        for number in range(10_000)])
    connection = node.connect(alice.session)
    frame = frame_of(request, 5)
    slices_s = []
    gc.collect()
    gc.disable()
    try:
        began_s = time.thread_time()
        node.serve(connection, frame)
        slices_s.append(time.thread_time() - began_s)
        while not connection.replies:
            began_s = time.thread_time()
            node.long_work.run_slice()
            slices_s.append(time.thread_time() - began_s)
    finally:
        gc.enable()
    answer = node.answer_to(connection, request, 5)
    assert [topic.name for topic in answer.topics] == [topic.name for topic in request.topics]
    assert {topic.partitions[0].error_code for topic in answer.topics} == {DENIED}
    assert_within(max(slices_s), 0.010)


def test_a_client_that_may_not_create_one_internal_topic_of_its_streams_group_creates_none(guard, alice, node):
    def beat(**fields):
        answer = alice.ask('StreamsGroupHeartbeat', 0, group_id='g', member_id='m', endpoint_information_epoch=0,
                           shutdown_application=False, **fields)
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        found = {name for name in ('first', 'second') if node.topics.topic(name) is not None}
        details = [status.status_detail.partition('; ')[2] for status in answer.status
                   if status.status_code == Status.MISSING_INTERNAL_TOPICS]
        return found, details

    guard.allow(READ, 'g', ResourceType.GROUP)
    for name in ('payments', 'first', 'second'):
        guard.allow(DESCRIBE, name)
    alice.ask('FindCoordinator', coordinator_keys=['g'])
    changelogs = [dict(name=name, partitions=0, replication_factor=0, topic_configs=[]) for name in ('first', 'second')]
    refused = 'Unauthorized to CREATE on topics '
    assert beat(member_epoch=0, rebalance_timeout_ms=1000, process_id='p', active_tasks=[], standby_tasks=[],
                warmup_tasks=[], topology=dict(epoch=0, subtopologies=[dict(
                    subtopology_id='0', source_topics=['payments'], source_topic_regex=[], repartition_sink_topics=[],
                    state_changelog_topics=changelogs, repartition_source_topics=[], copartition_groups=[])])
                ) == (set(), [f'{refused}first, second.'])
    guard.allow(Operation.CREATE, 'first')
    assert beat(member_epoch=1) == (set(), [f'{refused}second.'])
    guard.allow(Operation.CREATE, CLUSTER_NAME, CLUSTER)
    assert beat(member_epoch=1) == ({'first', 'second'}, [''])
    assert beat(member_epoch=1)[1] == []


def test_partitions_of_topics_that_a_client_may_not_alter_do_not_count_as_additional(guard, alice):
    def grown():
        topics = [{'name': name, 'count': 9_000, 'assignments': None} for name in ('orders', 'payments')]
        results = alice.ask('CreatePartitions', timeout_ms=1000, validate_only=True, topics=topics).results
        return {result.name: result.error_code for result in results}

    guard.allow(Operation.ALTER, 'orders')
    assert grown() == {'orders': 0, 'payments': DENIED}
    guard.allow(Operation.ALTER, 'payments')
    assert grown() == dict.fromkeys(('orders', 'payments'), ErrorCode.POLICY_VIOLATION)
