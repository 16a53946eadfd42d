"""AlterReplicaLogDirs (key 34), versions 1-2 (KIP-113).

There is one log directory, so no partition is ever moved. A request to move a partition to this directory succeeds. A
request for any other path gets LOG_DIR_NOT_FOUND; paths are compared as text. If a request names several directories
for a partition, the last one counts.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import AlterReplicaLogDirsResponse as Response
from kbroker.security.acl_codes import Operation, ResourceType

TopicResult = Response.AlterReplicaLogDirTopicResult
PartitionResult = Response.AlterReplicaLogDirPartitionResult
LONGEST_NAME = 255
FUTURE_SUFFIX_CHARACTERS = len('.' + 32 * 'x' + '-future')
"""The length of the suffix `.ID-future` that Kafka appends to `TOPIC-PARTITION` to name the directory of a partition
that is being moved."""


def handle(request: Request, body: Any) -> Steps:
    require(request, Operation.ALTER, ResourceType.CLUSTER)
    pace = Pace()
    places = yield from wanted_places(body, pace)
    return (yield from answer(places, lambda topic, index, path: code_of(request, topic, index, path), pace))


def wanted_places(body: Any, pace: Pace) -> Steps:
    """Return the wanted paths of a request as {topic: {partition: path}}."""
    places: dict[str, dict[int, str]] = {}
    for directory in body.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                places.setdefault(topic.name, {})[index] = directory.path
                if pace.spend():
                    yield
            if pace.spend():
                yield
    return places


def code_of(request: Request, topic: str, index: int, path: str) -> ErrorCode:
    node = request.node
    if len(f'{topic}-{index}') + FUTURE_SUFFIX_CHARACTERS > LONGEST_NAME:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if path != node.directory:
        return ErrorCode.LOG_DIR_NOT_FOUND
    partition = node.topics.find(topic, index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.KAFKA_STORAGE_ERROR if partition.is_offline else ErrorCode.NONE


def answer(places: dict[str, dict[int, str]], code: Any, pace: Pace) -> Steps:
    results = []
    for topic, partitions in places.items():
        found = []
        for index, path in partitions.items():
            found.append(PartitionResult(partition_index=index, error_code=int(code(topic, index, path))))
            if pace.spend():
                yield
        results.append(TopicResult(topic_name=topic, partitions=found))
    return Response(results=results)


def error_response(body: Any, code: ErrorCode, _message: str, _version: int) -> Steps:
    pace = Pace()
    places = yield from wanted_places(body, pace)
    return (yield from answer(places, lambda *_: code, pace))


API = Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, handle, error_response)
