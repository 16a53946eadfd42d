"""A reader sees each record that was acknowledged before its request, and no record that is not on the disk.

With acks=1 the broker answers a producer before the sync. In Apache Kafka, a client that then asks for the latest
offset, or deletes all records, finds the record. In kbroker, such a request therefore waits for the sync. When it did
not wait yet, readers got an older offset for 2 to 6 ms in each of 30 tries, and DeleteRecords returned
OFFSET_OUT_OF_RANGE.

Covers promise 3 of docs/design.md.
"""

import pytest
from api_client import values_of
from fetch_session import Session
from share_client import ShareClient

from kbroker.base.errors import ErrorCode

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
GROUP = 32


@pytest.fixture
def held(client, disk):
    """Write one durable record at offset 0. Return the disk, which holds all later syncs."""
    client.produce(client.batch(b'durable'))
    disk.is_held = True
    return disk


def begin_list(client, timestamp=LATEST, isolation_level=0, version=11, timeout_ms=0):
    partitions = [{'partition_index': 0, 'timestamp': timestamp}]
    return client.begin(
        'ListOffsets',
        version,
        replica_id=-1,
        isolation_level=isolation_level,
        timeout_ms=timeout_ms,
        topics=[{'name': 'orders', 'partitions': partitions}],
    )


def begin_delete(client, offset, timeout_ms=1000):
    partitions = [{'partition_index': 0, 'offset': offset}]
    return client.begin('DeleteRecords', timeout_ms=timeout_ms, topics=[{'name': 'orders', 'partitions': partitions}])


def answer_of(parked):
    """Return the answer for the one partition of the request. Fail if the answer has not arrived."""
    (partition,) = parked.answer.topics[0].partitions
    return partition


def after_the_sync(client, disk, parked):
    """Check that a request waits for the disk. Let the disk finish its syncs, and return the request."""
    client.settle()
    assert not parked.is_answered
    disk.release()
    client.settle()
    return parked


def fetched(parked):
    return values_of(parked.answer.responses[0].partitions[0].records)


# ---- requests that wait for the disk


@pytest.mark.parametrize('isolation_level', [0, 1])
@pytest.mark.parametrize('acks', [1, 0])
def test_the_latest_offset_counts_what_was_acknowledged_once_the_disk_has_it(client, held, acks, isolation_level):
    client.begin_produce(client.batch(), acks=acks)
    asked = begin_list(client, isolation_level=isolation_level)
    assert answer_of(after_the_sync(client, held, asked)).offset == 2


def test_the_latest_offset_does_not_wait_for_what_is_not_acknowledged(client, held):
    client.begin_produce(client.batch(), acks=1)
    held.finish()
    producing = client.begin_produce(client.batch())
    assert answer_of(begin_list(client)).offset == 2
    assert not producing.is_answered


def test_a_batch_that_is_sent_again_is_acknowledged_again(client, held):
    batch = client.batch(producer_id=7, producer_epoch=0, base_sequence=0)
    first = client.begin_produce(batch)
    assert not first.is_answered
    client.produce(batch, acks=1)
    asked = begin_list(client)
    assert answer_of(after_the_sync(client, held, asked)).offset == 2


@pytest.mark.parametrize('offset', [-1, 2])
def test_records_that_were_acknowledged_are_deleted(client, held, offset):
    client.begin_produce(client.batch(), acks=1)
    asked = begin_delete(client, offset)
    answer = answer_of(after_the_sync(client, held, asked))
    assert (answer.error_code, answer.low_watermark) == (0, 2)


@pytest.mark.parametrize('acks', [1, -1])
def test_a_time_finds_a_record_once_the_disk_has_it(client, held, acks):
    client.broker.clock.advance(10)
    client.begin_produce(client.batch(), acks=acks)
    asked = begin_list(client, client.now_ms)
    assert answer_of(after_the_sync(client, held, asked)).offset == 1


def test_the_greatest_timestamp_is_found_while_producers_write(client, held):
    """The newest record has the greatest timestamp, and while producers write, a sync is nearly always in progress. The
    broker once never found this record."""
    client.broker.clock.advance(10)
    client.begin_produce(client.batch())
    asked = begin_list(client, MAX_TIMESTAMP)
    client.settle()
    assert not asked.is_answered
    held.finish()
    client.settle()
    assert answer_of(asked).offset == 1


# ---- fetches


@pytest.mark.parametrize(('max_wait_ms', 'min_bytes'), [(0, 1), (0, 0), (500, 0), (1, 1)])
def test_a_fetch_without_records_waits_for_those_that_were_acknowledged(client, held, max_wait_ms, min_bytes):
    client.begin_produce(client.batch(b'acknowledged'), acks=1)
    fetching = client.begin_fetch(offset=1, max_wait_ms=max_wait_ms, min_bytes=min_bytes)
    client.broker.clock.advance(max_wait_ms)
    assert fetched(after_the_sync(client, held, fetching)) == [b'acknowledged']


def test_a_fetch_does_not_wait_for_what_is_not_acknowledged(client, held):
    client.begin_produce(client.batch(), acks=1)
    held.finish()
    client.begin_produce(client.batch())
    assert values_of(client.fetch(offset=2).records) == []
    assert len(values_of(client.fetch(offset=1).records)) == 1


def test_a_fetch_with_records_does_not_wait(client, held):
    client.begin_produce(client.batch(), acks=1)
    assert values_of(client.fetch().records) == [b'durable']


def test_a_committed_fetch_does_not_wait_behind_an_open_transaction(client, producer, disk):
    client.produce(client.batch(b'durable'))
    producer.produce(producer.batch())
    disk.is_held = True
    client.begin_produce(client.batch(), acks=1)
    assert values_of(client.fetch(offset=1, isolation_level=1).records) == []


def test_a_session_asks_a_quiet_partition_again_after_an_acknowledgement(client, held):
    """The partition's high watermark has not moved, so without the acknowledgement the session would skip it."""
    session = Session(client, 'orders')
    assert session.ask({0: 1}) == {0: []}
    assert session.ask() == {}
    client.begin_produce(client.batch(b'acknowledged'), acks=1)
    assert fetched(after_the_sync(client, held, session.begin())) == [b'acknowledged']


def test_an_acknowledgement_does_not_wake_a_session_that_waits(client, held):
    session = Session(client, 'orders')
    session.ask({0: 1})
    waiting = session.begin(max_wait_ms=500)
    client.begin_produce(client.batch(b'acknowledged'), acks=1)
    assert fetched(after_the_sync(client, held, waiting)) == [b'acknowledged']


# ---- share groups


@pytest.mark.parametrize('reset', ['latest', 'by_duration:PT1H'])
def test_a_share_group_begins_behind_what_was_acknowledged(node, client, disk, reset):
    client.produce(client.batch(b'durable'))
    node.clock.advance(2 * 3_600_000)
    member = ShareClient(node, node.topics.topic('orders').topic_id)
    member.initialize(start_offset=-1)
    client.alter(GROUP, 'g1', share_auto_offset_reset=reset)
    disk.is_held = True
    old_ms = client.now_ms - 3_600_001
    client.begin_produce(batch_at(client, old_ms), acks=1)
    fetching = member.begin_fetch_shares()
    assert not fetching.is_answered
    disk.release()
    member.settle()
    assert fetching.answer.error_code == 0
    assert node.share_partitions.all()[0].records.start_offset == 2


def batch_at(client, timestamp_ms):
    return client.batch((timestamp_ms, None, b'value'))


def test_a_share_fetch_without_records_waits_for_those_that_were_acknowledged(client, member, disk):
    assert member.acquired() == []
    disk.is_held = True
    client.begin_produce(client.batch(), acks=1)
    fetching = member.begin_fetch_shares()
    assert not fetching.is_answered
    disk.release()
    member.settle()
    (acquired,) = fetching.answer.responses[0].partitions[0].acquired_records
    assert acquired.first_offset == 0


def test_the_lag_of_a_share_group_counts_what_was_acknowledged(client, member, disk):
    member.acquired()
    disk.is_held = True
    client.begin_produce(client.batch(), acks=1)
    asked = client.begin('DescribeShareGroupOffsets', groups=[
        {'group_id': 'g1', 'topics': [{'topic_name': 'orders', 'partitions': [0]}]}])
    assert after_the_sync(client, disk, asked).answer.groups[0].topics[0].partitions[0].lag == 1


# ---- requests that do not wait: their answers promise nothing about the disk


def test_descriptions_of_the_log_have_its_end_at_once(client, held):
    client.begin_produce(client.batch(), acks=1)
    answer = client.ask('OffsetForLeaderEpoch', topics=[{'topic': 'orders', 'partitions': [
        {'partition': 0, 'leader_epoch': 0, 'current_leader_epoch': -1}]}])
    assert answer.topics[0].partitions[0].end_offset == 2
    assert answer_of(begin_list(client, EARLIEST)).offset == 0


def test_a_producer_is_described_at_once(client, held):
    client.begin_produce(client.batch(producer_id=7, producer_epoch=0, base_sequence=0), acks=1)
    answer = client.ask('DescribeProducers', topics=[{'name': 'orders', 'partition_indexes': [0]}])
    (described,) = answer.topics[0].partitions[0].active_producers
    assert (described.producer_id, described.last_sequence) == (7, 0)


# ---- a disk that never finishes the sync


@pytest.mark.parametrize('begin', [begin_list, lambda client: begin_delete(client, -1)])
def test_a_failed_sync_ends_the_wait(client, held, begin):
    client.begin_produce(client.batch(), acks=1)
    asked = begin(client)
    held.finish(OSError(5, 'Input/output error'))
    client.settle()
    assert answer_of(asked).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_deleted_topic_ends_the_wait(client, held):
    client.begin_produce(client.batch(), acks=1)
    asked = begin_list(client)
    client.broker.topics.get('orders', 0).mark_deleted()
    client.settle()
    assert answer_of(asked).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(('begin', 'time_ms'), [
    (lambda client: begin_list(client, timeout_ms=400), 400),
    (lambda client: begin_list(client, version=9), 30_000),
    (lambda client: begin_delete(client, -1, timeout_ms=400), 400)])
def test_a_wait_ends_with_the_time_of_the_request(client, held, begin, time_ms):
    client.begin_produce(client.batch(), acks=1)
    asked = begin(client)
    client.broker.clock.advance(time_ms - 1)
    client.settle()
    assert not asked.is_answered
    client.broker.clock.advance(101)
    client.settle()
    assert answer_of(asked).error_code == ErrorCode.REQUEST_TIMED_OUT
