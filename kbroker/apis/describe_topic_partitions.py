"""DescribeTopicPartitions (key 75), version 0 (KIP-966): describe topics, one page per request.

Topics are sorted by name. An empty list of topics asks for all topics. The page has at most response_partition_limit
partitions, and at most max.request.partition.size.limit. `next_cursor` names the partition at which the next page
starts.
"""
from __future__ import annotations

import heapq
from typing import Any

from kbroker.apis.metadata import NO_LEADER
from kbroker.apis.serving.authorized_operations import authorized_operations, decisions_about
from kbroker.apis.serving.long_answers import Pace, Steps, in_parts
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.topic_names import check_topic_name
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeTopicPartitionsResponse
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.topics.partition import Partition
from kbroker.topics.topic import Topic

TopicResult = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
PartitionResult = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
Cursor = DescribeTopicPartitionsResponse.Cursor


def handle(request: Request, body: Any) -> Steps:
    topics, node_id = request.node.topics, request.node.metadata.node_id
    pace = Pace()
    wanted: set[str] = set()
    for part in in_parts(body.topics):
        wanted.update(topic.name for topic in part)
        if pace.spend(len(part)):
            yield
    start, first_name = 0, ''
    if body.cursor is not None:
        check_cursor(body.cursor, wanted)
        start, first_name = body.cursor.partition_index, body.cursor.topic_name
    names = yield from names_from(first_name, list(wanted) or [topic.name for topic in topics.topics()], pace)
    left = max(1, min(body.response_partition_limit, request.node.config.max_request_partition_size_limit))
    response = DescribeTopicPartitionsResponse(topics=[], next_cursor=None)
    for name in names:
        if left == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        if pace.spend(decisions_about(ResourceType.TOPIC)):
            yield
        if not request.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            if wanted:
                response.topics.append(failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        operations = authorized_operations(request, ResourceType.TOPIC, name)
        topic = topics.topic(name)
        if topic is None:
            response.topics.append(unknown(name, operations))
            continue
        start = min(start, len(topic.partitions)) if name == first_name else 0
        end = min(len(topic.partitions), start + left)
        response.topics.append((yield from describe(topic, start, end, node_id, pace)))
        response.topics[-1].topic_authorized_operations = operations
        if end < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
        left -= end - start
    return response


def names_from(first: str, names: list[str], pace: Pace) -> Steps:
    """Return an iterator over the sorted names, without those before `first`. The names are sorted in parts, because
    sorting a long list in one call would hold the loop."""
    runs = []
    for part in in_parts(names):
        runs.append(sorted(name for name in part if name >= first))
        if pace.spend(len(part)):
            yield
    return heapq.merge(*runs)


def check_cursor(cursor: Any, wanted: set[str]) -> None:
    """Raise KafkaError INVALID_REQUEST if no answer to this request can have contained the cursor."""
    if cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f'the cursor names partition {cursor.partition_index}')
    if wanted and cursor.topic_name not in wanted:
        raise KafkaError(ErrorCode.INVALID_REQUEST,
                         f'the cursor names topic {cursor.topic_name!r}, which is not asked for')


def describe(topic: Topic, start: int, end: int, node_id: int, pace: Pace) -> Steps:
    described = []
    for partition in topic.partitions[start:end]:
        described.append(describe_partition(partition, node_id))
        if pace.spend():
            yield
    return TopicResult(name=topic.name, topic_id=topic.topic_id, is_internal=topic.is_internal, partitions=described)


def describe_partition(partition: Partition, node_id: int) -> Any:
    described = PartitionResult(
        partition_index=partition.partition, leader_id=node_id, leader_epoch=partition.leader_epoch,
        replica_nodes=[node_id], isr_nodes=[node_id], eligible_leader_replicas=[], last_known_elr=[])
    if partition.is_offline:
        described.error_code = int(ErrorCode.LEADER_NOT_AVAILABLE)
        described.leader_id = NO_LEADER
        described.offline_replicas = [node_id]
    return described


def unknown(name: str, operations: int) -> Any:
    try:
        check_topic_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except KafkaError as error:
        code = error.code
    return TopicResult(name=name, error_code=int(code), topic_authorized_operations=operations)


def failed(name: str, code: ErrorCode) -> Any:
    return TopicResult(name=name, error_code=int(code))


def error_response(body: Any, code: ErrorCode, _message: str, _version: int) -> Any:
    return DescribeTopicPartitionsResponse(topics=[failed(topic.name, code) for topic in body.topics])


API = Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, handle, error_response)
