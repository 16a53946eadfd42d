"""ListOffsets (key 2), versions 1-11.

A request asks for an offset by a timestamp. Some timestamps have a special meaning:

- -1: the latest offset (with read_committed, the last stable offset)
- -2: the earliest offset
- -3: the record with the greatest timestamp (from version 7 on, KIP-734)
- -4: the earliest local offset (from version 8 on, KIP-405)
- -5: the latest tiered offset (from version 9 on, KIP-1005)
- -6: the earliest offset that is not uploaded yet (from version 11 on)

This broker has no tiered storage, so the answer to -5 and -6 is always offset -1. Any other timestamp finds the first
record with this or a later timestamp. Only records below the high watermark, or, with read_committed, below the last
stable offset, are found. A partition that is named twice gets one result, INVALID_REQUEST.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.fetch.fetch import check_leader_epoch
from kbroker.apis.serving.long_answers import PART, Pace, Steps, overdue_ms
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ListOffsetsResponse
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.topics.partition import Partition

DESCRIBE, TOPIC = Operation.DESCRIBE, ResourceType.TOPIC
READ_COMMITTED = 1
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
SINCE_VERSION = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9,
                 EARLIEST_PENDING_UPLOAD: 11}
NOTHING = (-1, -1, -1)

TopicResponse = ListOffsetsResponse.ListOffsetsTopicResponse
PartitionResponse = ListOffsetsResponse.ListOffsetsPartitionResponse


def handle(request: Request, body: Any) -> Steps:
    """Look up the offset for each partition. The answer takes all acknowledged records into account, so it waits until
    these records are on the disk."""
    pace = Pace()
    waits_until_ms = overdue_ms(request, body.timeout_ms)
    wanted: dict[str, dict[int, Any]] = {}
    for topic in body.topics:
        partitions = wanted.setdefault(topic.name, {})
        for partition in topic.partitions:
            index = partition.partition_index
            partitions[index] = None if index in partitions else partition
            if pace.spend():
                yield
        if pace.spend():
            yield
    topics = []
    for name, partitions in wanted.items():
        if not partitions:
            continue        # as Kafka
        topics.append(TopicResponse(name=name, partitions=[]))
        is_allowed = request.may(DESCRIBE, TOPIC, name)
        for index, partition in partitions.items():
            topics[-1].partitions.append(failed(index, ErrorCode.TOPIC_AUTHORIZATION_FAILED) if not is_allowed
                                         else failed(index, ErrorCode.INVALID_REQUEST) if partition is None
                                         else (yield from answer(request, name, partition, body.isolation_level,
                                                                 waits_until_ms)))
            # The lookup of any other timestamp reads files, so it counts as more work.
            if pace.spend(1 if partition is None or partition.timestamp in (LATEST, EARLIEST) else PART):
                yield
    return ListOffsetsResponse(topics=topics)


def answer(request: Request, topic: str, wanted: Any, isolation_level: int, waits_until_ms: int) -> Steps:
    try:
        check_timestamp(wanted.timestamp, request.version)
        partition = request.node.topics.get(topic, wanted.partition_index)
        check_leader_epoch(partition, wanted.current_leader_epoch)
        timestamp_ms, offset, leader_epoch = yield from find(request, partition, wanted.timestamp, isolation_level,
                                                             waits_until_ms)
    except KafkaError as error:
        return failed(wanted.partition_index, error.code)
    return PartitionResponse(partition_index=wanted.partition_index, timestamp=timestamp_ms, offset=offset,
                             leader_epoch=leader_epoch)


def check_timestamp(timestamp_ms: int, version: int) -> None:
    """Raise KafkaError UNSUPPORTED_VERSION if the version does not have this special timestamp. As in Kafka, this check
    precedes the lookup of the partition, which may not exist.
    """
    if timestamp_ms < 0 and version < SINCE_VERSION.get(timestamp_ms, version + 1):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f'timestamp {timestamp_ms} is not known in version {version}')


def find(request: Request, partition: Partition, timestamp_ms: int, isolation_level: int,
         waits_until_ms: int) -> Steps:
    """Return (timestamp in ms, offset, leader epoch), each -1 if no record is found. Raise KafkaError REQUEST_TIMED_OUT
    if the request has waited for too long, or the error of a failed read.
    """
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        start = partition.log_start_offset
        return -1, start, partition.epoch_at(start)
    if timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOTHING
    if timestamp_ms == LATEST:
        if partition.high_watermark < partition.acknowledged_offset:
            yield from partition.acknowledged(waits_until_ms)
        return -1, bound_of(partition, isolation_level), partition.leader_epoch
    if not request.is_wanted() or request.node.clock.monotonic_ms() >= waits_until_ms:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, 'the searches of the request take too long')
    searches = request.node.searches
    found = yield from (partition.max_timestamp(searches, waits_until_ms) if timestamp_ms == MAX_TIMESTAMP
                        else partition.offset_for_timestamp(timestamp_ms, searches, waits_until_ms))
    return NOTHING if found is None or found[1] >= bound_of(partition, isolation_level) else found


def bound_of(partition: Partition, isolation_level: int) -> int:
    """Return the offset below which a client may read records at this isolation level."""
    return partition.last_stable_offset if isolation_level == READ_COMMITTED else partition.high_watermark


def failed(partition_index: int, code: ErrorCode) -> Any:
    return PartitionResponse(partition_index=partition_index, error_code=int(code), timestamp=-1, offset=-1)


def error_response(body: Any, code: ErrorCode, _message: str, _version: int) -> Any:
    return ListOffsetsResponse(topics=[
        TopicResponse(name=topic.name, partitions=[failed(wanted.partition_index, code) for wanted in topic.partitions])
        for topic in body.topics])


API = Api(ApiKey.LIST_OFFSETS, 1, 11, handle, error_response, is_slow=True)
