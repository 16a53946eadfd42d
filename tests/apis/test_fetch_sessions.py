"""Incremental fetch sessions: what is remembered, what is left out, what is refused."""
import pytest

from kbroker.apis.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, LAST_EPOCH, FetchSessions
from kbroker.clock import ManualClock
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.messages import FetchRequest, FetchResponse

VERSION = 12


def request(session_id=0, epoch=INITIAL_EPOCH, topics=None, forgotten=()):
    return FetchRequest(
        session_id=session_id, session_epoch=epoch,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[
            FetchRequest.FetchPartition(partition=partition, fetch_offset=offset) for partition, offset in partitions])
            for topic, partitions in (topics or {}).items()],
        forgotten_topics_data=[FetchRequest.ForgottenTopic(topic=topic, partitions=partitions)
                               for topic, partitions in forgotten])


def answer(partition=0, **fields):
    return FetchResponse.PartitionData(partition_index=partition, **{'records': b'', 'high_watermark': 5, **fields})


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def sessions(clock):
    return FetchSessions(2, clock)


def test_a_full_request_opens_a_session_that_an_incremental_one_continues(sessions):
    session, wanted, incremental = sessions.find(request(topics={'t': [(0, 3), (1, 4)]}), VERSION)
    assert not incremental and [item.fetch_offset for item in wanted.values()] == [3, 4]

    again, wanted, incremental = sessions.find(request(session.session_id, 1, {'t': [(1, 9)]}), VERSION)
    assert again is session and incremental
    assert [item.fetch_offset for item in wanted.values()] == [3, 9]


def test_forgotten_partitions_leave_and_an_empty_session_ends(sessions):
    session, _, _ = sessions.find(request(topics={'t': [(0, 3), (1, 4)]}), VERSION)
    _, wanted, _ = sessions.find(request(session.session_id, 1, forgotten=[('t', [0])]), VERSION)
    assert [key[2] for key in wanted] == [1]
    sessions.find(request(session.session_id, 2, forgotten=[('t', [1])]), VERSION)
    assert len(sessions) == 0


def test_the_final_epoch_closes_the_session_and_serves_once(sessions):
    session, _, _ = sessions.find(request(topics={'t': [(0, 3)]}), VERSION)
    without, wanted, incremental = sessions.find(request(session.session_id, FINAL_EPOCH, {'t': [(0, 3)]}), VERSION)
    assert without is None and len(wanted) == 1 and not incremental and len(sessions) == 0


@pytest.mark.parametrize(('change', 'code'), [
    ({'session_id': 7}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ({'epoch': 2}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ({'version': 13}, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
])
def test_a_request_that_does_not_fit_its_session_is_refused(sessions, change, code):
    session, _, _ = sessions.find(request(topics={'t': [(0, 3)]}), VERSION)
    with pytest.raises(KafkaError) as refused:
        sessions.find(request(change.get('session_id', session.session_id), change.get('epoch', 1)),
                      change.get('version', VERSION))
    assert refused.value.code == code


def test_an_answer_that_says_nothing_new_is_left_out(sessions):
    session, wanted, _ = sessions.find(request(topics={'t': [(0, 3)]}), VERSION)
    key, = wanted
    assert session.told(key, answer())
    assert not session.told(key, answer())
    assert session.told(key, answer(high_watermark=6))
    assert session.told(key, answer(high_watermark=6, log_start_offset=2))
    assert session.told(key, answer(high_watermark=6, log_start_offset=2, records=b'x'))


def test_an_error_is_told_each_time_and_what_follows_it_too(sessions):
    session, wanted, _ = sessions.find(request(topics={'t': [(0, 3)]}), VERSION)
    key, = wanted
    session.told(key, answer())
    assert session.told(key, answer(error_code=3, high_watermark=-1))
    assert session.told(key, answer(error_code=3, high_watermark=-1))
    assert session.told(key, answer())


def test_a_partition_that_gave_records_is_served_last_next_time(sessions):
    session, wanted, _ = sessions.find(request(topics={'t': [(0, 3), (1, 3)]}), VERSION)
    first, second = wanted
    session.told(first, answer(records=b'x'))
    assert list(session.partitions) == [second, first]


def test_the_epoch_after_the_last_is_one(sessions):
    session, _, _ = sessions.find(request(topics={'t': [(0, 3)]}), VERSION)
    session.epoch = LAST_EPOCH
    sessions.find(request(session.session_id, LAST_EPOCH), VERSION)
    assert session.epoch == 1


def test_a_full_cache_serves_without_a_session_until_one_is_old_enough_to_evict(sessions, clock):
    first, _, _ = sessions.find(request(topics={'t': [(0, 0)]}), VERSION)
    second, _, _ = sessions.find(request(topics={'t': [(0, 0)]}), VERSION)
    assert sessions.find(request(topics={'t': [(0, 0)]}), VERSION)[0] is None

    clock.advance(120_000)
    sessions.find(request(first.session_id, 1), VERSION)
    third, _, _ = sessions.find(request(topics={'t': [(0, 0)]}), VERSION)
    assert third is not None and len(sessions) == 2
    with pytest.raises(KafkaError, match=str(second.session_id)):
        sessions.find(request(second.session_id, 1), VERSION)


def test_requests_below_version_7_have_no_session(sessions):
    assert sessions.find(request(topics={'t': [(0, 0)]}), 6)[0] is None and len(sessions) == 0
