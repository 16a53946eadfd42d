"""DeleteRecords (key 21), versions 0-2: advance the log start offset of partitions.

The requested offset -1 stands for the high watermark. As in Kafka, a topic whose cleanup.policy is only `compact` gets
POLICY_VIOLATION, and an internal topic gets INVALID_TOPIC_EXCEPTION: these topics hold current values, not a history
whose beginning may be cut off.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.long_answers import Steps, overdue_ms
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DeleteRecordsResponse
from kbroker.security.acl_codes import Operation, ResourceType

TopicResult = DeleteRecordsResponse.DeleteRecordsTopicResult
PartitionResult = DeleteRecordsResponse.DeleteRecordsPartitionResult


def handle(request: Request, body: Any) -> Steps:
    """Advance the log start offset of each partition. Wait first until all acknowledged records are on the disk,
    because the high watermark may be below their offsets until then."""
    response = DeleteRecordsResponse(topics=[])
    waits_until_ms = overdue_ms(request, body.timeout_ms)
    for topic in body.topics:
        if topic.partitions:
            result = TopicResult(name=topic.name, partitions=[])
            response.topics.append(result)
            is_allowed = request.may(Operation.DELETE, ResourceType.TOPIC, topic.name)
            for wanted in topic.partitions:
                result.partitions.append(
                    (yield from delete(request, topic.name, wanted, waits_until_ms)) if is_allowed
                    else failed(wanted.partition_index, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
                yield
        yield
    return response


def delete(request: Request, name: str, wanted: Any, waits_until_ms: int) -> Steps:
    try:
        partition = request.node.topics.get(name, wanted.partition_index)
        topic = request.node.topics.topic(name)
        if topic.is_internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f'{name} is an internal topic')
        if topic.config.cleanup_policy == {'compact'}:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f'{name} has cleanup.policy=compact')
        yield from partition.acknowledged(waits_until_ms)
        partition.delete_records(wanted.offset)
    except KafkaError as error:
        return failed(wanted.partition_index, error.code)
    return PartitionResult(partition_index=wanted.partition_index, low_watermark=partition.log_start_offset)


def failed(partition_index: int, code: ErrorCode) -> Any:
    return PartitionResult(partition_index=partition_index, low_watermark=-1, error_code=int(code))


def error_response(body: Any, code: ErrorCode, _message: str, _version: int) -> Any:
    return DeleteRecordsResponse(topics=[
        TopicResult(name=topic.name, partitions=[failed(wanted.partition_index, code) for wanted in topic.partitions])
        for topic in body.topics])


API = Api(ApiKey.DELETE_RECORDS, 0, 2, handle, error_response)
