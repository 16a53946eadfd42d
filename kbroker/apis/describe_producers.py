"""DescribeProducers (key 61), version 0: return the producers of partitions, with their open transactions (KIP-664)."""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, ReplyRoom, Steps, distinct_indexes, in_parts
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.topic_names import check_topic_name
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeProducersResponse
from kbroker.security.acl_codes import Operation, ResourceType

TopicResponse = DescribeProducersResponse.TopicResponse
PartitionResponse = DescribeProducersResponse.PartitionResponse
ProducerState = DescribeProducersResponse.ProducerState


def handle(request: Request, body: Any) -> Steps:
    """Describe each partition once. When the answer has its maximum size, the remaining partitions get
    INVALID_REQUEST."""
    pace, room = Pace(), ReplyRoom()
    wanted = yield from distinct_indexes(body.topics, 'name', 'partition_indexes', pace)
    topics = []
    for name, indexes in wanted.items():
        topics.append(TopicResponse(name=name, partitions=[]))
        for index in indexes:
            topics[-1].partitions.append((yield from describe(request, name, index, pace, room)))
            if pace.spend():
                yield
        if pace.spend():
            yield
    return DescribeProducersResponse(topics=topics)


def describe(request: Request, topic: str, partition_index: int, pace: Pace, room: ReplyRoom) -> Steps:
    try:
        check_topic_name(topic)
        require(request, Operation.READ, ResourceType.TOPIC, topic)
        room.check(ErrorCode.INVALID_REQUEST)
        producers = request.node.topics.get(topic, partition_index).active_producers()
    except KafkaError as error:
        return failed(partition_index, error.code, str(error))
    response = PartitionResponse(partition_index=partition_index, active_producers=[])
    room.take(1 + len(producers))
    for part in in_parts(producers):
        response.active_producers.extend(
            ProducerState(
                producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence, last_timestamp=producer.last_timestamp_ms,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_first_offset)
            for producer in part)
        if pace.spend(len(part)):
            yield
    return response


def failed(partition_index: int, code: ErrorCode, message: str) -> Any:
    return PartitionResponse(partition_index=partition_index, error_code=int(code), error_message=message)


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return DescribeProducersResponse(topics=[
        TopicResponse(name=topic.name, partitions=[failed(index, code, message) for index in topic.partition_indexes])
        for topic in body.topics])


API = Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, handle, error_response)
