"""ShareFetch and ShareAcknowledge on a complete broker."""
from __future__ import annotations

import gc

import pytest
from api_client import ApiClient
from share_client import ACCEPT, REJECT, RELEASE, RENEW, ShareClient, ranges
from support.messages.message_builder import batch_of

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.share.rows import ShareKey
from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records

LOCK_MS = 30_000
HOUR_MS = 3_600_000
GROUP = 32


@pytest.fixture
def topic_id(client):
    return client.broker.topics.topic('orders').topic_id


def other(member, name='m2'):
    return ShareClient(member.broker, member.topic_id, name)


def values(answer):
    return [record.value for topic in answer.responses for partition in topic.partitions
            for _, batch in iter_batches(partition.records) for record in decode_records(batch)]


# ---- fetch and acknowledge

def test_records_are_acquired_acknowledged_and_not_delivered_again(client, member):
    client.produce(client.batch(b'a', b'b'))
    client.produce(client.batch(b'c'))
    answer = member.fetch_shares()
    assert ranges(answer) == [(0, 2, 1)] and values(answer) == [b'a', b'b', b'c']
    assert answer.acquisition_lock_timeout_ms == LOCK_MS
    assert member.say(0, 2) == 0
    assert member.acquired() == [] and other(member).acquired() == []


def test_acknowledgements_ride_on_the_next_fetch(client, member):
    client.produce(client.batch(b'a', b'b'))
    assert member.acquired() == [(0, 1, 1)]
    client.produce(client.batch(b'c'))
    answer = member.fetch_shares(acknowledge=[(0, 0, 1)])
    (partition,) = answer.responses[0].partitions
    assert partition.acknowledge_error_code == 0 and ranges(answer) == [(2, 2, 1)]
    assert other(member).acquired() == []


def test_members_share_a_partition(client, member):
    client.produce(client.batch(b'a'))
    client.produce(client.batch(b'b'))
    assert member.acquired(max_records=1) == [(0, 0, 1)]
    assert other(member).acquired() == [(1, 1, 1)]


def test_released_records_are_delivered_to_others(client, member):
    client.produce(client.batch(b'a', b'b'))
    member.acquired()
    assert member.say(0, 1, RELEASE) == 0
    assert other(member).acquired() == [(0, 1, 2)]


def test_rejected_records_are_done(client, member):
    client.produce(client.batch(b'a', b'b'))
    member.acquired()
    assert member.say(0, 1, REJECT, ACCEPT) == 0
    assert member.acquired() == []


def test_the_bytes_are_cut_to_the_batches_with_acquired_records(client, member):
    for value in (b'a', b'b', b'c'):
        client.produce(client.batch(value))
    assert member.acquired(max_records=2) == [(0, 1, 1)]
    answer = other(member).fetch_shares()
    assert values(answer) == [b'c']


def test_record_limit_acquires_exactly_so_many(client, member):
    client.produce(client.batch(b'a', b'b', b'c'))
    answer = member.fetch_shares(share_acquire_mode=1, max_records=2)
    assert ranges(answer) == [(0, 1, 1)] and values(answer) == [b'a', b'b', b'c']


def test_max_records_counts_all_partitions(node, client):
    topic_id = client.create_topic('two', 2)
    for partition in range(2):
        client.produce(client.batch(b'a', b'b'), topic='two', partition=partition)
    member = ShareClient(node, topic_id, partitions=2)
    member.initialize()
    answer = member.fetch_shares(share_acquire_mode=1, max_records=3)
    assert sorted(acquired.last_offset - acquired.first_offset + 1 for topic in answer.responses
                  for partition in topic.partitions for acquired in partition.acquired_records) == [1, 2]


# ---- waiting

def test_a_fetch_waits_for_records(client, member):
    parked = member.begin_fetch_shares(max_wait_ms=1000)
    assert not parked.is_answered
    client.produce(client.batch(b'a'))
    member.settle()
    assert ranges(parked.answer) == [(0, 0, 1)]


def test_a_fetch_without_records_is_answered_when_its_time_is_over(node, member):
    first = member.fetch_shares()
    assert ranges(first) == [] and [partition.error_code for partition in first.responses[0].partitions] == [0]
    parked = member.begin_fetch_shares(max_wait_ms=1000)
    node.clock.advance(1000)
    member.settle()
    assert parked.answer.error_code == 0 and parked.answer.responses == []


def test_a_fetch_waits_for_min_bytes(node, client, member):
    parked = member.begin_fetch_shares(max_wait_ms=1000, min_bytes=150)
    client.produce(client.batch(b'a'))
    member.settle()
    assert not parked.is_answered
    client.produce(client.batch(b'b' * 100))
    member.settle()
    assert ranges(parked.answer) == [(0, 1, 1)]


def test_a_fetch_waits_for_records_that_another_member_gives_back(client, member):
    client.produce(client.batch(b'a'))
    member.acquired()
    parked = other(member).begin_fetch_shares(max_wait_ms=1000)
    assert not parked.is_answered
    member.say(0, 0, RELEASE)
    member.settle()
    assert ranges(parked.answer) == [(0, 0, 2)]


def test_a_fetch_waits_for_the_end_of_a_lock(node, client, member):
    client.produce(client.batch(b'a'))
    member.acquired()
    parked = other(member).begin_fetch_shares(max_wait_ms=2 * LOCK_MS)
    node.clock.advance(LOCK_MS - 1)
    member.settle()
    assert not parked.is_answered
    node.clock.advance(1)
    member.settle()
    assert ranges(parked.answer) == [(0, 0, 2)]
    assert member.say(0, 0) == ErrorCode.INVALID_RECORD_STATE


def test_a_fetch_is_answered_when_its_acknowledgement_is_durable(disk, client, member):
    client.produce(client.batch(b'a'))
    client.produce(client.batch(b'b'))
    member.acquired(max_records=1)
    disk.is_held = True
    parked = member.begin_fetch_shares(acknowledge=[(0, 0, 0)])
    assert not parked.is_answered
    disk.release()
    member.settle()
    assert ranges(parked.answer) == [(1, 1, 1)]


def test_a_deleted_topic_ends_the_wait(client, member):
    parked = member.begin_fetch_shares(max_wait_ms=1000)
    client.ask('DeleteTopics', topics=[{'name': 'orders'}])
    member.settle()
    (partition,) = parked.answer.responses[0].partitions
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_ID


# ---- locks

def test_a_renewed_lock_starts_again(node, client, member):
    client.produce(client.batch(b'a'))
    member.acquired()
    node.clock.advance(LOCK_MS - 1)
    assert member.say(0, 0, RENEW, is_renew_ack=True) == 0
    node.clock.advance(LOCK_MS - 1)
    member.settle()
    assert member.say(0, 0) == 0


def test_a_fetch_that_renews_fetches_nothing(node, client, member):
    client.produce(client.batch(b'a'))
    member.acquired()
    client.produce(client.batch(b'b'))
    nothing = {'max_bytes': 0, 'min_bytes': 0, 'max_records': 0, 'max_wait_ms': 0}
    answer = member.fetch_shares(acknowledge=[(0, 0, 0, RENEW)], is_renew_ack=True, **nothing)
    assert ranges(answer) == []
    assert member.fetch_shares(is_renew_ack=True).error_code == ErrorCode.INVALID_REQUEST


def test_a_renewal_without_its_flag_is_refused(client, member):
    client.produce(client.batch(b'a'))
    member.acquired()
    assert member.say(0, 0, RENEW) == ErrorCode.INVALID_REQUEST
    assert member.say(0, 0) == 0


def test_the_last_delivery_is_the_limit(client, member):
    client.produce(client.batch(b'a'))
    for count in range(1, 6):
        assert member.acquired() == [(0, 0, count)]
        assert member.say(0, 0, RELEASE) == 0
    assert member.acquired() == []


# ---- sessions

def test_the_end_of_a_session_frees_what_the_member_holds(client, member):
    client.produce(client.batch(b'a', b'b'))
    member.acquired()
    assert member.acknowledge((0, 0, 0), epoch=-1).error_code == 0
    assert other(member).acquired() == [(1, 1, 2)]


def test_a_last_fetch_acknowledges_and_frees(client, member):
    client.produce(client.batch(b'a', b'b'))
    member.acquired()
    answer = member.fetch_shares(epoch=-1, acknowledge=[(0, 0, 0)])
    assert ranges(answer) == [] and answer.responses[0].partitions[0].acknowledge_error_code == 0
    assert other(member).acquired() == [(1, 1, 2)]


def test_a_closed_connection_frees_what_the_member_holds(client, member):
    client.produce(client.batch(b'a'))
    member.acquired()
    parked = other(member).begin_fetch_shares(max_wait_ms=1000)
    member.disconnect()
    assert ranges(parked.answer) == [(0, 0, 2)]


def test_a_closed_connection_ends_its_waiting_fetch(node, client, member):
    member.begin_fetch_shares(max_wait_ms=1000)
    member.disconnect()
    assert len(node.share_sessions) == 0 and len(node.waiting_room) == 0
    client.produce(client.batch(b'a'))
    assert other(member).acquired() == [(0, 0, 1)]


def test_epochs_out_of_order_are_refused(member):
    assert member.fetch_shares(epoch=5).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    member.fetch_shares()
    assert member.fetch_shares(epoch=2).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge(epoch=0).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch_shares(epoch=1).error_code == 0


def test_the_first_request_of_a_session_acknowledges_nothing(member):
    assert member.fetch_shares(acknowledge=[(0, 0, 0)]).error_code == ErrorCode.INVALID_REQUEST


def test_forgotten_partitions_are_not_fetched(client, member):
    member.fetch_shares()
    client.produce(client.batch(b'a'))
    forgotten = [{'topic_id': member.topic_id, 'partitions': [0]}]
    assert member.acquired(forgotten_topics_data=forgotten) == []
    assert member.acquired(partitions=[0]) == [(0, 0, 1)]


def test_sessions_are_limited_and_the_refusal_waits(start_node):
    node = start_node(group_share_max_share_sessions='1', group_share_max_size='1')
    client = ApiClient(node)
    member = ShareClient(node, client.create_topic())
    member.initialize()
    member.fetch_shares()
    parked = other(member).begin_fetch_shares(max_wait_ms=500)
    assert not parked.is_answered
    node.clock.advance(500)
    member.settle()
    assert parked.answer.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED


# ---- refusals

@pytest.mark.parametrize(('fields', 'code'), [
    ({'member_id': ''}, ErrorCode.INVALID_REQUEST),
    ({'member_id': None}, ErrorCode.INVALID_REQUEST),
    ({'share_acquire_mode': 2}, ErrorCode.UNKNOWN_SERVER_ERROR),
])
def test_requests_that_are_refused_as_a_whole(client, topic_id, fields, code):
    request = {'group_id': 'g1', 'member_id': 'm1', 'share_session_epoch': 0} | fields
    assert client.ask('ShareFetch', 2, **request).error_code == code


def test_a_share_partition_without_state_is_an_unknown_error(node, client, topic_id):
    answer = ShareClient(node, topic_id).fetch_shares(max_wait_ms=0)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(node.share_partitions) == 0


def test_state_that_cannot_be_read_does_not_make_a_client_ask_again_at_once(node, client, topic_id):
    """A client repeats a failed fetch without a pause. As in Apache Kafka, the broker answers after the fetch's maximum
    wait."""
    assert not ShareClient(node, topic_id).begin_fetch_shares(max_wait_ms=60_000).is_answered


def test_a_partition_that_does_not_exist_does_not_end_the_wait_for_another(node, client, member):
    waiting = member.begin_fetch_shares(max_wait_ms=60_000, partitions=[0, 9])
    assert not waiting.is_answered
    client.produce(client.batch(b'new'))
    member.settle()
    partitions = {row.partition_index: row for row in waiting.answer.responses[0].partitions}
    assert partitions[9].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert partitions[0].acquired_records[0].first_offset == 0
    assert other(member).begin_fetch_shares(max_wait_ms=60_000, partitions=[8, 9]).is_answered


def test_unknown_topics_and_partitions_have_their_error(node, client, member):
    answer = ShareClient(node, bytes(15) + b'x').fetch_shares()
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    answer = other(member).fetch_shares(partitions=[7])
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_fetch_of_no_bytes_is_answered_at_once_without_records(node, client, member):
    client.produce(client.batch(b'a'))
    answer = member.fetch_shares(max_bytes=0, max_wait_ms=1000)
    assert answer.error_code == 0 and answer.responses == []
    answer = other(member).fetch_shares(max_bytes=0, max_wait_ms=1000, partitions=[7])
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert member.acquired() == [(0, 0, 1)]
    answer = member.fetch_shares(max_bytes=0, acknowledge=[(0, 0, 0)])
    assert answer.responses[0].partitions[0].acknowledge_error_code == 0
    assert other(member).acquired() == []


def test_a_fetch_of_negative_bytes_is_an_error_of_the_partitions(client, member):
    client.produce(client.batch(b'a'))
    answer = member.fetch_shares(max_bytes=-1, max_wait_ms=1000)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert member.acquired() == [(0, 0, 1)]


@pytest.mark.parametrize(('first', 'last', 'types', 'code'), [
    (1, 0, (ACCEPT,), ErrorCode.INVALID_REQUEST),
    (0, 1, (ACCEPT,) * 3, ErrorCode.INVALID_REQUEST),
    (0, 1, (5,), ErrorCode.INVALID_REQUEST),
    (0, 2, (ACCEPT,), ErrorCode.INVALID_REQUEST),
])
def test_malformed_acknowledgements_change_nothing(client, member, first, last, types, code):
    client.produce(client.batch(b'a', b'b'))
    member.acquired()
    assert member.say(first, last, *types) == code
    assert member.say(0, 1) == 0


def test_foreign_records_are_not_acknowledged(client, member):
    client.produce(client.batch(b'a'))
    member.acquired()
    stranger = other(member)
    stranger.fetch_shares()
    assert stranger.say(0, 0) == ErrorCode.INVALID_RECORD_STATE
    assert member.say(0, 0) == 0 and member.say(0, 0) == 0


def test_an_acknowledgement_of_an_unknown_share_partition_is_refused(member):
    member.fetch_shares()
    member.broker.share_partitions.drop_group('g1')
    assert member.say(0, 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# ---- writes of state that fail, and the stop of the broker

@pytest.mark.parametrize(('failure', 'code', 'is_dropped'), [
    (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, True),
    (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
    (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_SERVER_ERROR, False),
])
def test_a_failed_write_is_reported_and_changes_nothing(monkeypatch, node, client, member, failure, code, is_dropped):
    client.produce(client.batch(b'a'))
    member.acquired()
    with monkeypatch.context() as patch:
        patch.setattr(node.share_states, 'write', lambda key, changes, done: done(KafkaError(failure)))
        assert member.say(0, 0) == code
    assert len(node.share_partitions) == (0 if is_dropped else 1)
    if is_dropped:
        assert member.acquired() == [(0, 0, 1)]
    assert member.say(0, 0) == 0 and other(member).acquired() == []


def test_the_end_of_a_lock_counts_although_its_write_fails(monkeypatch, node, client, member):
    client.produce(client.batch(b'a'))
    member.acquired()
    with monkeypatch.context() as patch:
        patch.setattr(node.share_states, 'write',
                      lambda key, changes, done: done(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)))
        node.clock.advance(LOCK_MS)
        member.settle()
    assert other(member).acquired() == [(0, 0, 2)]


def test_a_waiting_fetch_is_answered_when_the_broker_stops(node, member):
    parked = member.begin_fetch_shares(max_wait_ms=1000)
    node.waiting_room.answer_all()
    node.long_work.finish()
    assert parked.answer.error_code == 0


# ---- start, restart, memory

def test_a_group_without_a_start_begins_at_the_end(node, client, topic_id):
    client.produce(client.batch(b'a'))
    member = ShareClient(node, topic_id)
    member.initialize(start_offset=-1)
    assert member.acquired() == []
    client.produce(client.batch(b'b'))
    assert member.acquired() == [(1, 1, 1)]


@pytest.mark.parametrize(('reset', 'first_offset'), [
    ('earliest', 0), ('by_duration:P99999999D', 0), ('by_duration:PT4H-90M', 1), ('by_duration:+PT1H', 2),
    ('by_duration:PT3599,5S', 2), ('by_duration:PT0S', 3), ('latest', 3)])
def test_a_group_begins_as_its_reset_says(client, node, topic_id, reset, first_offset):
    for age_ms in (3 * HOUR_MS, 2 * HOUR_MS, HOUR_MS // 2):
        client.produce(batch_of(client.now_ms - age_ms, b'old'))
    assert client.alter(GROUP, 'g1', share_auto_offset_reset=reset) == 0
    member = ShareClient(node, topic_id)
    member.initialize(start_offset=-1)
    acquired = member.acquired()
    client.produce(client.batch(b'new'))
    assert (acquired + member.acquired())[0][0] == first_offset


def test_records_that_were_acquired_at_a_crash_are_delivered_again(start_node, member, client):
    client.produce(client.batch(b'a', b'b'))
    client.produce(client.batch(b'c'))
    assert member.acquired() == [(0, 2, 1)]
    assert member.say(0, 0) == member.say(1, 1, RELEASE) == 0
    member.broker.crash()
    after = ShareClient(start_node(), member.topic_id)
    assert after.acquired() == [(1, 1, 2), (2, 2, 1)]


def test_a_start_at_the_end_outlives_a_crash(start_node, node, client, topic_id):
    member = ShareClient(node, topic_id)
    member.initialize(start_offset=-1)
    member.fetch_shares()
    client.produce(client.batch(b'a'))
    assert member.acquired() == [(0, 0, 1)]
    node.crash()
    assert ShareClient(start_node(), topic_id).acquired() == [(0, 0, 1)]


def test_deleted_records_are_passed_over(client, member):
    for value in (b'a', b'b', b'c'):
        client.produce(client.batch(value))
    member.acquired(max_records=1)
    client.ask('DeleteRecords', topics=[{'name': 'orders', 'partitions': [{'partition_index': 0, 'offset': 2}]}])
    assert other(member).acquired() == [(2, 2, 1)]
    assert member.say(0, 0) == 0


def test_idle_share_partitions_are_dropped_and_loaded_again(node, client, member):
    client.produce(client.batch(b'a'))
    held_bytes = node.groups.memory.held_bytes
    member.acquired()
    member.say(0, 0)
    assert len(node.share_partitions) == 1
    for _ in range(2):
        node.clock.advance(45_000)
        member.settle()
    assert len(node.share_partitions) == 0
    assert node.groups.memory.held_bytes - held_bytes < 1000
    client.produce(client.batch(b'b'))
    assert member.acquired() == [(1, 1, 1)]


@pytest.fixture
def past_the_limit(client, member):
    """Leave four records of the last batch past the limit of record locks, and end the group's last session."""
    assert client.alter(GROUP, 'g1', share_partition_max_record_locks='100') == 0
    client.produce(client.batch(*[b'a'] * 64))
    client.produce(client.batch(*[b'a'] * 40))
    assert member.acquired(share_acquire_mode=1) == [(0, 99, 1)]
    assert member.acknowledge(epoch=-1).error_code == 0


def test_records_past_the_limit_stay_tracked_after_the_last_session(member, past_the_limit):
    """The end of the last session once dropped the share partition. The next member then got 100 records instead of
    104."""
    assert other(member).acquired(share_acquire_mode=1) == [(0, 99, 2), (100, 103, 1)]


def test_the_share_partition_is_dropped_when_the_connection_of_the_last_session_closes(member, past_the_limit):
    member.disconnect()
    assert len(member.broker.share_partitions) == 0
    assert other(member).acquired(share_acquire_mode=1) == [(0, 99, 2)]


def test_the_share_partition_stays_while_the_group_has_a_session(member, past_the_limit):
    later = other(member)
    later.fetch_shares(max_records=1)
    member.disconnect()
    assert len(member.broker.share_partitions) == 1 and later.say(0, 0) == 0


# ---- read_committed

@pytest.fixture
def read_committed(client):
    assert client.alter(GROUP, 'g1', share_isolation_level='read_committed') == 0


def transact(producer, base_sequence, *values, committed):
    producer.add_partition()
    for number, value in enumerate(values):
        assert producer.produce(producer.batch(value, base_sequence=base_sequence + number)).error_code == 0
    assert producer.begin_end(committed, 4).answer.error_code == 0


@pytest.mark.usefixtures('read_committed')
def test_read_committed_groups_pass_over_aborted_records(client, producer, member):
    client.produce(client.batch(b'plain'))
    transact(producer, 0, b'lost', committed=False)
    transact(producer, 1, b'kept', committed=True)
    answer = member.fetch_shares()
    assert ranges(answer) == [(0, 0, 1), (2, 4, 1)]
    assert member.say(0, 0) == 0
    state = member.broker.share_states.summary(ShareKey('g1', member.topic_id, 0))
    assert (state.start_offset, state.delivery_complete_count) == (0, 2)
    assert member.say(2, 4) == 0


@pytest.mark.usefixtures('read_committed')
def test_read_committed_groups_wait_for_the_end_of_transactions(client, producer, member):
    producer.add_partition()
    producer.produce(producer.batch(b'open'))
    client.produce(client.batch(b'plain'))
    parked = member.begin_fetch_shares(max_wait_ms=1000)
    assert not parked.is_answered
    assert producer.begin_end(True, 4).answer.error_code == 0
    member.settle()
    assert ranges(parked.answer) == [(0, 2, 1)]


def test_read_uncommitted_groups_get_everything(producer, member):
    transact(producer, 0, b'lost', committed=False)
    assert member.acquired() == [(0, 1, 1)]


def test_a_fetch_that_waited_leaves_no_garbage(client, member):
    """If the fetch is part of a reference cycle while it waits, the broker may exempt the cycle from garbage
    collection, and never free it."""
    def wait():
        parked = member.begin_fetch_shares(max_wait_ms=500)
        assert not parked.is_answered
        client.broker.clock.advance(500)
        member.settle()
        member.advance(parked.answer)
        assert ranges(parked.answer) == []

    wait()
    gc.collect()
    wait()
    assert gc.collect() == 0


def test_a_fetch_of_a_share_partition_that_was_never_initialized_leaves_no_garbage(client, topic_id):
    """The broker once kept the error with its traceback, and thereby kept the request and the connection in memory."""
    stranger = ShareClient(client.broker, topic_id)
    stranger.fetch_shares()
    gc.collect()
    stranger.fetch_shares()
    assert gc.collect() == 0


def test_acquired_records_count_as_fetched_from_their_topic(client, member):
    client.produce(client.batch(b'a', b'b'))
    client.produce(client.batch(b'c'))
    member.acquired(max_records=2)
    size_bytes = client.broker.topics.topic('orders').partitions[0].fetched_bytes
    assert client.broker.topics.topic('orders').traffic()[2:] == (2, size_bytes) and size_bytes > 0
    member.acquired()
    assert client.broker.topics.topic('orders').traffic()[2] == 3
