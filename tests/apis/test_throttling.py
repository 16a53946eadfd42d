"""Throttling of clients above their quotas: the throttle time in the answers, and how long the connection is muted.

Covers KIP-599.
"""
import pytest
from share_client import ACCEPT, ranges
from support.messages.message_builder import build

from kbroker.base.errors import ErrorCode
from kbroker.protocol.codec import encode

BYTES, FETCHED, TIME, MUTATIONS = (
    'producer_byte_rate', 'consumer_byte_rate', 'request_percentage', 'controller_mutation_rate')
CLIENT = (('client-id', 'test'),)
TINY = 1e-6


def throttled(parked):
    """Return (the throttle time in the answer, the time for which the connection is muted), both in ms."""
    return parked.answer.throttle_time_ms, parked.connection.muted_ms


def create(client, name, partitions=1, version=7, **more):
    return client.begin('CreateTopics', version, topics=[{'name': name, 'num_partitions': partitions,
                                                          'replication_factor': 1}], **more)


def done(node, parked):
    while not parked.is_answered:
        node.turn()
    return parked


@pytest.mark.parametrize('version', [3, 8, 12, 13])
def test_a_producer_is_throttled_by_the_size_of_its_requests(client, node, version):
    node.quotas.put(CLIENT, BYTES, 100)
    topic_id = node.topics.topic('orders').topic_id
    request = build('ProduceRequest', acks=1, timeout_ms=1000, topic_data=[
        {'name': 'orders', 'topic_id': topic_id,
         'partition_data': [{'index': 0, 'records': client.batch(b'v' * 1000)}]}])
    connection = node.begin(request, version)
    frame_bytes = len(encode(request, version)) + 14 + (version >= 9)
    answer = node.answer_to(connection, request, version)
    assert answer.throttle_time_ms == connection.muted_ms == frame_bytes * 10 - 10000
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_a_producer_without_acknowledgements_is_muted(client, node):
    node.quotas.put(CLIENT, BYTES, 100)
    parked = client.begin_produce(client.batch(b'v' * 1000), acks=0)
    assert parked.connection.replies == [None]
    assert parked.connection.muted_ms > 0


def test_a_client_without_a_quota_of_its_own_is_not_throttled(client, node):
    node.quotas.put((('client-id', 'other'),), BYTES, 1)
    assert throttled(client.begin_produce(client.batch(b'v' * 1000))) == (0, 0)


def test_the_principal_of_a_plaintext_client_is_anonymous(client, node):
    node.quotas.put((('user', 'ANONYMOUS'),), BYTES, 1)
    assert client.begin_produce(client.batch(b'v' * 1000)).connection.muted_ms > 0


def fetch(client, version=12, **options):
    return client.begin('Fetch', version, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[
        {'topic': 'orders', 'partitions': [
            {'partition': 0, 'fetch_offset': 0, 'partition_max_bytes': 1 << 20}]}], **options)


def test_a_fetch_above_the_quota_is_answered_empty_and_is_not_recorded(client, node):
    client.produce(client.batch(b'v' * 1000))
    size_bytes = 4 + len(encode(fetch(client).answer, 12))
    node.quotas.put(CLIENT, FETCHED, size_bytes / 10 - 1)
    for _ in range(2):
        parked = fetch(client)
        assert parked.answer.responses == [] and parked.answer.error_code == 0 and parked.answer.session_id == 0
        assert throttled(parked) == (round(10 * 1000 / (size_bytes / 10 - 1)), parked.answer.throttle_time_ms)
    node.quotas.put(CLIENT, FETCHED, size_bytes / 10)
    parked = fetch(client)
    assert throttled(parked) == (0, 0) and parked.answer.responses


def test_an_incremental_session_goes_on_after_an_empty_answer(client, node):
    def ask(epoch, session_id, topics=()):
        return client.begin('Fetch', 12, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_id=session_id,
                            session_epoch=epoch, topics=list(topics))

    opened = ask(0, 0, [{'topic': 'orders', 'partitions': [
        {'partition': 0, 'fetch_offset': 0, 'partition_max_bytes': 1 << 20}]}]).answer
    assert opened.session_id
    client.produce(client.batch(b'v' * 1000))
    node.quotas.put(CLIENT, FETCHED, 10)
    parked = ask(1, opened.session_id)
    assert parked.answer.session_id == opened.session_id
    assert parked.answer.responses == [] and parked.answer.throttle_time_ms > 0
    node.quotas.put(CLIENT, FETCHED, None)
    answer = ask(2, opened.session_id).answer
    assert len(answer.responses[0].partitions[0].records) > 1000


def test_no_session_begins_with_an_empty_answer(client, node):
    client.produce(client.batch(b'v' * 1000))
    node.quotas.put(CLIENT, FETCHED, 1)
    parked = fetch(client, session_epoch=0)
    assert parked.answer.session_id == 0 and len(node.fetch_sessions) == 0


def test_a_fetch_of_many_partitions_is_throttled_too(client, node):
    client.create_topic('wide', 400)
    node.quotas.put(CLIENT, FETCHED, 1)
    parked = done(node, client.begin('Fetch', 12, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[
        {'topic': 'wide', 'partitions': [{'partition': number, 'fetch_offset': 0, 'partition_max_bytes': 1000}
                                         for number in range(400)]}]))
    assert parked.answer.responses == [] and parked.answer.throttle_time_ms > 0


def test_a_fetch_asks_for_no_more_than_the_quota_allows(client, node):
    for _ in range(3):
        client.produce(client.batch(b'v' * 1000))
    node.quotas.put(CLIENT, FETCHED, 120)
    assert len(fetch(client).answer.responses[0].partitions[0].records) < 1200


@pytest.mark.parametrize(('api', 'version', 'fields', 'has_throttle_time'), [
    ('Metadata', 12, {'topics': []}, True), ('Metadata', 2, {'topics': []}, False),
    ('ApiVersions', 4, {'client_software_name': 'a', 'client_software_version': '1'}, True),
    ('ApiVersions', 0, {}, False), ('ListOffsets', 1, {'replica_id': -1, 'topics': []}, False),
    ('ListGroups', 5, {}, True), ('DescribeCluster', 2, {}, True), ('ListGroups', 0, {}, False)])
def test_the_time_of_any_request_may_throttle(client, node, api, version, fields, has_throttle_time):
    node.quotas.put(CLIENT, TIME, TINY)
    parked = done(node, client.begin(api, version, **fields))
    assert parked.connection.muted_ms == 1000
    assert parked.answer.throttle_time_ms == (1000 if has_throttle_time else 0)


def test_the_time_of_receiving_and_sending_counts(client, node):
    node.quotas.put(CLIENT, TIME, 50.0)
    connection = node.connect()
    connection.network_us = 5_050_000
    assert throttled(done(node, client.begin('ListGroups', 5, connection=connection)))[0] >= 100


def test_answers_written_by_hand_tell_of_throttling(producer, node):
    producer.add_partition()
    node.quotas.put(CLIENT, TIME, TINY)
    parked = producer.begin_end(True)
    assert throttled(parked) == (1000, 1000)
    parked = producer.begin('AddPartitionsToTxn', 3, v3_and_below_transactional_id='tx',
                            v3_and_below_producer_id=producer.producer_id,
                            v3_and_below_producer_epoch=producer.producer_epoch,
                            v3_and_below_topics=[{'name': 'orders', 'partitions': [0]}])
    assert throttled(parked) == (1000, 1000)


def test_errors_count_too(client, node):
    node.quotas.put(CLIENT, TIME, TINY)
    assert throttled(client.begin('DescribeGroups', 5, groups=['missing'])) == (1000, 1000)


def test_partitions_are_refused_above_the_quota(client, node):
    node.quotas.put(CLIENT, MUTATIONS, 10)
    parked = done(node, create(client, 'first', 200))
    assert parked.answer.topics[0].error_code == 0 and throttled(parked) == (0, 0)
    parked = done(node, create(client, 'second'))
    assert parked.answer.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert throttled(parked) == (9000, 9000)
    assert node.topics.topic('second') is None
    node.clock.advance(9000)
    parked = done(node, create(client, 'second'))
    assert parked.answer.topics[0].error_code == 0 and throttled(parked) == (0, 0)


def test_topics_before_the_limit_are_done(client, node):
    node.quotas.put(CLIENT, MUTATIONS, 1)
    answer = client.ask('CreateTopics', topics=[
        {'name': name, 'num_partitions': 12, 'replication_factor': 1} for name in 'ab'])
    assert [topic.error_code for topic in answer.topics] == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert answer.throttle_time_ms == 1000


def test_an_older_version_is_done_and_throttled_afterwards(client, node):
    node.quotas.put(CLIENT, MUTATIONS, 10)
    parked = done(node, create(client, 'first', 200, version=5))
    assert parked.answer.topics[0].error_code == 0 and throttled(parked) == (9000, 9000)


def test_a_dry_run_counts_and_an_invalid_topic_does_not(client, node):
    node.quotas.put(CLIENT, MUTATIONS, 10)
    done(node, create(client, 'orders', 1000))              # exists
    assert throttled(done(node, create(client, 'dry', 200, validate_only=True))) == (0, 0)
    assert throttled(done(node, create(client, 'dry', 1))) == (9000, 9000)


def test_deleted_and_added_partitions_count(client, node):
    client.create_topic('wide', 100)
    client.create_topic('kept')
    node.quotas.put(CLIENT, MUTATIONS, 10)
    parked = done(node, client.begin('CreatePartitions', 3, topics=[
        {'name': 'wide', 'count': 200, 'assignments': None}]))
    assert parked.answer.results[0].error_code == 0
    answer = client.ask('DeleteTopics', topics=[{'name': 'wide'}, {'name': 'kept'}])
    assert [(topic.name, topic.error_code) for topic in answer.responses] == [
        ('wide', 0), ('kept', ErrorCode.THROTTLING_QUOTA_EXCEEDED)]
    assert answer.throttle_time_ms == 19000
    assert node.topics.topic('kept') is not None and node.topics.topic('wide') is None
    parked = done(node, client.begin('CreatePartitions', 3, topics=[{'name': 'kept', 'count': 2, 'assignments': None}]))
    assert parked.answer.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_auto_created_topics_are_counted_and_not_refused(client, node):
    node.quotas.put(CLIENT, MUTATIONS, 1)
    for name in ('first', 'second'):
        parked = done(node, client.begin('Metadata', 12, topics=[{'name': name * 2}] + [
            {'name': f'{name}{number}'} for number in range(20)], allow_auto_topic_creation=True))
        assert {topic.error_code for topic in parked.answer.topics} == {0}
    assert parked.answer.throttle_time_ms == 31000


def test_a_share_fetch_above_the_quota_has_its_records_and_is_throttled_afterwards(client, member, node):
    client.produce(client.batch(*(b'v' * 1000 for _ in range(20))))
    node.quotas.put(CLIENT, FETCHED, 500)
    parked = member.begin_fetch_shares()
    member.advance(parked.answer)
    assert ranges(parked.answer) == [(0, 19, 1)]
    size_bytes = len(encode(parked.answer, 2))
    assert throttled(parked)[0] == throttled(parked)[1] == pytest.approx(size_bytes * 2 - 10_000, abs=100)
    node.clock.advance(throttled(parked)[0] + 11_000)
    assert member.fetch_shares().throttle_time_ms == 0


def test_a_share_fetch_asks_for_no_more_than_the_quota_allows(client, member, node):
    for _ in range(20):
        client.produce(client.batch(b'v' * 1000))
    node.quotas.put(CLIENT, FETCHED, 500)
    parked = member.begin_fetch_shares()
    assert ranges(parked.answer) == [(0, 3, 1)]
    assert throttled(parked) == (0, 0)


def test_share_requests_are_charged_the_time_of_the_loop(client, member, node):
    client.produce(client.batch(b'v'))
    node.quotas.put(CLIENT, TIME, TINY)
    assert throttled(member.begin_fetch_shares()) == (1000, 1000)
    member.epoch = 1
    assert member.acknowledge((0, 0, 0, ACCEPT)).throttle_time_ms == 1000
