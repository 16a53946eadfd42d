"""WriteTxnMarkers (key 27), versions 1-2: end transactions on partitions, whatever the coordinator thinks.

The coordinator here appends its markers itself; this request comes from tools that repair a hanging transaction.
Version 2 (KIP-1228) carries the transaction version, by which the partition applies the strict epoch rule of TV2.
Markers on `__consumer_offsets` are appended like any other: the group coordinator replays what it finds there.
Answered when every marker is durable.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kbroker.apis.request import Api, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import WriteTxnMarkersResponse
from kbroker.record.control import encode_end_txn_marker

MarkerResult = WriteTxnMarkersResponse.WritableTxnMarkerResult
TopicResult = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
PartitionResult = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


def handle(request: Request, body: Any) -> Any:
    """Append every marker first and wait afterwards, so that they share a flush."""
    response = respond(body, ErrorCode.NONE)
    waits: list[Callable[[], None]] = []
    unanswered = 1

    def finish(result: Any, error: KafkaError | None) -> None:
        nonlocal unanswered
        if error is not None:
            result.error_code = int(error.code)
        unanswered -= 1
        if unanswered == 0:
            request.reply(response)

    for marker, marker_result in zip(body.markers, response.markers, strict=True):
        for topic_result in marker_result.topics:
            for result in topic_result.partitions:
                unanswered += 1
                waits.append(append(request, marker, topic_result.name, result.partition_index,
                                    partial(finish, result)))
    for wait in waits:
        wait()
    finish(None, None)
    return None


def append(request: Request, marker: Any, topic: str, partition_index: int,
           finish: Callable[[KafkaError | None], None]) -> Callable[[], None]:
    """Append one marker. Return the function that waits for it."""
    if marker.producer_id < 0:
        error = KafkaError(ErrorCode.INVALID_REQUEST, f'a producer id expected, found {marker.producer_id}')
        return partial(finish, error)
    batch = encode_end_txn_marker(
        commit=marker.transaction_result, producer_id=marker.producer_id, producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch, timestamp_ms=request.node.clock.wall_ms())
    try:
        partition = request.node.topics.get(topic, partition_index)
        appended = partition.append_batch(batch, transaction_version=marker.transaction_version)
    except KafkaError as error:
        return partial(finish, error)
    return partial(partition.when_durable, appended.last_offset + 1, finish)


def respond(body: Any, code: ErrorCode) -> Any:
    return WriteTxnMarkersResponse(markers=[
        MarkerResult(producer_id=marker.producer_id, topics=[
            TopicResult(name=topic.name, partitions=[PartitionResult(partition_index=index, error_code=int(code))
                                                     for index in topic.partition_indexes])
            for topic in marker.topics])
        for marker in body.markers])


def error_response(body: Any, code: ErrorCode, _message: str, _version: int) -> Any:
    return respond(body, code)


API = Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, handle, error_response)
