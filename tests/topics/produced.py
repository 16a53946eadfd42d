"""Sends Produce requests with one record to an in-process broker."""
from support.brokers.in_process_broker import InProcessBroker

from kbroker.protocol.messages import ProduceRequest
from kbroker.record.batch import encode_batch


def record():
    return encode_batch([(0, b'key', b'value')])


def produce(broker: InProcessBroker, partition):
    """Send a Produce request. Return a function that returns the error code in the response, or None as long as there
    is no response."""
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[ProduceRequest.TopicProduceData(
        name='orders', partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=bytes(record()))])])
    connection = broker.begin(request, 9)
    return lambda: (broker.answer_to(connection, request, 9).responses[0].partition_responses[0].error_code
                    if connection.replies else None)
