"""The codec against the reference of the tests and kafka-python, in one run: compare ratios, not times.

    python -m pytest bench/bench_codec.py --benchmark-group-by=group --benchmark-columns=median,iqr,rounds
"""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'tests'))

from kafka.protocol.consumer.fetch import FetchRequest as KafkaPythonFetchRequest
from kafka.protocol.metadata.metadata import MetadataResponse as KafkaPythonMetadataResponse
from kafka.protocol.producer.produce import ProduceRequest as KafkaPythonProduceRequest
from kafka.protocol.producer.transaction import EndTxnRequest as KafkaPythonEndTxnRequest
from reference import codec as reference
from support.messages.message_strategies import as_values

from kbroker.protocol.codec import decode, encode, encode_segments
from kbroker.protocol.messages import (
    EndTxnRequest,
    FetchRequest,
    FetchResponse,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)


def produce_request() -> ProduceRequest:
    partition = ProduceRequest.PartitionProduceData(index=0, records=bytes(16_384))
    topic = ProduceRequest.TopicProduceData(name='orders', partition_data=[partition])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def fetch_request() -> FetchRequest:
    partitions = [
        FetchRequest.FetchPartition(partition=i, fetch_offset=1000 * i, partition_max_bytes=1 << 20) for i in range(50)
    ]
    topic = FetchRequest.FetchTopic(topic='orders', partitions=partitions)
    return FetchRequest(max_wait_ms=500, min_bytes=1, isolation_level=1, topics=[topic])


def metadata_response() -> MetadataResponse:
    topics = [
        MetadataResponse.MetadataResponseTopic(
            name=f'topic-{i}',
            topic_id=bytes([i]) * 16,
            partitions=[
                MetadataResponse.MetadataResponsePartition(
                    partition_index=j, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1]
                )
                for j in range(3)
            ],
        )
        for i in range(100)
    ]
    brokers = [MetadataResponse.MetadataResponseBroker(node_id=1, host='localhost', port=9092)]
    return MetadataResponse(brokers=brokers, cluster_id='cluster', controller_id=1, topics=topics)


def fetch_response(records: object) -> FetchResponse:
    partitions = [FetchResponse.PartitionData(partition_index=i, high_watermark=9, records=records) for i in range(50)]
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic='orders', partitions=partitions)])


class Slice:
    size_bytes = 100_000


DECODED = {
    'decode Produce v9, 16 KiB': (produce_request(), 9, KafkaPythonProduceRequest),
    'decode Fetch v12, 50 partitions': (fetch_request(), 12, KafkaPythonFetchRequest),
    'decode EndTxn v3': (
        EndTxnRequest(transactional_id='my-txn', producer_id=4711, producer_epoch=3),
        3,
        KafkaPythonEndTxnRequest,
    ),
    'decode Metadata v12, 100 topics of 3': (metadata_response(), 12, KafkaPythonMetadataResponse),
}
ENCODED = {
    'encode Fetch v12, 50 partitions': (fetch_request(), 12, KafkaPythonFetchRequest),
    'encode Metadata v12, 100 topics of 3': (metadata_response(), 12, KafkaPythonMetadataResponse),
    'encode EndTxn v3': (
        EndTxnRequest(transactional_id='my-txn', producer_id=4711, producer_epoch=3),
        3,
        KafkaPythonEndTxnRequest,
    ),
}


@pytest.mark.parametrize('what', DECODED)
def test_decode(benchmark, what):
    message, version, _ = DECODED[what]
    data = encode(message, version)
    benchmark.group = what
    assert benchmark(decode, type(message), data, version) == message


@pytest.mark.parametrize('what', DECODED)
def test_reference_decode(benchmark, what):
    message, version, _ = DECODED[what]
    data = encode(message, version)
    benchmark.group = what
    assert benchmark(reference.decode, message.schema, version, data) == as_values(message)


@pytest.mark.parametrize('what', DECODED)
def test_kafka_python_decode(benchmark, what):
    message, version, their_class = DECODED[what]
    data = encode(message, version)
    benchmark.group = what
    assert benchmark(their_class.decode, data, version=version) is not None


@pytest.mark.parametrize('what', ENCODED)
def test_encode(benchmark, what):
    message, version, _ = ENCODED[what]
    benchmark.group = what
    assert benchmark(encode, message, version)


@pytest.mark.parametrize('what', ENCODED)
def test_reference_encode(benchmark, what):
    message, version, _ = ENCODED[what]
    values = as_values(message)
    benchmark.group = what
    assert benchmark(reference.encode, message.schema, version, values) == encode(message, version)


@pytest.mark.parametrize('what', ENCODED)
def test_kafka_python_encode(benchmark, what):
    message, version, their_class = ENCODED[what]
    data = encode(message, version)
    theirs = their_class.decode(data, version=version)
    theirs._header = None
    benchmark.group = what
    assert benchmark(theirs.encode, version=version) == data


def test_make_and_encode_a_metadata_response(benchmark):
    benchmark.group = 'make and encode'
    assert benchmark(lambda: encode(metadata_response(), 12))


def test_make_and_encode_a_fetch_response_of_50_file_slices(benchmark):
    part = Slice()
    benchmark.group = 'make and encode'
    assert len(benchmark(lambda: encode_segments(fetch_response(part), 12))) == 101


def test_make_and_encode_a_produce_response(benchmark):
    def make() -> bytes:
        partition = ProduceResponse.PartitionProduceResponse(index=0, base_offset=1234, log_start_offset=0)
        topic = ProduceResponse.TopicProduceResponse(name='orders', partition_responses=[partition])
        return encode(ProduceResponse(responses=[topic]), 9)

    benchmark.group = 'make and encode'
    assert benchmark(make)
