"""The rows of a commit of many offsets are built in parts, and appended as one batch."""
import pytest
from api_client import TransactionalClient
from support.brokers.in_process_broker import frame_of
from support.messages.message_builder import build
from support.worlds.stepwise_work import StepwiseWork

from kbroker.base.errors import ErrorCode

OFFSETS = 1_600
PART = 200
"""The number of offsets whose rows are built in one part."""


@pytest.fixture
def wide(producer):
    """Return a producer with a topic of many partitions. The test steps the long work of its broker."""
    producer.create_topic('wide', OFFSETS)
    producer.ask('FindCoordinator', coordinator_keys=['group'])
    producer.broker.long_work = StepwiseWork(producer.broker.timers)
    return producer


def begin_commit(client, api):
    """Send a commit of all partitions, and return its connection and request."""
    topics = [{'topic_id': client.broker.topics.topic('wide').topic_id, 'partitions': [
        {'partition_index': index, 'committed_offset': index} for index in range(OFFSETS)]}]
    if api == 'OffsetCommit':
        request = build('OffsetCommitRequest', group_id='group', generation_id_or_member_epoch=-1, topics=topics)
    else:
        request = build('TxnOffsetCommitRequest', group_id='group', transactional_id=client.transactional_id,
                        producer_id=client.producer_id, producer_epoch=client.producer_epoch, topics=topics)
    connection = client.broker.connect()
    client.broker.serve(connection, frame_of(request, VERSIONS[api]))
    return connection, request


VERSIONS = {'OffsetCommit': 10, 'TxnOffsetCommit': 6}


def log_end_offset(client):
    return client.broker.topics.topic('__consumer_offsets').partitions[0].log_end_offset


def run(client, connection):
    """Run the long work part by part until the broker answers the commit. Return the log end offset of the group's log
    after each part."""
    ends = [log_end_offset(client)]
    for _ in range(1000):
        if connection.replies:
            return ends
        if len(client.broker.long_work):
            client.broker.long_work.step()
        else:
            client.broker.turn()
        ends.append(log_end_offset(client))
    raise AssertionError('the commit is not answered')


@pytest.mark.parametrize('api', VERSIONS)
def test_many_offsets_are_made_in_parts_and_appended_at_once(wide, api):
    before = log_end_offset(wide)
    connection, request = begin_commit(wide, api)
    ends = run(wide, connection)
    assert set(ends) == {before, before + OFFSETS}
    assert ends.count(before) > OFFSETS // PART
    answer = wide.broker.answer_to(connection, request, VERSIONS[api])
    assert {partition.error_code for topic in answer.topics for partition in topic.partitions} == {0}


def test_a_commit_whose_producer_is_fenced_while_its_rows_are_made_leaves_no_row(wide):
    before = log_end_offset(wide)
    connection, request = begin_commit(wide, 'TxnOffsetCommit')
    wide.broker.long_work.step()
    successor = TransactionalClient(wide.broker, wide.transactional_id)
    assert successor.producer_epoch > wide.producer_epoch
    assert set(run(wide, connection)) == {before}
    answer = wide.broker.answer_to(connection, request, VERSIONS['TxnOffsetCommit'])
    assert {partition.error_code for partition in answer.topics[0].partitions} == {ErrorCode.INVALID_PRODUCER_EPOCH}


def test_a_second_commit_of_a_transaction_is_appended_at_once_too(wide):
    """The transaction is open in the partition, so the commit needs no verification."""
    for _ in range(2):
        before = log_end_offset(wide)
        connection, _ = begin_commit(wide, 'TxnOffsetCommit')
        assert set(run(wide, connection)) == {before, before + OFFSETS}
    assert wide.begin_end(committed=True).is_answered


def test_offsets_with_metadata_that_is_too_long_are_refused_one_by_one(wide):
    topics = [{'name': 'wide', 'partitions': [
        {'partition_index': index, 'committed_offset': 1, 'committed_metadata': 'm' * (5_000 if index == 7 else 1)}
        for index in range(OFFSETS)]}]
    request = build('OffsetCommitRequest', group_id='group', generation_id_or_member_epoch=-1, topics=topics)
    connection, before = wide.broker.connect(), log_end_offset(wide)
    wide.broker.serve(connection, frame_of(request, 8))
    assert set(run(wide, connection)) == {before, before + OFFSETS - 1}
    answer = wide.broker.answer_to(connection, request, 8)
    assert [partition.partition_index for partition in answer.topics[0].partitions if partition.error_code] == [7]
