"""CreatePartitions (key 37), versions 0-3: raise the number of partitions of topics.

`count` is the new total. The same latitude for assignments as in CreateTopics: one replica on this node is made.
"""
from __future__ import annotations

from collections import Counter
from typing import Any

from kbroker.apis.replica_assignments import check_replicas
from kbroker.apis.request import Api, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import CreatePartitionsResponse

Result = CreatePartitionsResponse.CreatePartitionsTopicResult


def handle(request: Request, body: Any) -> Any:
    names = Counter(topic.name for topic in body.topics)
    response = CreatePartitionsResponse(results=[])
    for wanted in body.topics:
        if names[wanted.name] > 1:
            if all(result.name != wanted.name for result in response.results):
                response.results.append(failed(wanted.name, ErrorCode.INVALID_REQUEST, 'the topic is named twice'))
            continue
        try:
            check(request, wanted)
            if not body.validate_only:
                request.node.topics.add_partitions(wanted.name, wanted.count)
            response.results.append(Result(name=wanted.name))
        except KafkaError as error:
            response.results.append(failed(wanted.name, error.code, str(error)))
    return response


def check(request: Request, wanted: Any) -> None:
    """Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT."""
    topic = request.node.topics.topic(wanted.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'topic {wanted.name!r} does not exist')
    has = len(topic.partitions)
    if wanted.count <= has:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS,
                         f'the topic has {has} partitions, more expected, found {wanted.count}')
    if wanted.assignments is None:
        return
    if len(wanted.assignments) != wanted.count - has:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                         f'{wanted.count - has} assignments expected, found {len(wanted.assignments)}')
    strict = request.node.config.kbroker_replication_factor_accept == 'strict'
    for assignment in wanted.assignments:
        check_replicas(assignment.broker_ids, request.node.metadata.node_id, strict)


def failed(name: str, code: ErrorCode, message: str) -> Any:
    return Result(name=name, error_code=int(code), error_message=message)


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return CreatePartitionsResponse(results=[failed(topic.name, code, message) for topic in body.topics])


API = Api(ApiKey.CREATE_PARTITIONS, 0, 3, handle, error_response)
