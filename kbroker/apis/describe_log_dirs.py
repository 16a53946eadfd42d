"""DescribeLogDirs (key 35), versions 1-5: return the sizes of partitions and of their file system (KIP-827).

A null list of topics asks for all topics. Version 3 adds a top-level error. Version 4 adds the total and usable bytes
of the file system. Version 5 adds whether the directory is cordoned (KIP-1066), which is always false here.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, Steps, distinct_indexes
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeLogDirsResponse
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.topics.partition import Partition

Result = DescribeLogDirsResponse.DescribeLogDirsResult
TopicResult = DescribeLogDirsResponse.DescribeLogDirsTopic
PartitionResult = DescribeLogDirsResponse.DescribeLogDirsPartition


def handle(request: Request, body: Any) -> Steps:
    require(request, Operation.DESCRIBE, ResourceType.CLUSTER)
    node = request.node
    if node.logs.failure is not None:
        return DescribeLogDirsResponse(results=[
            Result(error_code=int(ErrorCode.KAFKA_STORAGE_ERROR), log_dir=node.directory, topics=[])])
    pace = Pace()
    if body.topics is None:
        wanted = node.topics.partitions()
    else:
        named = yield from distinct_indexes(body.topics, 'topic', 'partitions', pace)
        wanted = []
        for topic, indexes in named.items():
            for index in indexes:
                partition = node.topics.find(topic, index)
                if partition is not None:
                    wanted.append(partition)
                if pace.spend():
                    yield
    topics = yield from describe(wanted, pace)
    return DescribeLogDirsResponse(results=[
        Result(log_dir=node.directory, topics=topics, total_bytes=node.fs.total_bytes(node.directory),
               usable_bytes=node.fs.free_bytes(node.directory))])


def describe(partitions: list[Partition], pace: Pace) -> Steps:
    by_topic: dict[str, Any] = {}
    for partition in partitions:
        topic = by_topic.get(partition.topic)
        if topic is None:
            topic = by_topic[partition.topic] = TopicResult(name=partition.topic)
        topic.partitions.append(PartitionResult(partition_index=partition.partition,
                                                partition_size=partition.size_bytes))
        if pace.spend():
            yield
    return list(by_topic.values())


API = Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, handle)
