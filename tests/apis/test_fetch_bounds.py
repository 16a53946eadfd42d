"""The broker serves a fetch of very many partitions in parts. The memory of fetch sessions is bounded."""
import gc
import time

import pytest
from api_client import ApiClient, values_of
from support.brokers.in_process_broker import frame_of
from support.runner.attempts import assert_within

from kbroker.base.errors import ErrorCode
from kbroker.protocol.messages import FetchRequest

VERSION = 12
MANY = 1000
SLICE_S = 0.010
HELD = 200_000
OLD_MS = 120_000


def fetch_of(indexes, topic='many', *, session_id=0, epoch=0, offset=0, **fields):
    partitions = [FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
                  for index in indexes]
    topics = [FetchRequest.FetchTopic(topic=topic, partitions=partitions)] if partitions else []
    return FetchRequest(**{'max_wait_ms': 0, 'min_bytes': 1, 'max_bytes': 1 << 20, **fields}, session_id=session_id,
                        session_epoch=epoch, topics=topics)


def listed(answer):
    return {partition.partition_index: partition.error_code
            for topic in answer.responses for partition in topic.partitions}


@pytest.fixture
def many(client):
    client.create_topic('many', MANY)
    return client


def wanted_partitions():
    gc.collect()
    return sum(type(each).__name__ == 'WantedPartition' for each in gc.get_objects())


def run_slices(broker):
    """Run the long work to its end. Return the processor time of the longest slice, in seconds."""
    longest_s = 0.0
    while len(broker.long_work):
        before_s = time.thread_time()
        broker.long_work.run_slice()
        longest_s = max(longest_s, time.thread_time() - before_s)
    return longest_s


def test_sessions_of_partitions_that_do_not_exist_hold_nothing(client):
    broker = client.broker
    for _ in range(3):
        answer = broker.ask(fetch_of(range(99_999), 'nothing'), VERSION)
        assert answer.session_id == 0
        assert len(listed(answer)) == 99_999
    assert set(listed(answer).values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert (len(broker.fetch_sessions), broker.fetch_sessions.held, wanted_partitions()) == (0, 0, 0)


@pytest.mark.parametrize('version', [6, 7, VERSION])
def test_a_fetch_that_names_more_than_any_broker_holds_is_refused(client, version):
    request = fetch_of(range(250_000), 'nothing')
    connection = client.broker.begin(request, version)
    if version < 7:
        assert connection.closed is not None and connection.closed.endswith(
            'found 250001 topics and partitions or more, expected 100000 at most')
    else:
        answer = client.broker.answer_to(connection, request, version)
        assert (answer.error_code, answer.responses) == (ErrorCode.INVALID_REQUEST, [])
    assert wanted_partitions() == 0


def test_a_session_keeps_a_few_partitions_that_do_not_exist_and_no_more(many):
    kept = many.broker.ask(fetch_of(range(MANY - 5, MANY + 100)), VERSION)
    assert kept.session_id != 0 and many.broker.fetch_sessions.held == 105
    again = many.broker.ask(fetch_of([], session_id=kept.session_id, epoch=1), VERSION)
    assert (again.session_id, len(listed(again))) == (kept.session_id, 100)
    ended = many.broker.ask(fetch_of([MANY + 100], session_id=kept.session_id, epoch=2), VERSION)
    assert (ended.session_id, len(listed(ended))) == (0, 101)
    assert (len(many.broker.fetch_sessions), many.broker.fetch_sessions.held) == (0, 0)


def test_no_session_keeps_a_name_that_no_topic_can_have(many):
    """A session once kept such names. A hundred of them took 3 MB, so a thousand sessions took 3 GB."""
    long = many.broker.ask(fetch_of([0], 'n' * 250), VERSION)
    assert (long.session_id, listed(long)) == (0, {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    possible = many.broker.ask(fetch_of([0], 'n' * 249), VERSION)
    assert possible.session_id != 0 and many.broker.fetch_sessions.held == 1


def test_a_session_whose_topic_is_deleted_ends_with_the_answer_that_says_so(many):
    began = many.broker.ask(fetch_of(range(MANY)), VERSION)
    many.ask('DeleteTopics', topics=[{'name': 'many'}], timeout_ms=1000)
    ended = many.broker.ask(fetch_of([], session_id=began.session_id, epoch=1), VERSION)
    assert (ended.session_id, len(listed(ended))) == (0, MANY)
    assert many.broker.fetch_sessions.held == 0


@pytest.mark.usefixtures('no_collector')
def test_a_fetch_of_many_partitions_is_done_in_parts(many):
    broker, connection = many.broker, many.broker.connect()
    many.produce(many.batch(b'a'), topic='many', partition=700)
    request = fetch_of(range(MANY))
    broker.serve(connection, frame_of(request, VERSION))
    assert not connection.replies and len(broker.long_work) == 1
    assert many.produce(many.batch(b'b'), topic='many', partition=3).error_code == 0
    assert_within(run_slices(broker), SLICE_S)
    answer = broker.answer_to(connection, request, VERSION)
    assert answer.session_id != 0 and set(listed(answer)) == set(range(MANY))
    values = {partition.partition_index: values_of(partition.records)
              for topic in answer.responses for partition in topic.partitions}
    assert (values[700], values[5]) == ([b'a'], [])


@pytest.mark.parametrize('version', [6, VERSION])
def test_a_partition_that_moves_while_others_are_looked_at_ends_the_wait(many, version):
    broker, moved = many.broker, set()

    def append_after(parts, partition):
        for _ in range(parts):
            yield
        partition.append_batch(bytearray(many.batch(b'a')))

    # The fetch takes 48 parts: 16 that adopt the partitions of the request, then 16 that read them, then 16 that
    # register a wait.
    for parts in range(1, 60, 6):
        connection = broker.connect()
        request = fetch_of(set(range(MANY)) - moved, max_wait_ms=500)
        broker.serve(connection, frame_of(request, version))
        broker.long_work.start(append_after(parts, broker.topics.get('many', 500 + parts)))
        moved.add(500 + parts)
        for _ in range(3):
            broker.turn()
        answer = broker.answer_to(connection, request, version)
        assert {partition.partition_index: values_of(partition.records) for topic in answer.responses
                for partition in topic.partitions}[500 + parts] == [b'a']


@pytest.mark.parametrize('moves', [1, MANY])
@pytest.mark.parametrize('version', [6, VERSION])
def test_a_waiting_fetch_of_many_partitions_is_woken(many, version, moves):
    broker, connection = many.broker, many.broker.connect()
    request = fetch_of(range(MANY), max_wait_ms=500, min_bytes=moves * len(many.batch(b'a')))
    broker.begin(request, version, connection)
    broker.turn()
    assert not connection.replies and len(broker.waiting_room) == 1
    for partition in range(moves):
        many.produce(many.batch(b'a'), topic='many', partition=partition)
    broker.turn()
    answer = broker.answer_to(connection, request, version)
    assert sum(len(values_of(partition.records)) for topic in answer.responses
               for partition in topic.partitions) == moves
    assert len(broker.waiting_room) == 0


@pytest.mark.parametrize('version', [6, VERSION])
def test_a_waiting_fetch_of_many_partitions_is_answered_when_its_time_is_over(many, version):
    broker, connection = many.broker, many.broker.connect()
    request = fetch_of(range(MANY), max_wait_ms=500)
    broker.begin(request, version, connection)
    broker.turn()
    broker.clock.advance(500)
    broker.turn()
    assert len(listed(broker.answer_to(connection, request, version))) == MANY
    assert broker.fetch_sessions.held == (MANY if version == VERSION else 0)


@pytest.mark.parametrize('slices', [0, 1])
@pytest.mark.parametrize('epoch', [0, 1])
def test_a_connection_that_closes_half_way_leaves_nothing(many, slices, epoch):
    broker, connection = many.broker, many.broker.connect()
    began = broker.ask(fetch_of([0]), VERSION)
    broker.serve(connection, frame_of(fetch_of(range(MANY), session_id=began.session_id, epoch=epoch), VERSION))
    for _ in range(slices):
        broker.disconnect(connection)
        broker.long_work.run_slice()
    broker.disconnect(connection)
    broker.turn()
    assert (len(broker.fetch_sessions), broker.fetch_sessions.held, len(broker.waiting_room)) == (0, 0, 0)
    assert (connection.replies, wanted_partitions()) == ([], 0)


def test_a_session_that_is_worked_on_takes_no_other_fetch(many):
    broker, connection = many.broker, many.broker.connect()
    began = broker.ask(fetch_of([0]), VERSION)
    request = fetch_of(range(MANY), session_id=began.session_id, epoch=1)
    broker.serve(connection, frame_of(request, VERSION))
    other = fetch_of([], session_id=began.session_id, epoch=2)
    answer = broker.answer_to(broker.begin(other, VERSION), other, VERSION)
    assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert len(listed(broker.answer_to(connection, request, VERSION))) == MANY - 1
    assert broker.ask(other, VERSION).error_code == 0


def test_sessions_hold_a_bounded_number_of_partitions_together(many):
    broker = many.broker
    answers = [broker.ask(fetch_of(range(MANY)), VERSION) for _ in range(HELD // MANY + 5)]
    assert [answer.session_id != 0 for answer in answers] == [True] * (HELD // MANY) + [False] * 5
    assert {len(listed(answer)) for answer in answers} == {MANY}
    assert (broker.fetch_sessions.held, wanted_partitions()) == (HELD, HELD)
    # Waiting fetches count toward the bound, too. This fetch exceeds it, so the broker answers at once.
    assert len(listed(broker.ask(fetch_of(range(MANY), epoch=-1, max_wait_ms=500), VERSION))) == MANY

    grown = broker.ask(fetch_of([0], 'orders', session_id=answers[0].session_id, epoch=1), VERSION)
    assert (grown.error_code, grown.session_id, broker.fetch_sessions.held) == (0, 0, HELD - MANY)

    broker.clock.advance(OLD_MS)
    assert broker.ask(fetch_of(range(MANY)), VERSION).session_id != 0
    assert broker.ask(fetch_of(range(MANY)), VERSION).session_id != 0
    assert broker.fetch_sessions.held == HELD


def test_an_old_session_makes_room_for_a_larger_one_although_it_is_in_use(start_node):
    client = ApiClient(start_node(max_incremental_fetch_session_cache_slots='2'))
    client.create_topic('many', 4)
    ask = client.broker.ask
    small, large = ask(fetch_of([0]), VERSION), ask(fetch_of([0, 1, 2]), VERSION)
    client.broker.clock.advance(OLD_MS - 1)
    for answer in (small, large):
        assert ask(fetch_of([], session_id=answer.session_id, epoch=1), VERSION).error_code == 0
    assert ask(fetch_of([0, 1]), VERSION).session_id == 0
    client.broker.clock.advance(1)
    for answer in (small, large):
        assert ask(fetch_of([], session_id=answer.session_id, epoch=2), VERSION).error_code == 0
    assert ask(fetch_of([0]), VERSION).session_id == 0
    assert ask(fetch_of([0, 1]), VERSION).session_id != 0
    assert ask(fetch_of([], session_id=small.session_id, epoch=3), VERSION).error_code == (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert ask(fetch_of([], session_id=large.session_id, epoch=3), VERSION).error_code == 0


def test_the_size_of_a_session_is_that_of_its_last_fetch(start_node):
    client = ApiClient(start_node(max_incremental_fetch_session_cache_slots='1'))
    client.create_topic('many', 4)
    ask = client.broker.ask
    grown = ask(fetch_of([0]), VERSION)
    client.broker.clock.advance(OLD_MS)
    for epoch, added in enumerate(([1], [2, 3]), 1):
        assert ask(fetch_of(added, session_id=grown.session_id, epoch=epoch), VERSION).session_id == grown.session_id
    assert client.broker.fetch_sessions.held == 4
    assert ask(fetch_of([0, 1, 2]), VERSION).session_id == 0
    assert ask(fetch_of([], session_id=grown.session_id, epoch=3), VERSION).error_code == 0


def test_topics_without_partitions_are_not_kept(client):
    request = fetch_of([0], 'orders')
    request.topics += [FetchRequest.FetchTopic(topic=f't{number}', partitions=[]) for number in range(1000)]
    before = sum(type(each).__name__ == 'WantedTopic' for each in gc.get_objects())
    assert client.broker.ask(request, VERSION).session_id != 0
    assert sum(type(each).__name__ == 'WantedTopic' for each in gc.get_objects()) == before + 1


def test_a_stop_answers_the_fetches_that_are_worked_on(many):
    broker, connection = many.broker, many.broker.connect()
    request = fetch_of(range(MANY), max_wait_ms=500)
    broker.serve(connection, frame_of(request, VERSION))
    broker.waiting_room.answer_all()
    broker.long_work.finish()
    assert len(listed(broker.answer_to(connection, request, VERSION))) == MANY
