"""CreateTopics (key 19), versions 2-7.

A single node has one replica of each partition. With kbroker.replication.factor.accept=any, the default, each
replication factor of at least 1 is accepted, and one replica is created: test suites often request a factor of 3. With
`strict`, a factor above 1 gets INVALID_REPLICATION_FACTOR. An assignment of a partition to any other brokers than this
node gets INVALID_REPLICA_ASSIGNMENT.

All valid topics of a request are one batch of the metadata log. A batch holds 10,000 records: as in Kafka, a request
that needs more gets POLICY_VIOLATION. Clients see a new topic once all its partitions are open. With validate_only, the
request is checked, but creates no topic. A topic that is named twice gets one result, INVALID_REQUEST.

Answers contain the topic's configs from version 5 on (KIP-525), and the topic id from version 7 on.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import may_on_cluster, missing_right
from kbroker.apis.serving.long_answers import Pace, Steps, counted
from kbroker.apis.serving.replica_assignments import check_count, check_replicas
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.image import TopicImage
from kbroker.metadata.topic_operations import NewTopic
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import CreateTopicsResponse
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.settings.topic_config import describe_new_topic

CreatableTopicResult = CreateTopicsResponse.CreatableTopicResult
CreatableTopicConfigs = CreateTopicsResponse.CreatableTopicConfigs

BROKER_DEFAULT = -1
STRICT_SINCE = 6
"""The first version in which a request above the quota is refused. In earlier versions, the request is served and its
client is throttled afterwards (KIP-599)."""


def handle(request: Request, body: Any) -> Steps:
    response = CreateTopicsResponse(topics=[])
    may_create_all = may_on_cluster(request, Operation.CREATE, quiet=True)
    times = yield from counted((topic.name for topic in body.topics), Pace())
    checked: list[NewTopic] = []
    for topic in body.topics:
        yield
        count = times.pop(topic.name, 0)    # 0: answered already
        try:
            if count > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'the topic is named {count} times')
            if count == 1:
                if not may_create_all and not request.may(Operation.CREATE, ResourceType.TOPIC, topic.name):
                    right = missing_right(request, Operation.CREATE, ResourceType.TOPIC, topic.name)
                    raise KafkaError(right.code, f'{right}, or on the cluster')
                checked.append(check(request, topic))
        except KafkaError as error:
            response.topics.append(failed(topic.name, error.code, str(error)))
    try:
        results = yield from request.node.topics.create_many(
            checked, validate_only=body.validate_only, charge=request.charge_mutations(STRICT_SINCE))
    except KafkaError as error:
        results = [error.with_traceback(None)] * len(checked)
    for new_topic, result in zip(checked, results, strict=True):
        response.topics.append(failed(new_topic.name, result.code, str(result)) if isinstance(result, KafkaError)
                               else created(request, result))
        yield
    return response


def check(request: Request, topic: Any) -> NewTopic:
    """Check the replicas and assignments that the request gives for a topic. Return the topic with its number of
    partitions. Raise KafkaError if they are invalid."""
    node = request.node
    strict = node.config.kbroker_replication_factor_accept == 'strict'
    if topic.assignments:
        partitions = check_assignments(topic, node.metadata.node_id)
    else:
        partitions = node.config.num_partitions if topic.num_partitions == BROKER_DEFAULT else topic.num_partitions
        check_replication_factor(topic.replication_factor, strict)
    return NewTopic(topic.name, partitions, {config.name: config.value for config in topic.configs})


def check_replication_factor(replication_factor: int, strict: bool) -> None:
    if replication_factor == BROKER_DEFAULT:
        return
    if replication_factor < 1 or (strict and replication_factor > 1):
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR,
                         f'replication factor {replication_factor}, and this cluster has 1 broker')


def check_assignments(topic: Any, node_id: int) -> int:
    """Check that the assignments are for partitions 0 to n-1, and that each assigns its partition to this broker only.
    Return n."""
    if topic.num_partitions != BROKER_DEFAULT or topic.replication_factor != BROKER_DEFAULT:
        raise KafkaError(ErrorCode.INVALID_REQUEST,
                         'with assignments, the number of partitions and the replication factor must be -1')
    check_count(len(topic.assignments))
    indexes = sorted(assignment.partition_index for assignment in topic.assignments)
    if indexes != list(range(len(indexes))):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                         f'assignments for partitions 0 to {len(indexes) - 1} expected, found {indexes}')
    for assignment in topic.assignments:
        check_replicas(assignment.broker_ids, node_id)
    return len(indexes)


def created(request: Request, topic: TopicImage) -> Any:
    result = CreatableTopicResult(name=topic.name, topic_id=topic.topic_id, error_message=None, configs=[])
    if not request.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name, quiet=True):
        result.topic_config_error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return result
    result.num_partitions = len(topic.partitions)
    result.replication_factor = 1
    result.configs = [
        CreatableTopicConfigs(name=entry.name, value=entry.value, read_only=entry.read_only,
                              config_source=int(entry.source), is_sensitive=entry.is_sensitive)
        for entry in describe_new_topic(request.node.config, topic.configs)]
    return result


def failed(name: str, code: ErrorCode, message: str) -> Any:
    return CreatableTopicResult(name=name, error_code=int(code), error_message=message)


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return CreateTopicsResponse(topics=[failed(topic.name, code, message) for topic in body.topics])


API = Api(ApiKey.CREATE_TOPICS, 2, 7, handle, error_response)
