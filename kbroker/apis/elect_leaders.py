"""ElectLeaders (key 43), versions 0-2 (KIP-460).

This node is the only replica and leads all partitions, so no election is ever needed. Answers omit partitions that need
no election. As in Kafka, the answer to a request for all partitions (null) therefore has every topic, but no partition.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, Steps, distinct_indexes, each_topic
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ElectLeadersResponse
from kbroker.security.acl_codes import Operation, ResourceType

TopicResult = ElectLeadersResponse.ReplicaElectionResult
PartitionResult = ElectLeadersResponse.PartitionResult

PREFERRED = 0
UNCLEAN = 1


def handle(request: Request, body: Any) -> Steps:
    require(request, Operation.ALTER, ResourceType.CLUSTER)
    topics = request.node.topics
    if body.election_type not in (PREFERRED, UNCLEAN):
        raise KafkaError(ErrorCode.INVALID_REQUEST,
                         f'election type {PREFERRED} or {UNCLEAN} expected, found {body.election_type}')
    pace = Pace()
    if body.topic_partitions is None:
        every = []
        for topic in topics.topics():
            every.append(TopicResult(topic=topic.name))
            if pace.spend():
                yield
        return ElectLeadersResponse(replica_election_results=every)
    wanted = yield from distinct_indexes(body.topic_partitions, 'topic', 'partitions', pace)
    response = ElectLeadersResponse(replica_election_results=[])
    for name, indexes in wanted.items():
        results = []
        for index in indexes:
            code = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topics.find(name, index) is None
                    else ErrorCode.ELECTION_NOT_NEEDED)
            results.append(PartitionResult(partition_id=index, error_code=int(code), error_message=code.message))
            if pace.spend():
                yield
        response.replica_election_results.append(TopicResult(topic=name, partition_result=results))
        if pace.spend():
            yield
    return response


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Steps:
    results = yield from each_topic(
        body.topic_partitions or [], 'partitions',
        lambda index: PartitionResult(partition_id=index, error_code=int(code), error_message=message),
        lambda topic, found: TopicResult(topic=topic.topic, partition_result=found), Pace())
    return ElectLeadersResponse(error_code=int(code), replica_election_results=results)


API = Api(ApiKey.ELECT_LEADERS, 0, 2, handle, error_response)
