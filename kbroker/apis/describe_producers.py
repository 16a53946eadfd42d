"""DescribeProducers (key 61), version 0: producers that a partition knows, their open transactions (KIP-664)."""
from __future__ import annotations

from typing import Any

from kbroker.apis.request import Api, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.metadata.topic_names import check_topic_name
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeProducersResponse

TopicResponse = DescribeProducersResponse.TopicResponse
PartitionResponse = DescribeProducersResponse.PartitionResponse
ProducerState = DescribeProducersResponse.ProducerState


def handle(request: Request, body: Any) -> Any:
    return DescribeProducersResponse(topics=[
        TopicResponse(name=topic.name, partitions=[describe(request, topic.name, index)
                                                   for index in topic.partition_indexes])
        for topic in body.topics])


def describe(request: Request, topic: str, partition_index: int) -> Any:
    try:
        check_topic_name(topic)
        partition = request.node.topics.get(topic, partition_index)
    except KafkaError as error:
        return failed(partition_index, error.code, str(error))
    return PartitionResponse(partition_index=partition_index, active_producers=[
        ProducerState(
            producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
            last_sequence=producer.last_sequence, last_timestamp=producer.last_timestamp_ms,
            coordinator_epoch=producer.coordinator_epoch, current_txn_start_offset=producer.transaction_first_offset)
        for producer in partition.active_producers()])


def failed(partition_index: int, code: ErrorCode, message: str) -> Any:
    return PartitionResponse(partition_index=partition_index, error_code=int(code), error_message=message)


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return DescribeProducersResponse(topics=[
        TopicResponse(name=topic.name, partitions=[failed(index, code, message) for index in topic.partition_indexes])
        for topic in body.topics])


API = Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, handle, error_response)
