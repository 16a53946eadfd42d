"""A client sends Produce requests to a broker process without waiting for the answers. A worker validates their
batches.
"""
from __future__ import annotations

import contextlib
import os
import random
import resource
import selectors
import socket
import time
from typing import Any

import pytest
from support.brokers.broker_process import BrokerProcess
from support.brokers.in_process_broker import frame_of, read_answer
from support.clients.raw_client import RawClient
from support.messages.message_builder import batch_of

from kbroker.base.errors import ErrorCode
from kbroker.protocol.messages import CreateTopicsRequest, FetchRequest, ListOffsetsRequest, ProduceRequest
from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
MIB = 1024 * 1024
ANSWER_LIMIT_S = 60


@pytest.fixture
def start(tmp_path):
    started = []

    def start_broker(**settings: str) -> BrokerProcess:
        broker = BrokerProcess(tmp_path / f'data{len(started)}',
                               {name.replace('_', '.'): value for name, value in settings.items()})
        started.append(broker)
        broker.start()
        return broker

    yield start_broker
    for broker in started:
        broker.kill9()
        assert broker.tracebacks() == []


def create(client: RawClient, partitions: int = 1, **configs: str) -> None:
    topic = CreateTopicsRequest.CreatableTopic(name='t', num_partitions=partitions, replication_factor=1, configs=[
        CreateTopicsRequest.CreatableTopicConfig(name=key.replace('_', '.'), value=value)
        for key, value in configs.items()])
    assert client.ask(CreateTopicsRequest(timeout_ms=60_000, topics=[topic]), 7).topics[0].error_code == 0


def produce(batch: bytes, partition: int = 0, acks: int = -1, timeout_ms: int = 30_000) -> Any:
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[ProduceRequest.TopicProduceData(
        name='t', partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=batch)])])


def partition_answer(request: Any, reply: bytes) -> Any:
    return read_answer(request, 9, reply).responses[0].partition_responses[0]


def end_offset(client: RawClient) -> int:
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = ListOffsetsRequest.ListOffsetsTopic(name='t', partitions=[partition])
    found: int = client.ask(ListOffsetsRequest(replica_id=-1, topics=[topic]), 7).topics[0].partitions[0].offset
    return found


def values(client: RawClient) -> list[bytes]:
    """Fetch the whole partition."""
    found: list[bytes] = []
    while True:
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=len(found), partition_max_bytes=8 * MIB)
        topic = FetchRequest.FetchTopic(topic='t', partitions=[partition])
        answer = client.ask(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=8 * MIB, session_epoch=-1,
                                         topics=[topic]), 12).responses[0].partitions[0]
        assert answer.error_code == 0
        batches = list(iter_batches(answer.records))
        if not batches:
            return found
        found += [record.value for _, batch in batches for record in decode_records(batch)]


def test_pipelined_batches_keep_their_order_and_their_bytes(start):
    """A worker validates some of the batches, from copies of their frames, and the loop validates the others."""
    rng = random.Random(7)
    sizes_and_codecs = [(size, codec) for size in (100, 20_000, 150_000, 900_000) for codec in range(5)] * 3
    rng.shuffle(sizes_and_codecs)
    sent = []
    frames = []
    request = None
    for number, (size, codec) in enumerate(sizes_and_codecs):
        value = b'%d ' % number + rng.randbytes(size // 2) + bytes(size // 2)
        sent.append(value)
        request = produce(batch_of(int(time.time() * 1000), value, compression=codec, producer_id=77, producer_epoch=0,
                                   base_sequence=number))
        frame = frame_of(request, 9, correlation_id=number)
        frames.append(len(frame).to_bytes(4, 'big') + frame)
    broker = start()
    with contextlib.ExitStack() as opened:
        client, sender = (opened.enter_context(RawClient.at(broker.address)) for _ in range(2))
        create(client)
        stream = b''.join(frames)
        sender.socket.setblocking(False)
        ready = opened.enter_context(selectors.DefaultSelector())
        ready.register(sender.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
        position, replies = 0, []
        pending = b''
        while len(replies) < len(frames):
            ((_, events),) = ready.select(ANSWER_LIMIT_S)
            if events & selectors.EVENT_WRITE:
                position += sender.socket.send(stream[position:position + rng.randrange(1, 300_000)])
                if position == len(stream):
                    ready.modify(sender.socket, selectors.EVENT_READ)
            if events & selectors.EVENT_READ:
                pending += sender.socket.recv(65536)
            while len(pending) >= 4 and len(pending) >= 4 + int.from_bytes(pending[:4], 'big'):
                size = 4 + int.from_bytes(pending[:4], 'big')
                replies.append(pending[4:size])
                pending = pending[size:]
        answers = [partition_answer(request, reply) for reply in replies]
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [
            (0, number) for number in range(len(frames))]
        assert values(client) == sent


def test_a_client_that_leaves_does_not_take_its_batch_along(start):
    """With acks=0 a client may close the connection as soon as it has sent all requests."""
    broker = start()
    batch = batch_of(int(time.time() * 1000), bytes(60 * MIB), compression=ZSTD)
    with RawClient.at(broker.address) as client:
        create(client)
        with RawClient.at(broker.address) as sender:
            for _ in range(3):
                sender.send(frame_of(produce(batch, acks=0), 9))
            sender.socket.shutdown(socket.SHUT_WR)
            assert sender.is_cut_off()
        answer = partition_answer(produce(batch), client.exchange(frame_of(produce(batch), 9)))
        assert (answer.error_code, answer.base_offset) == (0, 3)


def test_a_stop_does_not_wait_for_the_batches_of_a_worker(start):
    broker = start()
    batch = batch_of(int(time.time() * 1000), *[bytes(30_000)] * 1000, compression=GZIP)
    with contextlib.ExitStack() as opened:
        client = opened.enter_context(RawClient.at(broker.address))
        create(client)
        for _ in range(20):
            opened.enter_context(RawClient.at(broker.address)).send(frame_of(produce(batch), 9))
        assert end_offset(client) >= 0
        broker.stop()
    broker.start()
    with RawClient.at(broker.address) as client:
        assert len(values(client)) == end_offset(client)
    broker.stop()


def test_without_a_free_descriptor_produce_is_answered_in_time(start):
    """The broker writes the batch, but has no file descriptor for its sync. In an earlier version, the request then
    waited forever.
    """
    broker = start()
    with RawClient.at(broker.address) as client, contextlib.ExitStack() as idle:
        create(client, partitions=30)
        batch = batch_of(int(time.time() * 1000), b'v')
        request = produce(batch, timeout_ms=1500)
        assert partition_answer(request, client.exchange(frame_of(request, 9))).error_code == 0
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (descriptors(broker) + 2, 4096))
        idle.enter_context(RawClient.at(broker.address))
        codes = set()
        for partition in range(1, 6):
            request = produce(batch, partition, timeout_ms=1500)
            codes.add(partition_answer(request, client.exchange(frame_of(request, 9))).error_code)
        assert codes <= {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT}
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (4096, 4096))
        request = produce(batch, 7)
        assert partition_answer(request, client.exchange(frame_of(request, 9))).error_code == 0
    broker.stop()


def descriptors(broker: BrokerProcess) -> int:
    return len(os.listdir(f'/proc/{broker.pid}/fd'))
