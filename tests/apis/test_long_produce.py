"""Produce requests that take long: batches that a worker validates, many partitions, a disk that does not finish a
sync."""
import random

import pytest
from api_client import values_of
from support.brokers.in_process_broker import frame_of, read_answer
from support.clients.socket_peers import LateWorker
from support.messages.message_builder import build

from kbroker.base.errors import ErrorCode
from kbroker.record.compression import Compression

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
LONG = bytes(300 * 1024)
IDEMPOTENT = {'producer_id': 4000, 'producer_epoch': 0}


@pytest.fixture
def worker(node):
    worker = LateWorker()
    node.validate = worker.submit
    return worker


def code_of(parked):
    return parked.answer.responses[0].partition_responses[0].error_code


def code_after(worker, node, parked):
    """Let the worker validate the batch, and return the error code of the answer."""
    worker.work()
    node.turn()
    return code_of(parked)


def produce_to(client, partitions, records, version=12, **fields):
    """Produce the same batch to each (topic, partition) of `partitions`, in one request. Return [(topic, [answer for a
    partition])]."""
    topic_data = []
    for topic, partition in partitions:
        if not topic_data or topic_data[-1]['name'] != topic:
            topic_data.append({'name': topic, 'partition_data': []})
        topic_data[-1]['partition_data'].append({'index': partition, 'records': records})
    answer = client.ask('Produce', version, **{'acks': -1, 'timeout_ms': 1000, 'topic_data': topic_data, **fields})
    return [(topic.name, topic.partition_responses) for topic in answer.responses]


# -- batches that the loop validates, and batches that a worker validates


@pytest.mark.parametrize('codec', CODECS)
def test_a_batch_that_expands_far_is_validated_by_a_worker(node, client, worker, codec):
    assert client.produce(client.batch(bytes(200 * 1024), compression=codec)).error_code == 0, 'on the loop'
    assert worker.jobs == []
    parked = client.begin_produce(client.batch(LONG, compression=codec))
    assert not parked.is_answered and len(worker.jobs) == 1
    assert client.list_offset(-1).offset == 1, 'nothing is appended before its validation'
    assert code_after(worker, node, parked) == 0
    assert values_of(client.fetch(offset=1).records) == [LONG]


def test_a_long_batch_is_validated_by_a_worker_whatever_it_expands_to(node, client, worker):
    noise = random.Random(1).randbytes(3_000_000)
    client.create_topic('large', max_message_bytes='4000000')
    parked = [client.begin_produce(client.batch(noise[:size], compression=codec), topic='large')
              for size, codec in ((100_000, Compression.LZ4), (3_000_000, Compression.NONE))]
    assert len(worker.jobs) == 2 and not any(each.is_answered for each in parked)
    worker.work()
    worker.work()
    node.turn()
    assert [code_of(each) for each in parked] == [0, 0]


def test_a_worker_compresses_again(node, client, worker):
    client.create_topic('packed', compression_type='gzip')
    assert client.produce(client.batch(b'x' * 1000, compression=Compression.ZSTD), topic='packed').error_code == 0
    parked = [client.begin_produce(batch, topic='packed')
              for batch in (client.batch(b'x' * 20_000), client.batch(b'x' * 20_000, compression=Compression.ZSTD))]
    assert len(worker.jobs) == 2
    worker.work()
    worker.work()
    node.turn()
    assert [code_of(each) for each in parked] == [0, 0]
    assert values_of(client.fetch(topic='packed', offset=1).records) == [b'x' * 20_000] * 2


def test_a_worker_refuses_what_the_loop_would_refuse(node, client, worker):
    client.create_topic('compacted', cleanup_policy='compact')
    parked = client.begin_produce(client.batch((None, LONG), compression=Compression.ZSTD), topic='compacted')
    worker.work()
    node.turn()
    answer = parked.answer.responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (ErrorCode.INVALID_RECORD, -1, 0)
    assert [error.batch_index for error in answer.record_errors] == [0]


def test_a_batch_above_the_limit_of_its_topic_needs_no_worker(client, worker):
    batch = client.batch(random.Random(1).randbytes(2_000_000), compression=Compression.LZ4)
    assert client.produce(batch).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert worker.jobs == []


def test_the_batches_of_a_request_are_appended_in_order_with_one_job_at_a_time(node, client, worker):
    client.create_topic('wide', 3)
    batches = [client.batch(LONG, compression=Compression.ZSTD), client.batch(b'short'),
               client.batch(LONG, compression=Compression.GZIP)]
    parked = client.begin('Produce', 12, acks=-1, timeout_ms=1000, topic_data=[{'name': 'wide', 'partition_data': [
        {'index': index, 'records': batch} for index, batch in enumerate(batches)]}])
    ends = []
    for _ in range(2):
        assert len(worker.jobs) == 1 and not parked.is_answered
        ends.append([node.topics.get('wide', index).log_end_offset for index in range(3)])
        worker.work()
        node.turn()
    assert ends == [[0, 0, 0], [1, 1, 0]]
    assert [each.error_code for each in parked.answer.responses[0].partition_responses] == [0, 0, 0]


def test_the_batches_of_a_request_share_a_bound_on_what_they_expand_to(client):
    client.create_topic('wide', 13)
    batch = client.batch(*[bytes(9 * 1024 * 1024)] * 10, compression=Compression.ZSTD)
    (_, answers), = produce_to(client, [('wide', index) for index in range(13)], batch)
    assert [answer.error_code for answer in answers] == [0] * 11 + [ErrorCode.MESSAGE_TOO_LARGE] * 2
    assert client.produce(batch, topic='wide', partition=12).error_code == 0, 'alone it is taken'


# -- changes while a worker validates the batch


def begin_long(client, worker, **options):
    parked = client.begin_produce(client.batch(LONG, compression=Compression.ZSTD), **options)
    assert len(worker.jobs) == 1
    return parked


def delete_topic(client):
    answer, = client.ask('DeleteTopics', 6, topics=[{'name': 'orders'}], timeout_ms=1000).responses
    assert answer.error_code == 0


def test_the_topic_is_deleted_meanwhile(node, client, worker):
    parked = begin_long(client, worker)
    delete_topic(client)
    assert code_after(worker, node, parked) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_topic_is_created_again_meanwhile(node, client, worker):
    parked = begin_long(client, worker)
    delete_topic(client)
    client.create_topic()
    assert code_after(worker, node, parked) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.list_offset(-1).offset == 0


def test_the_log_directory_fails_meanwhile(node, client, worker):
    parked = begin_long(client, worker)
    node.logs.fail('a test')
    node.turn()
    assert code_after(worker, node, parked) == ErrorCode.KAFKA_STORAGE_ERROR


def test_the_rules_of_the_topic_change_meanwhile(node, client, worker):
    """The broker appends the batch under the rules that were in force when it arrived."""
    parked = begin_long(client, worker)
    assert client.alter(2, 'orders', max_message_bytes='10') == 0
    assert code_after(worker, node, parked) == 0


def test_the_producer_is_fenced_meanwhile(node, client, worker):
    batch = client.batch(LONG, compression=Compression.ZSTD, **IDEMPOTENT, base_sequence=0)
    parked = client.begin_produce(batch)
    assert client.produce(client.batch(producer_id=4000, producer_epoch=1, base_sequence=0)).error_code == 0
    assert code_after(worker, node, parked) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_the_transaction_ends_meanwhile(node, producer, worker):
    assert producer.produce(producer.batch(b'first')).error_code == 0
    parked = producer.begin_produce(producer.batch(LONG, base_sequence=1, compression=Compression.ZSTD))
    assert len(worker.jobs) == 1
    producer.end(committed=False)
    assert code_after(worker, node, parked) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.list_offset(-1, isolation_level=1).offset == 2


def test_the_transaction_of_a_client_before_tv2_ends_meanwhile(node, producer, worker):
    """The next transaction has the same epoch as the batch. The batch must not open a transaction that no coordinator
    knows."""
    assert producer.add_partition() == 0
    assert producer.produce(producer.batch(b'first'), 11).error_code == 0
    parked = producer.begin_produce(producer.batch(LONG, base_sequence=1, compression=Compression.ZSTD), 11)
    assert len(worker.jobs) == 1
    producer.end(committed=False, version=4)
    assert code_after(worker, node, parked) == ErrorCode.INVALID_TXN_STATE
    assert producer.list_offset(-1, isolation_level=1).offset == 2


def test_a_bug_in_a_validation_closes_the_connection(node, client, caplog):
    node.validate = lambda job, done: done(ValueError('a bug'))
    parked = client.begin_produce(client.batch(LONG, compression=Compression.ZSTD))
    node.turn()
    assert parked.connection.closed and 'a bug' in caplog.text


def test_the_broker_stops_meanwhile(node, client, worker):
    begin_long(client, worker)
    node.close()
    worker.work()
    node.crash()


def test_acks_zero_closes_the_connection_if_a_worker_refuses(node, client, worker):
    parked = begin_long(client, worker, acks=0)
    worker.work()
    node.turn()
    assert parked.connection.closed is None
    client.create_topic('compacted', cleanup_policy='compact')
    batch = client.batch((None, LONG), compression=Compression.ZSTD)
    parked = client.begin_produce(batch, topic='compacted', acks=0)
    worker.work()
    node.turn()
    assert parked.connection.closed is not None


# -- many partitions


def test_a_request_of_many_partitions_is_served_in_slices(node, client, disk):
    client.create_topic('wide', 300)
    disk.is_held = True
    request = build('ProduceRequest', acks=-1, timeout_ms=1000, topic_data=[{'name': 'wide', 'partition_data': [
        {'index': index, 'records': client.batch(b'%d' % index)} for index in range(301)]}])
    connection = node.connect()
    node.serve(connection, frame_of(request, 12))
    assert connection.replies == [] and len(node.long_work) == 1
    node.turn()
    disk.finish_all()
    answers = read_answer(request, 12, connection.replies[0]).responses[0].partition_responses
    assert [answer.error_code for answer in answers] == [0] * 300 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert values_of(client.fetch(topic='wide', partition=299).records) == [b'299']


def test_a_transaction_over_many_partitions_is_served_in_slices(node, producer, disk):
    producer.create_topic('wide', 300)
    disk.is_held = True
    batch = producer.batch()
    parked = producer.begin('Produce', 12, acks=-1, timeout_ms=1000, transactional_id='tx', topic_data=[
        {'name': 'wide', 'partition_data': [{'index': index, 'records': batch} for index in range(300)]}])
    for _ in range(3):
        disk.finish_all()
        node.turn()
    assert {answer.error_code for answer in parked.answer.responses[0].partition_responses} == {0}


def test_of_several_batches_for_a_partition_the_last_counts(client):
    """Apache Kafka 4.3 collects the batches in a map, in which a batch replaces an earlier one for the same partition.
    kbroker once appended and answered each batch."""
    client.create_topic('wide', 2)
    batches = [(0, client.batch(b'a')), (1, client.batch(b'b')), (0, client.batch(b'c', b'd'))]
    partitions = [{'index': index, 'records': batch} for index, batch in batches]
    answer = client.ask('Produce', 9, acks=-1, timeout_ms=1000, topic_data=[
        {'name': 'wide', 'partition_data': partitions},
        {'name': 'orders', 'partition_data': [{'index': 0, 'records': client.batch(b'e')}]},
        {'name': 'wide', 'partition_data': [{'index': 1, 'records': client.batch(b'f')}]},
    ])
    assert [(topic.name, [(each.index, each.error_code, each.base_offset) for each in topic.partition_responses])
            for topic in answer.responses] == [
        ('wide', [(0, 0, 0)]), ('orders', [(0, 0, 0)]), ('wide', [(1, 0, 0)])]
    assert values_of(client.fetch(topic='wide').records) == [b'c', b'd']
    assert values_of(client.fetch(topic='wide', partition=1).records) == [b'f']


def test_an_unknown_partition_is_answered_once_too(client):
    partitions = [(topic, index) for topic in ('absent', 'orders') for index in (7, 8, 7, 7)]
    answers = produce_to(client, partitions, client.batch())
    assert [(name, [each.index for each in found]) for name, found in answers] == [
        ('absent', [8, 7]), ('orders', [8, 7])]


@pytest.mark.parametrize('seed', range(5))
def test_repeated_partitions_against_a_dict(client, seed):
    rng = random.Random(seed)
    client.create_topic('wide', 40)
    expected, topic_data = {}, []
    for name in rng.choices(['wide', 'orders', 'absent', 'other'], k=rng.randrange(1, 8)):
        partitions = []
        for index in rng.choices([*range(50), -1, 2**31 - 1, -2**31], k=rng.randrange(1, 60)):
            expected[name, index] = value = rng.randbytes(8)
            partitions.append({'index': index, 'records': client.batch(value)})
        topic_data.append({'name': name, 'partition_data': partitions})
    answer = client.ask('Produce', 9, acks=-1, timeout_ms=1000, topic_data=topic_data)
    found = [(topic.name, each.index) for topic in answer.responses for each in topic.partition_responses]
    assert sorted(found) == sorted(expected)
    for name, index in expected:
        if name == 'wide' and 0 <= index < 40:
            assert values_of(client.fetch(topic='wide', partition=index).records) == [expected[name, index]]


# -- the time limit of an answer


def test_acks_all_is_refused_when_its_time_is_over(node, client, disk):
    """The sync does not finish, or the broker has no file descriptor left for it. The request once waited for ever."""
    disk.is_held = True
    late, patient = (client.begin('Produce', 12, acks=-1, timeout_ms=timeout_ms, topic_data=[
        {'name': 'orders', 'partition_data': [{'index': 0, 'records': client.batch()}]}])
        for timeout_ms in (1500, 60_000))
    for _ in range(14):
        assert not late.is_answered
        node.clock.advance(100)
        node.turn()
    assert code_of(late) == ErrorCode.REQUEST_TIMED_OUT
    assert not patient.is_answered
    disk.release()
    assert code_of(patient) == 0
    assert client.list_offset(-1).offset == 2, 'what timed out stays in the log'


def test_a_request_whose_time_is_over_is_answered_once(node, client, disk):
    client.create_topic('wide', 2)
    disk.is_held = True
    parked = client.begin('Produce', 12, acks=-1, timeout_ms=1000, topic_data=[{'name': 'wide', 'partition_data': [
        {'index': index, 'records': client.batch()} for index in range(2)]}])
    disk.finish()
    node.clock.advance(1000)
    node.turn()
    assert [each.error_code for each in parked.answer.responses[0].partition_responses] == [
        0, ErrorCode.REQUEST_TIMED_OUT]
    disk.release()
    node.turn()
    assert len(parked.connection.replies) == 1


def test_nothing_is_watched_once_the_disk_has_answered(node, client):
    node.clock.advance(1000)
    node.turn()
    before = len(node.timers)
    client.produce(client.batch())
    assert len(node.timers) == before + 1
    for _ in range(3):
        node.clock.advance(100)
        node.turn()
    assert len(node.timers) == before
