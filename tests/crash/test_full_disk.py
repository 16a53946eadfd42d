"""A full or failing disk: requests get errors, and the next start finds everything that was acknowledged.

Covers promises 1 and 2 of docs/design.md.
"""
from __future__ import annotations

import errno
import logging
import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest
from support.brokers.broker_process import BrokerProcess
from support.brokers.in_process_broker import InProcessBroker
from support.clients.librdkafka import read_to_the_end
from support.clients.promises import GROUP, TOPIC, TRANSACTIONAL_ID, Client, Promises, findings_in
from support.disk.faulty_file_systems import FailingFileSystem

from kbroker.base.errors import ErrorCode
from kbroker.protocol.messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    EndTxnRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    ProduceRequest,
)
from kbroker.record.batch import encode_batch

A, B = (TOPIC, 0), (TOPIC, 1)
SETTINGS = {'offsets.topic.num.partitions': '1', 'transaction.state.log.num.partitions': '1',
            'log.index.size.max.bytes': '4096'}
FULL, BROKEN = errno.ENOSPC, errno.EIO


class FaultyDisk(FailingFileSystem):
    """A disk on which the changes that `break_on` chooses fail. It records the failures."""

    def __init__(self) -> None:
        super().__init__(partial_bytes=20)
        self.failures: list[str] = []

    def break_on(self, operation: str, path_end: str, code: int) -> None:
        def fail(found: str, path: str) -> int | None:
            if found != operation or not path.endswith(path_end):
                return None
            self.failures.append(path)
            return code

        self.fail = fail


class FaultyDiskCase:
    """A broker whose disk will fail. It has an open transaction and several ended ones."""

    def __init__(self, directory: pathlib.Path, settings: dict[str, str]):
        self.directory = directory
        self.settings = SETTINGS | settings
        self.disk = FaultyDisk()
        self.broker = InProcessBroker(directory, self.settings, fs=self.disk)
        self.promises = Promises()
        self.client = Client(self.broker, self.promises)

    def prepare(self) -> None:
        client = self.client
        client.create_topic(TOPIC, 2)
        client.find_coordinators()
        client.init_idempotent()
        client.produce({A: ['plain 0'], B: ['plain 1']})
        client.commit_offsets({A: 1})
        client.init_transactions()
        for committed in (True, False):
            client.begin()
            client.produce_in_transaction({A: [f'a {committed}'], B: [f'b {committed}']})
            client.end(committed)
        client.begin()
        client.produce_in_transaction({A: ['open']})

    def produce(self, partition: int = 0, acks: int = -1) -> ErrorCode:
        request = produce_request(partition, acks)
        self.promises.sent[TOPIC, partition].add('doubtful')
        answer = self.broker.ask(request, 12)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    def codes(self) -> dict[str, ErrorCode]:
        """Send each kind of request to the broker with its offline directory. Return {kind of request: error code}."""
        broker, producer = self.broker, self.promises.producer
        assert producer is not None
        fetch = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchRequest.FetchTopic(topic=TOPIC, partitions=[
            FetchRequest.FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1000)])])
        offsets = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=[
            ListOffsetsRequest.ListOffsetsPartition(partition_index=1, timestamp=-1)])])
        commit, end = commit_request(), end_request(producer)
        create = CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(
            name='another', num_partitions=1, replication_factor=1)], timeout_ms=1000)
        delete = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=TOPIC)], timeout_ms=1000)
        codes = {
            'Produce': self.produce(1),
            'Fetch': broker.ask(fetch, 12).responses[0].partitions[0].error_code,
            'ListOffsets': broker.ask(offsets, 9).topics[0].partitions[0].error_code,
            'OffsetCommit': broker.ask(commit, 9).topics[0].partitions[0].error_code,
            'EndTxn': broker.ask(end, 5).error_code,
            'InitProducerId': broker.ask(InitProducerIdRequest(
                transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=1000), 5).error_code,
            'FindCoordinator': broker.ask(
                FindCoordinatorRequest(coordinator_keys=[GROUP]), 4).coordinators[0].error_code,
            'CreateTopics': broker.ask(create, 7).topics[0].error_code,
            'DeleteTopics': broker.ask(delete, 6).responses[0].error_code,
            'DescribeLogDirs': broker.ask(DescribeLogDirsRequest(topics=None), 4).results[0].error_code,
            'Metadata': broker.ask(MetadataRequest(topics=None), 12).topics[0].partitions[0].error_code,
            'DescribeTopicPartitions': broker.ask(DescribeTopicPartitionsRequest(
                topics=[], response_partition_limit=100, cursor=None), 0).topics[0].partitions[0].error_code,
            'DescribeCluster': broker.ask(DescribeClusterRequest(), 1).error_code,
        }
        return {name: ErrorCode(code) for name, code in codes.items()}


OFFLINE_CODES = {
    'Produce': ErrorCode.KAFKA_STORAGE_ERROR,
    'Fetch': ErrorCode.KAFKA_STORAGE_ERROR,
    'ListOffsets': ErrorCode.KAFKA_STORAGE_ERROR,
    'OffsetCommit': ErrorCode.NOT_COORDINATOR,
    'EndTxn': ErrorCode.NOT_COORDINATOR,
    'InitProducerId': ErrorCode.NOT_COORDINATOR,
    'FindCoordinator': ErrorCode.COORDINATOR_NOT_AVAILABLE,
    'CreateTopics': ErrorCode.KAFKA_STORAGE_ERROR,
    'DeleteTopics': ErrorCode.KAFKA_STORAGE_ERROR,
    'DescribeLogDirs': ErrorCode.KAFKA_STORAGE_ERROR,
    'Metadata': ErrorCode.LEADER_NOT_AVAILABLE,
    'DescribeTopicPartitions': ErrorCode.LEADER_NOT_AVAILABLE,
    'DescribeCluster': ErrorCode.NONE,
}


def produce_request(partition: int, acks: int = -1) -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData(
        index=partition, records=bytes(encode_batch([(1_700_000_000_000, None, b'doubtful')])))
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=[
        ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])])


def commit_request() -> OffsetCommitRequest:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=2)
    return OffsetCommitRequest(group_id=GROUP, topics=[OffsetCommitRequest.OffsetCommitRequestTopic(
        name=TOPIC, partitions=[partition])])


def end_request(producer: tuple[int, int]) -> EndTxnRequest:
    return EndTxnRequest(transactional_id=TRANSACTIONAL_ID, producer_id=producer[0], producer_epoch=producer[1],
                         committed=True)


@pytest.fixture(params=['disk', 'page-cache'])
def case(request, tmp_path) -> Iterator[FaultyDiskCase]:
    case = FaultyDiskCase(tmp_path, {'kbroker.durability': request.param})
    with case.broker:
        case.prepare()
        yield case


def check_after_restart(case: FaultyDiskCase) -> None:
    """Restart the broker with enough space. Check that all acknowledged records are present, and that the open
    transaction is still open.
    """
    with InProcessBroker(case.directory, case.settings) as broker:
        client = Client(broker, case.promises)
        client.pass_time()
        client.check_topics()
        client.check_records()
        client.produce_in_transaction({B: ['went on']})
        client.end(True)
        client.pass_time()
        client.check_transactions()
    assert findings_in(str(case.directory)) == []


def check_offline(case: FaultyDiskCase, caplog: pytest.LogCaptureFixture) -> None:
    codes = case.codes()
    assert codes == OFFLINE_CODES
    for _ in range(200):
        case.client.pass_time()
    lines = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(lines) == 1 and lines[0].levelno == logging.CRITICAL, caplog.text
    assert str(case.directory) in lines[0].getMessage() and 'offline until the next start' in lines[0].getMessage()
    case.disk.fail = lambda operation, path: None
    case.broker.close()
    case.broker._is_open = False
    assert not os.path.exists(case.directory / '.kafka_cleanshutdown')


def test_a_full_disk_takes_the_directory_offline_and_loses_nothing(case, caplog):
    case.disk.break_on('write', 'orders-0/00000000000000000000.log', FULL)
    assert case.produce(0) is ErrorCode.KAFKA_STORAGE_ERROR
    assert case.produce(0) is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(case.disk.failures) == 1
    check_offline(case, caplog)
    check_after_restart(case)


@pytest.mark.parametrize('operation, path_end', [
    ('write', '__transaction_state-0/00000000000000000000.log'),
    ('write', '__consumer_offsets-0/00000000000000000000.log')])
def test_a_coordinator_that_cannot_write_takes_the_directory_offline(case, caplog, operation, path_end):
    case.disk.break_on(operation, path_end, FULL)
    client = case.client
    producer = case.promises.producer
    commit, end = commit_request(), end_request(producer)
    if 'offsets' in path_end:
        assert client.broker.ask(commit, 9).topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    else:
        assert client.broker.ask(end, 5).error_code == ErrorCode.NOT_COORDINATOR
    check_offline(case, caplog)
    check_after_restart(case)


@pytest.mark.parametrize('operation', ['mkdir', 'write'])
def test_a_topic_that_finds_no_room_takes_the_directory_offline(case, caplog, operation):
    path_end = {'mkdir': 'more-0', 'write': '__cluster_metadata-0/00000000000000000000.log'}[operation]
    case.disk.break_on(operation, path_end, FULL)
    case.promises.doubtful_topics.add('more')
    create = CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(
        name='more', num_partitions=1, replication_factor=1)], timeout_ms=1000)
    assert case.broker.ask(create, 7).topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    check_offline(case, caplog)
    check_after_restart(case)


def test_a_checkpoint_that_cannot_be_written_takes_the_directory_offline(case, caplog):
    case.disk.break_on('write', 'recovery-point-offset-checkpoint.tmp', FULL)
    case.broker.clock.advance(60_000)
    case.broker.turn()
    check_offline(case, caplog)
    check_after_restart(case)


def test_a_failed_sync_is_not_retried_and_all_its_waiters_are_notified(tmp_path, caplog):
    """The failing flush belongs to two partitions, and a consumer waits for its end."""
    case = FaultyDiskCase(tmp_path, {})
    with case.broker:
        case.prepare()
        case.disk.break_on('sync', 'orders-0/00000000000000000000.log', BROKEN)
        fetch = FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=[FetchRequest.FetchTopic(topic=TOPIC, partitions=[
            FetchRequest.FetchPartition(partition=1, fetch_offset=case.broker.topics.get(TOPIC, 1).high_watermark,
                                        partition_max_bytes=1000)])])
        parked = case.broker.begin(fetch, 12)
        assert not parked.replies
        request = produce_request(0)
        request.topic_data += produce_request(1).topic_data
        for partition in (0, 1):
            case.promises.sent[TOPIC, partition].add('doubtful')
        answer = case.broker.ask(request, 12)
        codes = [topic.partition_responses[0].error_code for topic in answer.responses]
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        answer = case.broker.answer_to(parked, fetch, 12)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        check_offline(case, caplog)
        assert len(case.disk.failures) == 1
        check_after_restart(case)


def test_a_topic_deleted_before_its_flush_does_not_stop_the_loop(tmp_path):
    """In an earlier version, a Produce and a deletion of its topic in one tick made the flush use the files of a closed
    log.
    """
    with InProcessBroker(tmp_path, SETTINGS) as broker:
        client = Client(broker, Promises())
        client.create_topic(TOPIC, 2)
        broker.topics.get(TOPIC, 0).append_batch(bytearray(encode_batch([(1, None, b'v')])))
        broker.long_work.start(broker.topics.delete_many([broker.topics.topic(TOPIC)]))
        broker.turn()
        client.create_topic(TOPIC, 1)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[pathlib.Path]:
    """A file system of 4 MB."""
    directory = tmp_path / 'disk'
    directory.mkdir()
    mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', str(directory)], capture_output=True,
                             text=True)
    if mounted.returncode != 0:
        pytest.skip(f'a tmpfs cannot be mounted here: {mounted.stderr.strip()}')
    try:
        yield directory
    finally:
        subprocess.run(['umount', '-l', str(directory)], check=True)


def test_a_disk_that_fills_up_and_gets_room_again(small_disk):
    import confluent_kafka
    filler = small_disk / 'filler'
    filler.write_bytes(bytes(1 << 20))
    settings = SETTINGS | {'offsets.topic.num.partitions': '1'}
    acknowledged, errors = [], []

    def delivered(error, message):
        if error is None:
            acknowledged.append(message.value())
        else:
            errors.append(error.code())

    with BrokerProcess(small_disk / 'data', settings) as broker:
        producer = confluent_kafka.Producer({
            'bootstrap.servers': broker.address, 'retries': 0, 'linger.ms': 0, 'message.timeout.ms': 20_000,
            'allow.auto.create.topics': True})
        number = 0
        while not errors and number < 2000:
            producer.produce(TOPIC, b'%06d' % number + b'x' * 10_000, partition=0, on_delivery=delivered)
            producer.poll(0.01)
            number += 1
        producer.purge()  # records that wait for a leader would wait until their timeout
        producer.flush(120)
        assert acknowledged and errors
        assert broker.is_running
        broker.stop()
        lines = [line for line in broker.lines if 'offline until the next start' in line]
        assert len(lines) == 1 and 'No space left on device' in lines[0]
        filler.unlink()
        broker.start()
        found = [message.value() for message in read_to_the_end(broker.address, [(TOPIC, 0)])]
        assert set(acknowledged) <= set(found) and len(found) == len(set(found))
        broker.stop()
