"""OffsetForLeaderEpoch (key 23), versions 2-4: return the end offset of a leader epoch (KIP-101, KIP-320).

The end offset of the current epoch is the log end offset. For an epoch that was never in use, the answer has the
largest epoch below the requested one, with its end offset.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.fetch.fetch import check_leader_epoch
from kbroker.apis.serving.authorization import may_on_cluster
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import OffsetForLeaderEpochResponse
from kbroker.security.acl_codes import Operation, ResourceType

TopicResult = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
EpochEndOffset = OffsetForLeaderEpochResponse.EpochEndOffset


def handle(request: Request, body: Any) -> Steps:
    """Return one result for each partition. If the request names a partition several times, the last entry counts."""
    pace = Pace()
    wanted: dict[str, dict[int, Any]] = {}
    for topic in body.topics:
        partitions = wanted.setdefault(topic.topic, {})
        for partition in topic.partitions:
            partitions[partition.partition] = partition
            if pace.spend():
                yield
        if pace.spend():
            yield
    may_all = may_on_cluster(request, Operation.CLUSTER_ACTION, quiet=True)
    results = []
    for name, partitions in wanted.items():
        is_allowed = may_all or request.may(Operation.DESCRIBE, ResourceType.TOPIC, name)
        results.append(TopicResult(topic=name, partitions=[]))
        for partition in partitions.values():
            results[-1].partitions.append(
                find(request, name, partition) if is_allowed
                else failed(partition.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            if pace.spend():
                yield
        if pace.spend():
            yield
    return OffsetForLeaderEpochResponse(topics=results)


def find(request: Request, topic: str, wanted: Any) -> Any:
    try:
        partition = request.node.topics.get(topic, wanted.partition)
        check_leader_epoch(partition, wanted.current_leader_epoch)
    except KafkaError as error:
        return failed(wanted.partition, error.code)
    epoch, end_offset = partition.end_of_epoch(wanted.leader_epoch)
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)


def failed(partition: int, code: ErrorCode) -> Any:
    return EpochEndOffset(partition=partition, error_code=int(code), leader_epoch=-1, end_offset=-1)


def error_response(body: Any, code: ErrorCode, _message: str, _version: int) -> Any:
    return OffsetForLeaderEpochResponse(topics=[
        TopicResult(topic=topic.topic, partitions=[failed(wanted.partition, code) for wanted in topic.partitions])
        for topic in body.topics])


API = Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, handle, error_response)
