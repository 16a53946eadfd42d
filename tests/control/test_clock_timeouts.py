"""Every time-out of the broker follows an advance of its clock, and so do the times that it writes into records."""
import json

import pytest
from support.brokers.clocked_broker import ClockedBroker
from support.brokers.in_process_broker import frame_of, read_answer
from support.brokers.secured_broker import PLAIN_JAAS
from support.messages.message_builder import batch_of, build

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client import Producer
from kbroker.control.clock import moment
from kbroker.group.share.rows import ShareKey
from kbroker.record.batch import iter_batches

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
TOPIC = 'orders'
LATEST = -1
SETTINGS = {'share.coordinator.state.topic.num.partitions': '1', 'offsets.topic.num.partitions': '1',
            'transaction.state.log.num.partitions': '1', 'transactional.id.expiration.ms': '86400000',
            'offsets.retention.minutes': '1440'}


@pytest.fixture
def broker(tmp_path):
    with ClockedBroker(tmp_path / 'data', SETTINGS) as broker:
        yield broker


def find_coordinator(broker, group_id='g'):
    """Let the broker create the topic of the offsets, and load it."""
    while broker.ask('FindCoordinator', key_type=0, coordinator_keys=[group_id]).coordinators[0].error_code:
        pass


def create(broker, **configs):
    """Create the topic with these configs, whose names have _ instead of dots. Return its partition."""
    broker.on_loop(lambda: broker.node.topics.create(
        TOPIC, 1, {name.replace('_', '.'): value for name, value in configs.items()}))
    return partition_of(broker)


def partition_of(broker):
    (partition,) = broker.node.topics.topic(TOPIC).partitions
    return partition


def produce(broker, *records, client=None, **options):
    """Produce one batch, whose records have the time of the broker's clock. Return the answer."""
    request = build('ProduceRequest', acks=-1, timeout_ms=30_000, topic_data=[{'name': TOPIC, 'partition_data': [
        {'index': 0, 'records': batch_of(broker.clock.wall_ms(), *records or (b'value',), **options)}]}])
    if client is not None:
        return client.ask(request, 12)
    with broker.connect() as one:
        return one.ask(request, 12)


def fetch(**options):
    return build('FetchRequest', max_wait_ms=options.get('max_wait_ms', 0), min_bytes=1, max_bytes=1 << 20, topics=[
        {'topic': TOPIC, 'partitions': [{'partition': 0, 'fetch_offset': options.get('offset', 0),
                                         'partition_max_bytes': 1 << 20}]}])


def join(broker, member_id='', **fields):
    return build('JoinGroupRequest', group_id='g', member_id=member_id, protocol_type='consumer', **{
        'session_timeout_ms': 10_000, 'rebalance_timeout_ms': 30_000, 'protocols': [{'name': 'range', 'metadata': b''}],
        **fields})


def describe_group(broker):
    (group,) = broker.ask('DescribeGroups', 5, groups=['g']).groups
    return group.group_state, len(group.members)


def advance_to(broker, ms, *, reaches):
    """Advance by `ms`, a millisecond of which decides: before it, `reaches()` is still false."""
    broker.advance(ms - 1)
    assert not reaches()
    broker.advance(1)
    assert reaches()


def test_an_open_transaction_is_aborted_after_its_time_out(broker):
    partition = create(broker)
    with Producer(broker.address, transactional_id='t', transaction_timeout_ms=MINUTE_MS) as producer:
        began_ms = broker.clock.wall_ms()
        producer.begin_transaction()
        producer.send(TOPIC, b'lost')
        producer.flush()
        assert partition.last_stable_offset == 0
        broker.advance(MINUTE_MS - 1)
        assert partition.last_stable_offset == 0
        broker.advance(10_001)      # the interval at which the broker looks for transactions that take too long
        assert partition.last_stable_offset == partition.high_watermark == 2
        (transaction,) = broker.ask('DescribeTransactions', transactional_ids=['t']).transaction_states
        assert transaction.transaction_state == 'CompleteAbort'
        assert transaction.transaction_start_time_ms == began_ms
        with pytest.raises(KafkaError, match='PRODUCER_FENCED'):
            producer.commit_transaction()


def test_a_transactional_id_expires(broker):
    create(broker)
    with Producer(broker.address, transactional_id='t') as producer, producer.transaction():
        producer.send(TOPIC, b'value')
    (state,) = broker.ask('DescribeTransactions', transactional_ids=['t']).transaction_states
    assert state.error_code == 0
    broker.advance(DAY_MS + HOUR_MS)
    (state,) = broker.ask('DescribeTransactions', transactional_ids=['t']).transaction_states
    assert state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_the_sequences_of_a_silent_producer_expire(broker):
    create(broker)
    produce(broker, producer_id=5, producer_epoch=0, base_sequence=0)

    def producers():
        (topic,) = broker.ask('DescribeProducers', topics=[{'name': TOPIC, 'partition_indexes': [0]}]).topics
        return [producer.producer_id for producer in topic.partitions[0].active_producers]

    broker.advance(DAY_MS - MINUTE_MS)
    assert producers() == [5]
    broker.advance(HOUR_MS)
    assert producers() == []


def test_a_fetch_is_answered_after_its_longest_wait(broker):
    create(broker)
    with broker.connect() as client:
        client.send(frame_of(fetch(max_wait_ms=20_000), 12))
        broker.on_loop(lambda: None)
        advance_to(broker, 20_000, reaches=client.has_data)
        assert client.receive()


def test_the_first_rebalance_of_a_group_waits_for_more_members(broker):
    find_coordinator(broker)
    with broker.connect() as client:
        client.send(frame_of(join(broker), 3))      # without a member id of its own, so no second request
        broker.ask('ListGroups')
        advance_to(broker, 3000, reaches=client.has_data)


def test_a_member_of_a_classic_group_that_is_silent_leaves(broker):
    joined(broker)
    advance_to(broker, 10_000, reaches=lambda: describe_group(broker) == ('Empty', 0))


def joined(broker):
    """Join a group as its only member, and return the member id."""
    find_coordinator(broker)
    with broker.connect() as client:
        client.send(frame_of(join(broker), 3))
        while describe_group(broker)[1] == 0:
            pass
        broker.advance(3000)
        answer = read_answer(join(broker), 3, client.receive())
        synced = client.ask(build('SyncGroupRequest', group_id='g', generation_id=1, member_id=answer.member_id,
                                  assignments=[{'member_id': answer.member_id, 'assignment': b'all'}]), 3)
        assert synced.error_code == 0
    return answer.member_id


def test_a_rebalance_ends_after_its_time_out_without_the_member_that_does_not_join(broker):
    first = joined(broker)
    with broker.connect() as second, broker.connect() as beats:
        second.send(frame_of(join(broker, session_timeout_ms=60_000), 3))
        while describe_group(broker)[0] != 'PreparingRebalance':
            pass
        for _ in range(4):      # the first member lives, but does not join again
            broker.advance(7000)
            beat = beats.ask(build('HeartbeatRequest', group_id='g', generation_id=1, member_id=first), 3)
            assert beat.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        advance_to(broker, 2000, reaches=second.has_data)
        answer = read_answer(join(broker), 3, second.receive())
        assert [member.member_id for member in answer.members] == [answer.member_id]


def test_a_member_of_a_consumer_group_that_is_silent_is_fenced(broker):
    find_coordinator(broker)
    create(broker)
    answer = broker.ask('ConsumerGroupHeartbeat', group_id='g', member_id='m', member_epoch=0,
                        rebalance_timeout_ms=MINUTE_MS, subscribed_topic_names=[TOPIC], topic_partitions=[])
    assert answer.error_code == 0

    def is_empty():
        (group,) = broker.ask('ConsumerGroupDescribe', 1, group_ids=['g']).groups
        return not group.members

    advance_to(broker, 45_000, reaches=is_empty)


def test_committed_offsets_of_an_empty_group_expire(broker):
    find_coordinator(broker)
    create(broker)
    (topic,) = broker.ask('OffsetCommit', 8, group_id='g', generation_id_or_member_epoch=-1, topics=[
        {'name': TOPIC, 'partitions': [{'partition_index': 0, 'committed_offset': 7}]}]).topics
    assert topic.partitions[0].error_code == 0

    def committed():
        answer = broker.ask('OffsetFetch', 7, group_id='g', topics=[{'name': TOPIC, 'partition_indexes': [0]}])
        return answer.topics[0].partitions[0].committed_offset

    broker.advance(DAY_MS - MINUTE_MS)
    assert committed() == 7
    broker.advance(HOUR_MS)
    assert committed() == -1


def test_the_lock_of_a_delivered_record_of_a_share_group_ends(broker):
    topic_id = create(broker) and broker.node.topics.topic(TOPIC).topic_id
    produce(broker)
    failed = []
    broker.on_loop(lambda: broker.node.share_states.initialize({ShareKey('s', topic_id, 0): 0}, 1, failed.append))
    while not failed:
        broker.on_loop(lambda: None)
    with broker.connect() as client:
        epochs = iter(range(10))

        def delivered():
            epoch = next(epochs)
            answer = client.ask(build(
                'ShareFetchRequest', group_id='s', member_id='m', share_session_epoch=epoch, max_wait_ms=0, min_bytes=1,
                max_bytes=1 << 20, max_records=10, batch_size=10,
                topics=[] if epoch else [{'topic_id': topic_id, 'partitions': [{'partition_index': 0}]}]), 2)
            assert answer.error_code == 0
            return [records.delivery_count for topic in answer.responses for partition in topic.partitions
                    for records in partition.acquired_records]

        assert delivered() == [1]
        broker.advance(29_999)
        assert delivered() == []
        broker.advance(1)
        assert delivered() == [2]


def test_a_topic_with_log_append_times_has_the_times_of_the_clock(broker):
    create(broker, message_timestamp_type='LogAppendTime')
    began_ms = broker.clock.wall_ms()
    produce(broker)
    broker.advance(DAY_MS)
    produce(broker)
    with broker.connect() as client:
        (topic,) = client.ask(fetch(), 12).responses
        found = [header.max_timestamp_ms for header, _ in iter_batches(topic.partitions[0].records)]
    assert found == [began_ms, began_ms + DAY_MS]


def test_the_marker_of_an_aborted_transaction_has_the_time_of_its_deadline(broker):
    create(broker)
    with Producer(broker.address, transactional_id='t', transaction_timeout_ms=MINUTE_MS) as producer:
        began_ms = broker.clock.wall_ms()
        producer.begin_transaction()
        producer.send(TOPIC, b'lost')
        producer.flush()
        broker.advance(DAY_MS)
        with broker.connect() as client:
            (topic,) = client.ask(fetch(offset=1), 12).responses
            ((header, _),) = iter_batches(topic.partitions[0].records)
        assert header.is_control
        assert began_ms + MINUTE_MS <= header.max_timestamp_ms <= began_ms + MINUTE_MS + 10_000
        with pytest.raises(KafkaError, match='PRODUCER_FENCED'):
            producer.commit_transaction()


def test_records_are_deleted_after_their_retention(broker):
    partition = create(broker, retention_ms=str(HOUR_MS))
    produce(broker)
    broker.advance(HOUR_MS - MINUTE_MS)
    assert partition.log_start_offset == 0
    broker.advance(10 * MINUTE_MS)
    assert partition.log_start_offset == 1


def test_a_segment_rolls_after_its_time(broker):
    create(broker, segment_ms=str(HOUR_MS))
    directory = broker.directory / f'{TOPIC}-0'
    produce(broker)
    broker.advance(HOUR_MS - 1)
    produce(broker)
    assert len(list(directory.glob('*.log'))) == 1
    broker.advance(2)
    produce(broker)
    assert len(list(directory.glob('*.log'))) == 2


def test_a_compacted_topic_is_cleaned_after_its_longest_lag(broker):
    create(broker, cleanup_policy='compact', max_compaction_lag_ms=str(HOUR_MS))
    for value in (b'old', b'new'):
        produce(broker, (b'key', value))
    broker.advance(2 * HOUR_MS)
    produce(broker, (b'other', b'value'))       # an append rolls the segment whose records are older than the lag
    broker.advance(MINUTE_MS)
    with broker.connect() as client:
        (topic,) = client.ask(fetch(), 12).responses
        assert next(iter_batches(topic.partitions[0].records))[0].base_offset == 1


def test_a_throttled_client_is_served_again_after_the_time_in_its_answer(broker):
    create(broker)
    broker.on_loop(lambda: broker.node.quotas.put((('client-id', 'test'),), 'producer_byte_rate', 100))
    with broker.connect() as client:
        throttle_ms = produce(broker, b'v' * 5000, client=client).throttle_time_ms
        assert throttle_ms > 10_000
        client.send(frame_of(fetch(), 12))
        broker.advance(throttle_ms - 1)
        assert not client.has_data()
        broker.advance(1)
        assert client.receive()


def test_an_idle_connection_is_closed(broker):
    with broker.connect() as client:
        client.ask(build('ApiVersionsRequest'), 0)
        broker.advance(9 * MINUTE_MS)
        assert not client.has_data()
        broker.advance(4 * MINUTE_MS)
        assert client.is_cut_off()


def test_a_snapshot_of_the_metadata_is_written_after_its_interval(broker):
    create(broker)
    directory = broker.directory / '__cluster_metadata-0'
    before = set(directory.glob('*.checkpoint'))
    broker.advance(HOUR_MS)
    broker.on_loop(lambda: broker.node.topics.create('payments', 1, {}))    # a snapshot follows a change
    broker.advance(0)
    assert set(directory.glob('*.checkpoint')) - before


def test_a_login_ends_after_its_time_and_the_audit_has_the_times_of_the_clock(tmp_path):
    with ClockedBroker(tmp_path / 'data', SETTINGS | {
            'listeners': 'SASL_PLAINTEXT://127.0.0.1:0', 'sasl.enabled.mechanisms': 'PLAIN',
            'listener.name.sasl_plaintext.plain.sasl.jaas.config': PLAIN_JAAS,
            'connections.max.reauth.ms': str(MINUTE_MS), 'kbroker.audit.log': str(tmp_path / 'audit.log')}) as broker:
        broker.advance(DAY_MS)
        login_ms = broker.clock.wall_ms()
        with broker.connect() as client:
            assert client.ask(build('SaslHandshakeRequest', mechanism='PLAIN'), 1).error_code == 0
            answer = client.ask(build('SaslAuthenticateRequest', auth_bytes=b'\0bob\0x'), 2)
            assert answer.session_lifetime_ms == MINUTE_MS
            broker.advance(MINUTE_MS - 1)
            assert client.ask(build('ListGroupsRequest'), 4).error_code == 0
            broker.advance(1)
            client.send(frame_of(build('ListGroupsRequest'), 4))
            assert client.is_cut_off()
    times = [json.loads(line)['time'] for line in (tmp_path / 'audit.log').read_text().splitlines()]
    assert moment(login_ms) in times
