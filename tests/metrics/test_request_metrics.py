"""Metrics of requests and of their traffic: they count what clients sent and got."""
import pytest
from support.brokers.in_process_broker import InProcessBroker, frame_of
from support.clients.socket_peers import Peer, commons_for, frame
from support.messages.message_builder import batch_of

from kbroker.base.clock import ManualClock, Timers
from kbroker.metrics import requests, traffic
from kbroker.metrics.table import Distribution
from kbroker.network.reactor import Reactor
from kbroker.protocol.messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    EndTxnRequest,
    FetchRequest,
    MetadataRequest,
    ProduceRequest,
)


@pytest.fixture
def reactor():
    clock = ManualClock()
    found = Reactor(clock, Timers(clock))
    yield found
    found.close()


@pytest.fixture
def commons(reactor):
    return commons_for(reactor, lambda *_: None)


@pytest.fixture
def broker(tmp_path):
    with InProcessBroker(tmp_path, {'kbroker.durability': 'page-cache'}) as broker:
        broker.ask(CreateTopicsRequest(timeout_ms=1000, topics=[
            CreateTopicsRequest.CreatableTopic(name='t', num_partitions=2, replication_factor=1)]), 7)
        yield broker


def found(collector):
    samples = [sample for sample in collector if sample is not None]
    return {(metric.name, labels): value for metric, labels, value in samples}


def produce(broker, *indexes, acks=-1, values=(b'a', b'b', b'c'), **options):
    batch = batch_of(broker.clock.wall_ms(), *values, **options)
    broker.begin(ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[ProduceRequest.TopicProduceData(
        name='t', partition_data=[ProduceRequest.PartitionProduceData(index=index, records=batch)
                                  for index in indexes])]), 12)
    return len(batch)


def fetch(broker, *indexes, offset=0):
    broker.ask(FetchRequest(max_wait_ms=0, session_epoch=-1, topics=[FetchRequest.FetchTopic(topic='t', partitions=[
        FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index in indexes])]), 12)


def test_requests_count_by_api_and_version(broker, commons):
    for version in (9, 12, 12):
        broker.ask(MetadataRequest(topics=[]), version)
    samples = found(requests.collect(broker.request_counts, commons))
    assert samples['kbroker_requests', ('Metadata', '9')] == 1
    assert samples['kbroker_requests', ('Metadata', '12')] == 2
    assert samples['kbroker_requests', ('CreateTopics', '7')] == 1
    assert ('kbroker_requests', ('Metadata', '10')) not in samples
    assert not [name for name, _ in samples if name == 'kbroker_request_errors']


def test_a_request_in_an_unknown_version_of_api_versions_counts_as_version_0(broker, commons):
    connection = broker.connect()
    broker.send(connection, b'\0\x12\0\x63' + b'\0\0\0\1' + b'\xff\xff')
    samples = found(requests.collect(broker.request_counts, commons))
    assert samples['kbroker_requests', ('ApiVersions', '0')] == 1
    assert samples['kbroker_request_errors', ('ApiVersions', '0', 'UNSUPPORTED_VERSION')] == 1


def test_each_error_code_of_an_answer_counts_whoever_writes_the_answer(broker, commons):
    produce(broker, 0, 7, 8)
    produce(broker, 9, acks=0)
    fetch(broker, 0, 7)
    broker.ask(EndTxnRequest(transactional_id='x', producer_id=5, producer_epoch=1, committed=True), 5)
    broker.ask(DeleteTopicsRequest(timeout_ms=1000, topic_names=['one', 'two']), 5)
    samples = found(requests.collect(broker.request_counts, commons))
    errors = {labels: value for (name, labels), value in samples.items() if name == 'kbroker_request_errors'}
    assert errors == {
        ('Produce', '12', 'UNKNOWN_TOPIC_OR_PARTITION'): 3, ('Fetch', '12', 'UNKNOWN_TOPIC_OR_PARTITION'): 1,
        ('EndTxn', '5', 'NOT_COORDINATOR'): 1, ('DeleteTopics', '5', 'UNKNOWN_TOPIC_OR_PARTITION'): 2}


def test_times_are_taken_only_of_requests_whose_arrival_is_known(broker, commons):
    connection = broker.connect()
    request = frame_of(MetadataRequest(topics=[]), 12)
    broker.send(connection, request)
    assert not [name for name, _ in found(requests.collect(broker.request_counts, commons)) if 'work' in name]
    broker._dispatcher.arrived_us = 1      # long ago
    broker.send(connection, request)
    samples = found(requests.collect(broker.request_counts, commons))
    for stage in ('queue', 'work', 'wait'):
        times = samples[f'kbroker_request_{stage}_seconds', ('Metadata',)]
        assert isinstance(times, Distribution) and sum(times.counts) == 1
        assert len(times.counts) == len(times.bounds) + 1
    queue = samples['kbroker_request_queue_seconds', ('Metadata',)]
    assert queue.counts[-1] == 1 and queue.sum > queue.bounds[-1]
    assert 0 < samples['kbroker_request_work_seconds', ('Metadata',)].sum < queue.sum


def test_a_fetch_that_waits_counts_when_it_is_answered(broker, commons):
    broker._dispatcher.arrived_us = 1
    broker.begin(FetchRequest(max_wait_ms=500, min_bytes=1, session_epoch=-1, topics=[FetchRequest.FetchTopic(
        topic='t', partitions=[FetchRequest.FetchPartition(partition=0, partition_max_bytes=1 << 20)])]), 12)
    assert sum(found(requests.collect(broker.request_counts, commons))[
        'kbroker_request_wait_seconds', ('Fetch',)].counts) == 0
    produce(broker, 0)
    assert sum(found(requests.collect(broker.request_counts, commons))[
        'kbroker_request_wait_seconds', ('Fetch',)].counts) == 1


def test_records_and_bytes_count_by_topic(broker, commons):
    size_bytes = produce(broker, 0, 1)
    produce(broker, 1)
    fetch(broker, 0)
    fetch(broker, 0, offset=1)
    samples = found(traffic.collect(commons, broker.topics))
    of_topics = {name: value for (name, labels), value in samples.items() if labels == ('t',)}
    assert of_topics == {
        'kbroker_topic_produced_records': 9, 'kbroker_topic_produced_bytes': 3 * size_bytes,
        'kbroker_topic_fetched_records': 5, 'kbroker_topic_fetched_bytes': 2 * size_bytes}


def test_a_repeated_batch_counts_once(broker, commons):
    for _ in range(2):
        size_bytes = produce(broker, 0, producer_id=5, producer_epoch=0, base_sequence=0)
    samples = found(traffic.collect(commons, broker.topics))
    assert samples['kbroker_topic_produced_records', ('t',)] == 3
    assert samples['kbroker_topic_produced_bytes', ('t',)] == size_bytes


@pytest.mark.parametrize('takes_times', [False, True])
def test_bytes_count_by_listener_and_answers_are_timed_if_the_reactor_takes_times(reactor, takes_times):
    commons = commons_for(reactor, lambda connection, sequence, request: connection.reply(sequence, [bytes(request)]),
                          lambda connection: None)
    reactor.takes_times = takes_times
    peer = Peer(reactor, None, 0, commons)
    peer.send(frame(b'hello'))
    assert peer.receive() == frame(b'hello')
    assert found(traffic.collect(commons, NoTopics())) == {
        ('kbroker_listener_received_bytes', ('',)): 9, ('kbroker_listener_sent_bytes', ('',)): 9}
    assert sum(commons.sent_times()[1]) == takes_times
    peer.send(frame(b'one') + frame(b'two'))
    assert peer.receive() == frame(b'one') + frame(b'two')
    assert sum(commons.sent_times()[1]) == 2 * takes_times


class NoTopics:

    def topics(self):
        return []
