"""CreatePartitions (key 37), versions 0-3: raise the number of partitions of topics.

`count` is the new total number of partitions. If the request assigns the new partitions to brokers, it must assign each
to this node only. As in Apache Kafka 4.4, the additional partitions of a request have a limit. Above it, the request
fails as a whole: each topic gets POLICY_VIOLATION, even a topic that is invalid itself.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, Steps, counted
from kbroker.apis.serving.replica_assignments import check_count, check_replicas
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.batches import MAX_RECORDS
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import CreatePartitionsResponse
from kbroker.security.acl_codes import Operation, ResourceType

if TYPE_CHECKING:
    from kbroker.topics.topic import Topic

Result = CreatePartitionsResponse.CreatePartitionsTopicResult

STRICT_SINCE = 3
"""The first version in which a request above the quota is refused. In earlier versions, the request is served and its
client is throttled afterwards (KIP-599)."""


def handle(request: Request, body: Any) -> Steps:
    """Add partitions to each valid topic of the request. All of these changes are one batch of the metadata log."""
    response = CreatePartitionsResponse(results=[])
    times = yield from counted((topic.name for topic in body.topics), Pace())
    counts: dict[str, int] = {}
    added = 0
    for wanted in body.topics:
        yield
        times_named = times.pop(wanted.name, 0)     # 0: answered already
        try:
            if times_named > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'the topic is named {times_named} times')
            if times_named == 1:
                require(request, Operation.ALTER, ResourceType.TOPIC, wanted.name)
                topic = request.node.topics.topic(wanted.name)
                added += additional_partitions(topic, wanted.count)
                check(topic, wanted, request.node.metadata.node_id)
                counts[wanted.name] = wanted.count
        except KafkaError as error:
            response.results.append(failed(wanted.name, error.code, str(error)))
    check_additional_partitions(added)
    try:
        results = yield from request.node.topics.add_partitions(
            counts, validate_only=body.validate_only, charge=request.charge_mutations(STRICT_SINCE))
    except KafkaError as error:
        results = [error.with_traceback(None)] * len(counts)
    for name, result in zip(counts, results, strict=True):
        response.results.append(failed(name, result.code, str(result)) if isinstance(result, KafkaError)
                                else Result(name=name))
        yield
    return response


def additional_partitions(topic: Topic | None, count: int) -> int:
    """Return how many partitions `count` would add to a topic. The topic is None if it does not exist."""
    return 0 if topic is None else max(0, count - len(topic.partitions))


def check_additional_partitions(added: int) -> None:
    """Raise KafkaError POLICY_VIOLATION if a request adds more partitions than one change of the metadata can hold."""
    if added > MAX_RECORDS:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, 'Excessively large number of additional partitions per request. '
                         f'Found {added}, expected at most {MAX_RECORDS}')


def check(topic: Topic | None, wanted: Any, node_id: int) -> None:
    """Check the requested change of one topic. Raise KafkaError UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS or
    INVALID_REPLICA_ASSIGNMENT."""
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
    check_count(len(wanted.assignments))
    for assignment in wanted.assignments:
        check_replicas(assignment.broker_ids, node_id)


def failed(name: str, code: ErrorCode, message: str) -> Any:
    return Result(name=name, error_code=int(code), error_message=message)


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return CreatePartitionsResponse(results=[failed(topic.name, code, message) for topic in body.topics])


API = Api(ApiKey.CREATE_PARTITIONS, 0, 3, handle, error_response)
