"""Fetch: which batches it returns, when it waits, and what wakes it up."""

import pytest
from api_client import ApiClient, TransactionalClient, values_of

from kbroker.base.errors import ErrorCode
from kbroker.record.batch import iter_batches

COMMITTED = 1


def fill(client, *values, topic='orders', partition=0):
    for value in values:
        assert client.produce(client.batch(value), topic=topic, partition=partition).error_code == 0


@pytest.mark.parametrize('version', range(4, 13))
def test_records_are_read_in_every_version(client, version):
    fill(client, b'a', b'b')
    answer = client.fetch(version)
    assert values_of(answer.records) == [b'a', b'b']
    assert (answer.high_watermark, answer.last_stable_offset) == (2, 2)
    assert answer.aborted_transactions is None
    assert client.fetch(version, isolation_level=COMMITTED).aborted_transactions == []


@pytest.mark.parametrize('version', range(13, 19))
def test_from_version_13_on_topics_have_ids(client, version):
    topic_id = client.create_topic('by-id')
    fill(client, b'a', topic='by-id')

    def fetch(topic_id, **more):
        return (
            client.ask(
                'Fetch',
                version,
                max_wait_ms=0,
                max_bytes=1000,
                topics=[{'topic_id': topic_id, 'partitions': [{'partition': 0, 'partition_max_bytes': 1000}]}],
                **more,
            )
            .responses[0]
            .partitions[0]
        )

    assert values_of(fetch(topic_id).records) == [b'a']
    assert fetch(b'\7' * 16).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_an_offset_inside_a_batch_gets_the_whole_batch(client):
    client.produce(client.batch(b'a', b'b', b'c'))
    assert values_of(client.fetch(offset=2).records) == [b'a', b'b', b'c']


@pytest.mark.parametrize('offset', [-1, 2])
def test_an_offset_outside_the_log_is_refused(client, offset):
    fill(client, b'a')
    answer = client.fetch(offset=offset)
    assert (answer.error_code, answer.high_watermark, answer.aborted_transactions) == (
        ErrorCode.OFFSET_OUT_OF_RANGE,
        -1,
        None,
    )


def test_what_the_disk_has_not_is_not_read(client, disk):
    fill(client, b'a')
    disk.is_held = True
    client.begin_produce(client.batch(b'b'))
    assert values_of(client.fetch().records) == [b'a'] and client.fetch(offset=1).error_code == 0


# -- limits


def test_one_batch_is_returned_however_small_the_limits(client):
    fill(client, b'a', b'b')
    assert values_of(client.fetch(max_bytes=1).records) == [b'a']
    assert values_of(client.fetch(partition_max_bytes=1, offset=1).records) == [b'b']


def test_only_the_first_partition_with_records_may_exceed_the_limits(client):
    client.create_topic('wide', 3)
    fill(client, b'a', b'b', topic='wide', partition=0)
    fill(client, b'c', topic='wide', partition=2)
    one_batch = len(client.batch(b'a'))

    def fetch(max_bytes):
        answer = client.ask(
            'Fetch',
            12,
            max_wait_ms=0,
            max_bytes=max_bytes,
            topics=[
                {
                    'topic': 'wide',
                    'partitions': [{'partition': index, 'partition_max_bytes': 1000} for index in (1, 0, 2)],
                }
            ],
        )
        return [values_of(partition.records) for partition in answer.responses[0].partitions]

    assert fetch(1) == [[], [b'a'], []]
    assert fetch(2 * one_batch) == [[], [b'a', b'b'], []]
    assert fetch(3 * one_batch) == [[], [b'a', b'b'], [b'c']]


def test_the_brokers_own_limit_is_the_lower_one(start_node):
    client = ApiClient(start_node(fetch_max_bytes='1024'))
    client.create_topic()
    fill(client, b'a' * 400, b'b' * 400, b'c' * 400)
    assert values_of(client.fetch().records) == [b'a' * 400, b'b' * 400]


# -- leader epochs


def test_the_leader_epoch_must_be_the_current_one(client):
    epoch = client.broker.topics.get('orders', 0).leader_epoch
    assert client.fetch(current_leader_epoch=epoch).error_code == 0
    assert client.fetch(current_leader_epoch=epoch + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    client.broker.topics.get('orders', 0).leader_epoch += 1
    assert client.fetch(current_leader_epoch=epoch).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_fetch_from_an_epoch_that_ended_earlier_is_answered_with_its_end(client):
    fill(client, b'a', b'b')
    client.broker.topics.get('orders', 0).leader_epoch = 5
    fill(client, b'c')
    answer = client.fetch(offset=3, last_fetched_epoch=0)
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 2)
    assert client.fetch(offset=2, last_fetched_epoch=0).diverging_epoch.epoch == -1
    assert client.fetch(offset=3, last_fetched_epoch=5).diverging_epoch.epoch == -1


def test_an_epoch_of_the_future_was_never_fetched_here(client):
    """Apache Kafka answers OFFSET_OUT_OF_RANGE. kbroker once answered a diverging epoch of -1, which clients cannot
    use."""
    fill(client, b'a')
    assert client.fetch(last_fetched_epoch=3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_replicas_are_not_served(client):
    answer = client.begin(
        'Fetch', 12, replica_id=5, max_wait_ms=0, topics=[{'topic': 'orders', 'partitions': [{'partition': 0}]}]
    ).answer
    assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# -- fetches that wait


def test_a_fetch_waits_for_an_append(client):
    waiting = client.begin_fetch(max_wait_ms=500)
    assert not waiting.is_answered
    fill(client, b'a')
    assert values_of(waiting.answer.responses[0].partitions[0].records) == [b'a']
    assert len(client.broker.waiting_room) == 0


def test_a_fetch_waits_until_the_disk_has_what_was_appended(client, disk):
    waiting = client.begin_fetch(max_wait_ms=500)
    disk.is_held = True
    client.produce(client.batch(b'a'), acks=1)
    assert not waiting.is_answered
    disk.release()
    client.broker.turn()
    assert waiting.is_answered


def test_a_fetch_waits_until_there_is_as_much_as_it_wants(client):
    one_batch = len(client.batch(b'a'))
    waiting = client.begin_fetch(max_wait_ms=500, min_bytes=2 * one_batch)
    fill(client, b'a')
    assert not waiting.is_answered
    fill(client, b'b')
    assert values_of(waiting.answer.responses[0].partitions[0].records) == [b'a', b'b']


def test_a_wait_ends_after_max_wait(client):
    fill(client, b'a')
    waiting = client.begin_fetch(max_wait_ms=500, min_bytes=1000)
    client.broker.clock.advance(499)
    client.broker.turn()
    assert not waiting.is_answered
    client.broker.clock.advance(1)
    client.broker.turn()
    assert values_of(waiting.answer.responses[0].partitions[0].records) == [b'a']


def test_an_error_is_not_waited_with(client):
    assert client.begin_fetch(max_wait_ms=500, topic='absent').is_answered
    assert client.begin_fetch(max_wait_ms=500, offset=7).is_answered


def test_a_fetch_of_a_topic_that_is_deleted_is_answered_so(client):
    waiting = client.begin_fetch(max_wait_ms=500)
    client.ask('DeleteTopics', topics=[{'name': 'orders'}], timeout_ms=1000)
    assert waiting.answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_connection_that_is_closed_leaves_nothing_behind(client):
    waiting = client.begin_fetch(max_wait_ms=500)
    client.broker.disconnect(waiting.connection)
    assert len(client.broker.waiting_room) == 0
    fill(client, b'a')
    client.broker.clock.advance(1000)
    client.broker.turn()
    assert waiting.connection.replies == []


# -- read_committed


def test_an_open_transaction_hides_what_follows_it(client, producer):
    fill(client, b'before')
    producer.produce(producer.batch(b'open'))
    fill(client, b'after')
    assert values_of(client.fetch(isolation_level=COMMITTED).records) == [b'before']
    assert values_of(client.fetch().records) == [b'before', b'open', b'after']
    answer = client.fetch(offset=1, isolation_level=COMMITTED)
    assert (answer.error_code, answer.last_stable_offset, answer.high_watermark) == (0, 1, 3)


@pytest.mark.parametrize('committed', [True, False])
def test_the_marker_wakes_a_fetch_that_waits_for_committed_records(client, producer, committed):
    waiting = client.begin_fetch(max_wait_ms=500, isolation_level=COMMITTED)
    producer.produce(producer.batch(b'a'))
    assert not waiting.is_answered
    producer.end(committed)
    answer = waiting.answer.responses[0].partitions[0]
    aborted = [(entry.producer_id, entry.first_offset) for entry in answer.aborted_transactions]
    assert aborted == ([] if committed else [(producer.producer_id, 0)])
    assert [header.is_control for header, _ in iter_batches(answer.records)] == [False, True]


def test_aborted_transactions_are_those_of_the_range(client, producer):
    for value in (b'0', b'2', b'4'):
        producer.produce(producer.batch(value))
        producer.end(committed=value == b'2')
    whole = client.fetch(isolation_level=COMMITTED)
    assert [entry.first_offset for entry in whole.aborted_transactions] == [0, 4]
    tail = client.fetch(isolation_level=COMMITTED, offset=4)
    assert [entry.first_offset for entry in tail.aborted_transactions] == [4]


def test_two_producers_on_a_partition_are_distinguished(client, producer, node):
    other = TransactionalClient(node, 'other')
    producer.produce(producer.batch(b'mine'))
    other.produce(other.batch(b'theirs'))
    producer.end(committed=False)
    assert client.fetch(isolation_level=COMMITTED).last_stable_offset == 1
    other.end(committed=True)
    (aborted,) = client.fetch(isolation_level=COMMITTED).aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (producer.producer_id, 0)


# -- waits over several partitions


def begin_fetch_of(client, *places, version=12, **options):
    """Begin one fetch of all `places`, each a (topic, partition, offset). The fetch waits for records for up to a
    minute."""
    topics = [
        {'topic': topic, 'partitions': [{'partition': index, 'fetch_offset': offset, 'partition_max_bytes': 1 << 20}]}
        for topic, index, offset in places
    ]
    return client.begin('Fetch', version, max_wait_ms=60_000, min_bytes=1, max_bytes=1 << 20, topics=topics, **options)


def found(answer):
    return {
        (topic.topic, partition.partition_index): (partition.error_code, values_of(partition.records))
        for topic in answer.responses
        for partition in topic.partitions
    }


@pytest.mark.parametrize('unknown', [('nothing', 0), ('held', 9)])
def test_a_partition_that_does_not_exist_does_not_end_the_wait_for_another(client, unknown):
    client.create_topic('held')
    waiting = begin_fetch_of(client, (*unknown, 0), ('held', 0, 0))
    assert not waiting.is_answered
    fill(client, b'new', topic='held')
    client.broker.turn()
    assert found(waiting.answer) == {
        unknown: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []), ('held', 0): (0, [b'new'])}


def test_a_fetch_of_nothing_that_exists_is_answered_at_once(client):
    client.create_topic('held')
    assert begin_fetch_of(client, ('nothing', 0, 0), ('held', 9, 0)).is_answered


def test_an_offset_outside_the_log_ends_the_wait_at_once(client):
    client.create_topic('held', partitions=2)
    assert begin_fetch_of(client, ('nothing', 0, 0), ('held', 0, 0), ('held', 1, 7)).is_answered


def test_a_topic_that_is_deleted_ends_the_wait_and_does_not_end_the_next_one(client):
    client.create_topic('held')
    client.create_topic('others')
    waiting = begin_fetch_of(client, ('held', 0, 0), ('others', 0, 0))
    client.ask('DeleteTopics', topics=[{'name': 'held'}], timeout_ms=1000)
    client.broker.turn()
    assert found(waiting.answer)['held', 0][0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not begin_fetch_of(client, ('held', 0, 0), ('others', 0, 0)).is_answered


def test_a_session_waits_for_its_partitions_that_exist(client):
    client.create_topic('held')
    fill(client, b'a', topic='held')
    places = (('nothing', 0, 0), ('held', 0, 0))
    first = begin_fetch_of(client, *places, session_id=0, session_epoch=0).answer
    session = {'session_id': first.session_id}
    waiting = begin_fetch_of(client, ('held', 0, 1), session_epoch=1, **session)
    assert not waiting.is_answered
    fill(client, b'b', topic='held')
    client.broker.turn()
    assert found(waiting.answer) == {
        ('nothing', 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []), ('held', 0): (0, [b'b'])}
