"""AlterPartitionReassignments (key 45), versions 0-1 (KIP-455).

This node has the only replica of each partition, so no partition is ever moved. A reassignment to this node succeeds. A
reassignment to any other replicas gets INVALID_REPLICA_ASSIGNMENT. Null replicas, which cancel a reassignment, get
NO_REASSIGNMENT_IN_PROGRESS.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, Steps, each_topic
from kbroker.apis.serving.replica_assignments import check_replicas
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import AlterPartitionReassignmentsResponse as Response
from kbroker.security.acl_codes import Operation, ResourceType

TopicResult = Response.ReassignableTopicResponse
PartitionResult = Response.ReassignablePartitionResponse


def handle(request: Request, body: Any) -> Steps:
    require(request, Operation.ALTER, ResourceType.CLUSTER)
    if not body.topics:
        return Response(allow_replication_factor_change=body.allow_replication_factor_change, responses=[])
    topics, pace = [], Pace()
    for topic in body.topics:
        results = []
        for partition in topic.partitions:
            result = PartitionResult(partition_index=partition.partition_index, error_message=None)
            try:
                check(request, topic.name, partition)
            except KafkaError as error:
                result.error_code, result.error_message = int(error.code), str(error)
            results.append(result)
            if pace.spend():
                yield
        topics.append(TopicResult(name=topic.name, partitions=results))
        if pace.spend():
            yield
    return Response(allow_replication_factor_change=body.allow_replication_factor_change, error_message=None,
                    responses=topics)


def check(request: Request, topic: str, partition: Any) -> None:
    """Check one partition of the request. Raise KafkaError UNKNOWN_TOPIC_OR_PARTITION, NO_REASSIGNMENT_IN_PROGRESS or
    INVALID_REPLICA_ASSIGNMENT."""
    index, node = partition.partition_index, request.node
    if node.topics.find(topic, index) is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'partition {topic!r}-{index} does not exist')
    if partition.replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    check_replicas(partition.replicas, node.metadata.node_id)


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Steps:
    topics = yield from each_topic(
        body.topics, 'partitions',
        lambda partition: PartitionResult(partition_index=partition.partition_index, error_code=int(code),
                                          error_message=message),
        lambda topic, results: TopicResult(name=topic.name, partitions=results), Pace())
    return Response(error_code=int(code), error_message=message, responses=topics)


API = Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, handle, error_response)
