"""ListOffsets and OffsetForLeaderEpoch: offsets by kind, by time and by leader epoch."""

import pytest

from kbroker.base.errors import ErrorCode

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
COMMITTED = 1


def found(answer):
    assert answer.error_code == 0
    return answer.offset


@pytest.mark.parametrize(
    ('timestamp', 'since', 'offset'),
    [
        (LATEST, 1, 3),
        (EARLIEST, 1, 0),
        (MAX_TIMESTAMP, 7, 1),
        (EARLIEST_LOCAL, 8, 0),
        (LATEST_TIERED, 9, -1),
        (EARLIEST_PENDING_UPLOAD, 11, -1),
    ],
)
def test_a_special_timestamp_is_known_from_its_version_on(client, timestamp, since, offset):
    client.produce(client.batch(*((client.now_ms + ms, b'k', b'v') for ms in (0, 9, 5))))
    for version in range(1, 12):
        answer = client.list_offset(timestamp, version)
        if version < since:
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        else:
            assert found(answer) == offset


@pytest.mark.parametrize('topic', ['orders', 'absent'])
@pytest.mark.parametrize('timestamp', [-7, -100])
def test_other_negative_timestamps_are_not_known(client, timestamp, topic):
    """As in Apache Kafka, a topic that does not exist gets the same answer as an existing one. kbroker once answered
    that the topic is unknown."""
    assert client.list_offset(timestamp, 11, topic=topic).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_time_finds_the_first_record_at_or_after_it(client):
    now = client.now_ms
    for ms in (10, 30, 20, 40):
        client.produce(client.batch((now + ms, b'k', b'v')))
    assert [client.list_offset(now + ms).offset for ms in (0, 10, 11, 30, 31, 40, 41)] == [0, 0, 1, 1, 3, 3, -1]
    answer = client.list_offset(now + 11)
    assert (answer.timestamp, answer.leader_epoch) == (now + 30, 0)


def test_committed_readers_find_nothing_behind_an_open_transaction(client, producer):
    client.produce(client.batch())
    client.broker.clock.advance(10)
    producer.produce(producer.batch())
    assert found(client.list_offset(LATEST, isolation_level=COMMITTED)) == 1 != found(client.list_offset(LATEST))
    assert found(client.list_offset(client.now_ms, isolation_level=COMMITTED)) == -1
    assert found(client.list_offset(client.now_ms)) == 1
    producer.end(committed=True)
    assert found(client.list_offset(client.now_ms, isolation_level=COMMITTED)) == 1


def test_an_empty_partition_has_the_epoch_in_force(client):
    """Apache Kafka returns epoch 0 for the start of an empty log. kbroker once returned -1."""
    assert client.list_offset(EARLIEST).leader_epoch == 0
    client.produce(client.batch())
    client.ask(
        'DeleteRecords',
        timeout_ms=1000,
        topics=[{'name': 'orders', 'partitions': [{'partition_index': 0, 'offset': -1}]}],
    )
    assert (client.list_offset(EARLIEST).offset, client.list_offset(EARLIEST).leader_epoch) == (1, 0)


def test_the_disk_decides_what_is_latest(client, disk):
    disk.is_held = True
    client.begin_produce(client.batch())
    assert found(client.list_offset(LATEST)) == 0


def test_a_partition_named_twice_is_answered_once(client):
    """Apache Kafka also answers once. kbroker once had an answer for each mention."""
    partitions = [{'partition_index': 0, 'timestamp': timestamp} for timestamp in (LATEST, EARLIEST)]
    answer = client.ask('ListOffsets', 9, replica_id=-1, topics=[{'name': 'orders', 'partitions': partitions}])
    (partition,) = answer.topics[0].partitions
    assert partition.error_code == ErrorCode.INVALID_REQUEST


def test_what_does_not_exist_is_said_so(client):
    assert client.list_offset(LATEST, topic='absent').error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize('version', [2, 3, 4])
def test_a_leader_epoch_ends_where_the_next_begins(client, version):
    partition = client.broker.topics.get('orders', 0)
    client.produce(client.batch())
    partition.leader_epoch = 4
    client.produce(client.batch(b'a', b'b'))
    partition.leader_epoch = 6

    def end(leader_epoch, current=-1, index=0):
        answer = client.ask(
            'OffsetForLeaderEpoch',
            version,
            topics=[
                {
                    'topic': 'orders',
                    'partitions': [{'partition': index, 'leader_epoch': leader_epoch, 'current_leader_epoch': current}],
                }
            ],
        )
        (result,) = answer.topics[0].partitions
        return result.error_code or (result.leader_epoch, result.end_offset)

    assert [end(epoch) for epoch in (0, 3, 4, 6, 7, -1)] == [(0, 1), (0, 1), (4, 3), (6, 3), (-1, -1), (-1, -1)]
    assert end(0, current=6) == (0, 1)
    assert end(0, current=5) == ErrorCode.FENCED_LEADER_EPOCH
    assert end(0, current=-2) == ErrorCode.FENCED_LEADER_EPOCH
    assert end(0, current=7) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert end(0, index=3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
