"""Incremental fetch sessions: their state, the partitions that an answer omits, and refused requests."""
import gc

import pytest
from api_client import ApiClient, values_of
from fetch_session import VERSION, Session

from kbroker.base.errors import ErrorCode

LAST_EPOCH = 2**31 - 1


@pytest.fixture
def wide(client):
    client.create_topic('wide', 8)
    return client


@pytest.fixture
def session(wide):
    return Session(wide)


def fill(client, partition, *values):
    for value in values:
        assert client.produce(client.batch(value), topic='wide', partition=partition).error_code == 0


def test_a_full_request_opens_a_session_that_an_incremental_one_continues(wide, session):
    fill(wide, 0, b'a', b'b')
    assert session.ask({0: 2, 1: 0}) == {0: [], 1: []}
    assert session.session_id != 0
    fill(wide, 1, b'c')
    assert session.ask({0: 1}) == {0: [b'b'], 1: [b'c']}
    assert session.ask({0: 2, 1: 1}) == {}


def test_a_session_returns_only_what_is_new(wide, session):
    session.ask({0: 0, 1: 0})
    assert session.ask() == {}
    fill(wide, 1, b'a')
    assert session.ask() == {1: [b'a']}
    assert session.ask({2: 0}) == {1: [b'a'], 2: []}, 'a new partition is included'


@pytest.mark.parametrize('topics', [[], [{'topic': 'wide', 'partitions': []}]])
def test_a_session_of_nothing_is_a_session(wide, topics):
    """Apache Kafka creates a session for a client without partitions. kbroker once answered with session 0."""
    assert wide.ask('Fetch', VERSION, max_wait_ms=0, session_epoch=0, topics=topics).session_id != 0


def test_a_session_reports_that_a_topic_was_deleted_each_time(wide, session):
    session.ask({0: 0})
    wide.ask('DeleteTopics', topics=[{'name': 'wide'}], timeout_ms=1000)
    for _ in range(2):
        (partition,) = session.begin().answer.responses[0].partitions
        assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_forgotten_partitions_leave_and_an_empty_session_ends(wide, session):
    session.ask({0: 0, 1: 0})
    fill(wide, 0, b'a')
    fill(wide, 1, b'b')
    assert session.ask(forget=[0, 5]) == {1: [b'b']}
    assert session.ask(forget=[1]) == {}
    assert len(wide.broker.fetch_sessions) == 0
    assert session.refusal() == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_partition_that_was_forgotten_may_come_back(wide, session):
    session.ask({0: 0, 1: 0})
    session.ask(forget=[0])
    assert session.ask({0: 0}) == {0: []}
    fill(wide, 0, b'a')
    assert session.ask() == {0: [b'a']}


def test_the_final_epoch_closes_the_session_and_serves_once(wide, session):
    session.ask({0: 0})
    fill(wide, 0, b'a')
    session.epoch = -1
    assert session.ask({0: 0}) == {0: [b'a']}
    assert session.answer.session_id == 0 and len(wide.broker.fetch_sessions) == 0
    session.epoch = 1
    assert session.refusal() == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_full_request_of_a_session_ends_it_and_opens_another(wide, session):
    session.ask({0: 0})
    first, session.epoch = session.session_id, 0
    session.begin({0: 0})
    assert session.answer.session_id not in (0, first) and len(wide.broker.fetch_sessions) == 1


@pytest.mark.parametrize(('change', 'code'), [
    ({'session_id': 7}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ({'epoch': 2}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ({'epoch': -2}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ({'version': 13}, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
])
def test_a_request_that_does_not_fit_its_session_is_refused(session, change, code):
    session.ask({0: 0})
    for name, value in change.items():
        setattr(session, name, value)
    assert session.refusal() == code


def test_a_high_watermark_that_moved_is_reported_once(wide, session):
    session.ask({0: 1 << 40, 1: 0})    # partition 0 waits for an offset that is never written
    fill(wide, 1, b'a', b'b')
    assert session.ask({0: 0}) == {0: [], 1: [b'a', b'b']}
    assert session.ask({1: 2}) == {}
    wide.ask('DeleteRecords', topics=[{'name': 'wide', 'partitions': [{'partition_index': 1, 'offset': 1}]}])
    assert session.ask() == {1: []}
    assert session.ask() == {}


def test_an_error_is_reported_each_time_and_so_is_what_follows_it(wide, session):
    partition = wide.broker.topics.get('wide', 0)
    session.ask({0: 0})
    assert session.ask({0: 5}) == {0: []} and session.answer.responses[0].partitions[0].error_code == 1
    assert session.ask() == {0: []} and session.answer.responses[0].partitions[0].error_code == 1
    assert session.ask({0: partition.high_watermark}) == {0: []}
    assert session.answer.responses[0].partitions[0].error_code == 0
    assert session.ask() == {}


def test_a_partition_that_appears_later_is_found(wide, session):
    session.topic = 'later'
    assert session.ask({0: 0}) == {0: []}
    wide.create_topic('later')
    wide.produce(wide.batch(b'a'), topic='later')
    assert session.ask() == {0: [b'a']}


def test_a_recreated_topic_is_another_one(wide, session):
    session.ask({0: 0})
    wide.ask('DeleteTopics', topics=[{'name': 'wide'}], timeout_ms=1000)
    wide.create_topic('wide', 1)
    fill(wide, 0, b'new')
    assert session.ask() == {0: [b'new']}


def test_a_partition_that_gave_records_is_served_last_next_time(wide, session):
    for partition in range(3):
        fill(wide, partition, b'a', b'b')
    session.max_bytes = 1
    served = [session.ask({0: 0, 1: 0, 2: 0})]
    served += [session.ask({0: 1}), session.ask({1: 1}), session.ask({2: 1}), session.ask()]
    assert [[partition for partition, values in each.items() if values] for each in served] == [[0], [1], [2], [0], [1]]


def test_the_epoch_after_the_last_is_one(wide, session):
    session.ask({0: 0})
    wide.broker.fetch_sessions.sessions[session.session_id].epoch = session.epoch = LAST_EPOCH
    session.ask()
    session.epoch = 1
    assert session.ask() == {}


def test_a_full_cache_serves_without_a_session_until_one_is_old_enough_to_evict(start_node):
    client = ApiClient(start_node(max_incremental_fetch_session_cache_slots='2'))
    client.create_topic('wide', 2)
    first, second, third = (Session(client) for _ in range(3))
    first.ask({0: 0})
    second.ask({0: 0})
    assert third.ask({0: 0}) == {0: []} and third.session_id == 0

    client.broker.clock.advance(120_000)
    first.ask()
    third.epoch = 0
    third.ask({0: 0})
    assert third.session_id != 0 and len(client.broker.fetch_sessions) == 2
    assert second.refusal() == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_requests_below_version_7_have_no_session(wide):
    old = Session(wide, version=6)
    old.ask({0: 0})
    assert len(wide.broker.fetch_sessions) == 0


# -- sessions that wait


def test_a_session_that_waits_is_woken_by_any_of_its_partitions(wide, session):
    session.ask({0: 0, 1: 0, 2: 0})
    for partition in (2, 0, 2):
        session.begin(max_wait_ms=500)
        assert not session.is_answered
        fill(wide, partition, b'a')
        assert session.is_answered
        offset = wide.broker.topics.get('wide', partition).high_watermark
        assert session.ask({partition: offset}) == {}


def test_a_session_that_waits_for_more_is_woken_each_time(wide, session):
    session.ask({0: 0, 1: 0})
    session.begin(max_wait_ms=500, min_bytes=3 * len(wide.batch(b'a')))
    fill(wide, 0, b'a')
    fill(wide, 1, b'b')
    assert not session.is_answered
    fill(wide, 0, b'c')
    returned = session.answer.responses[0].partitions
    assert [(each.partition_index, values_of(each.records)) for each in returned] == [(0, [b'a', b'c']), (1, [b'b'])]


def test_a_change_between_two_requests_is_reported(wide, session):
    session.ask({partition: 0 for partition in range(8)})
    session.ask()
    fill(wide, 3, b'a')
    fill(wide, 5, b'b')
    assert session.ask() == {3: [b'a'], 5: [b'b']}


def test_a_session_survives_a_connection_that_was_closed_while_it_waited(wide, session):
    session.ask({0: 0})
    session.begin(max_wait_ms=500)
    wide.broker.disconnect(session.connection)
    fill(wide, 0, b'a')
    assert session.connection.replies == []
    assert session.ask() == {0: [b'a']}


def test_who_goes_on_with_a_session_ends_the_wait_of_the_one_before(wide, session):
    session.ask({0: 0})
    session.begin(max_wait_ms=500)
    first, before = session.connection, session.before
    session.ask()
    assert len(first.replies) == before + 1 and len(wide.broker.waiting_room) == 0


def test_a_session_that_is_ended_by_another_connection_answers_when_its_time_is_over(wide, session):
    session.ask({0: 0})
    session.begin(max_wait_ms=500)
    waiting = session.connection
    session.epoch = -1
    session.begin({0: 0})
    fill(wide, 0, b'a')
    assert waiting.replies == []
    wide.broker.clock.advance(500)
    wide.broker.turn()
    assert len(waiting.replies) == 1


def test_fetches_without_a_session_leave_no_garbage(wide):
    wide.fetch(topic='wide')
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            wide.fetch(topic='wide', version=6)
            waiting = wide.begin_fetch(topic='wide', version=6, max_wait_ms=5)
            wide.broker.disconnect(waiting.connection)
        del waiting
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [each for each in gc.garbage if type(each).__module__.startswith('kbroker.apis.fetch.fetch')]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


# -- retention


@pytest.fixture
def aged(client):
    """Return a session on a topic with one expired record, on which retention has not run yet."""
    client.create_topic('aged', retention_ms='5000')
    client.produce(client.batch(b'old'), topic='aged')
    client.broker.clock.advance(10_000)
    return Session(client, 'aged')


def test_a_log_start_that_retention_moved_is_reported(client, aged):
    aged.ask({0: 1})
    assert aged.ask() == {}
    client.broker.logs.apply_retention()
    client.broker.turn()
    assert aged.ask() == {0: []}
    assert aged.answer.responses[0].partitions[0].log_start_offset == 1
    client.broker.logs.apply_retention()
    assert aged.ask() == {}


@pytest.mark.parametrize('has_session', [True, False])
def test_a_fetch_that_waits_below_a_log_start_that_retention_moved_is_out_of_range(client, aged, has_session):
    if has_session:
        aged.ask({0: 0})
    else:
        aged.version = 6
    aged.begin({0: 0}, max_wait_ms=500, min_bytes=1 << 20)
    client.broker.turn()
    assert not aged.is_answered
    client.broker.logs.apply_retention()
    client.broker.turn()
    assert aged.is_answered
    assert aged.answer.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
