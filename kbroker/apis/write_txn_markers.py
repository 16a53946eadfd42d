"""WriteTxnMarkers (key 27), versions 1-2: end transactions on partitions, whatever the coordinator's state of the
transactions. Tools that repair a hanging transaction send this request. This broker's coordinator appends its markers
without it. Version 2 (KIP-1228) adds the transaction version: for TV2, the partition applies the strict epoch rule.
Markers on `__consumer_offsets` are appended like markers on any other topic, and the group coordinator replays them.
The answer is sent when every marker is durable.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kbroker.apis.serving.authorization import may_on_cluster, require
from kbroker.apis.serving.long_answers import Pace, Steps, each_topic
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import WriteTxnMarkersResponse
from kbroker.record.control import encode_end_txn_marker
from kbroker.security.acl_codes import Operation, ResourceType

MarkerResult = WriteTxnMarkersResponse.WritableTxnMarkerResult
TopicResult = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
PartitionResult = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult

MARKER_COST = 8
"""The elements of work that one marker counts for."""


def handle(request: Request, body: Any) -> Steps:
    """Append all markers, a few in each part, and reply when all of them are durable."""
    if not may_on_cluster(request, Operation.ALTER, quiet=True):
        require(request, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    response = WriteTxnMarkersResponse(markers=[])
    unanswered = 1

    def finish(result: Any, error: KafkaError | None) -> None:
        nonlocal unanswered
        if error is not None:
            result.error_code = int(error.code)
        unanswered -= 1
        if unanswered == 0:
            request.reply(response)

    pace = Pace()
    for marker in body.markers:
        marker_result = MarkerResult(producer_id=marker.producer_id, topics=[])
        response.markers.append(marker_result)
        for topic in marker.topics:
            topic_result = TopicResult(name=topic.name, partitions=[])
            marker_result.topics.append(topic_result)
            for index in topic.partition_indexes:
                result = PartitionResult(partition_index=index)
                topic_result.partitions.append(result)
                unanswered += 1
                append(request, marker, topic.name, index, partial(finish, result))
                if pace.spend(MARKER_COST):
                    yield
            if pace.spend():
                yield
        if pace.spend():
            yield
    finish(None, None)


def append(request: Request, marker: Any, topic: str, partition_index: int,
           finish: Callable[[KafkaError | None], None]) -> None:
    """Append one marker. Call `finish` with None when the marker is durable, or with the error if the append fails."""
    if marker.producer_id < 0:
        finish(KafkaError(ErrorCode.INVALID_REQUEST, f'a producer id expected, found {marker.producer_id}'))
        return
    batch = encode_end_txn_marker(
        commit=marker.transaction_result, producer_id=marker.producer_id, producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch, timestamp_ms=request.node.clock.wall_ms())
    try:
        partition = request.node.topics.get(topic, partition_index)
        partition.check_producer_room(marker.producer_id)
        appended = partition.append_batch(batch, transaction_version=marker.transaction_version)
    except KafkaError as error:
        finish(error)
    else:
        partition.when_durable(appended.last_offset + 1, finish)


def error_response(body: Any, code: ErrorCode, _message: str, _version: int) -> Steps:
    pace, markers = Pace(), []
    for marker in body.markers:
        topics = yield from each_topic(
            marker.topics, 'partition_indexes',
            lambda index: PartitionResult(partition_index=index, error_code=int(code)),
            lambda topic, found: TopicResult(name=topic.name, partitions=found), pace)
        markers.append(MarkerResult(producer_id=marker.producer_id, topics=topics))
        if pace.spend():
            yield
    return WriteTxnMarkersResponse(markers=markers)


API = Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, handle, error_response)
