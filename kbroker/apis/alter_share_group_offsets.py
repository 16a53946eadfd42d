"""AlterShareGroupOffsets (key 91), version 0 (KIP-932).

Sets the offsets at which a share group starts to read, and discards its acknowledgements. A group that does not exist
is created. A group that has members gets NON_EMPTY_GROUP. The answer is sent when the changes are durable.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.apis.serving.authorization import refusal, require
from kbroker.apis.serving.group_protocols import require_group_protocol
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acl_codes import Operation, ResourceType

NO_TOPIC_ID = bytes(16)

Wanted = dict[str, dict[int, int]]
"""The start offsets as {topic name: {partition: offset}}. If a request names a partition twice, the last offset
counts."""
Errors = Mapping[tuple[bytes, int], KafkaError]


def handle(request: Request, body: Any) -> Steps:
    require_group_protocol(request, 'share')
    require(request, Operation.READ, ResourceType.GROUP, body.group_id)
    pace = Pace()
    wanted: Wanted = {}
    starts: dict[tuple[bytes, int], int] = {}
    refused: dict[str, KafkaError] = {}
    for topic in body.topics:
        if topic.topic_name not in wanted and not request.may(
                Operation.READ, ResourceType.TOPIC, topic.topic_name):
            refused[topic.topic_name] = refusal(ResourceType.TOPIC)
        offsets = wanted.setdefault(topic.topic_name, {})
        found = None if topic.topic_name in refused else request.node.topics.topic(topic.topic_name)
        for partition in topic.partitions:
            index = partition.partition_index
            offsets[index] = partition.start_offset
            if found is not None and 0 <= index < len(found.partitions):
                starts[found.topic_id, index] = partition.start_offset
            if pace.spend():
                yield
        if pace.spend():
            yield

    def done(error: KafkaError | None, errors: Errors) -> None:
        if error is not None:
            request.reply(API.failure(body, error.code, str(error), request.version))
        else:
            request.start_work(respond(request, wanted, refused, starts, errors),
                               lambda _error, response: request.reply(response))

    request.node.groups.share_offsets(body.group_id).alter(body.group_id, starts, Callback(done))


def respond(request: Request, wanted: Wanted, refused: Mapping[str, KafkaError],
            starts: Mapping[tuple[bytes, int], int], errors: Errors) -> Steps:
    pace = Pace()
    response_class = messages.AlterShareGroupOffsetsResponse
    response = response_class()
    unknown = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.message)
    for name, offsets in wanted.items():
        topic = request.node.topics.topic(name)
        topic_id = NO_TOPIC_ID if topic is None or name in refused else topic.topic_id
        answered = response_class.AlterShareGroupOffsetsResponseTopic(
            topic_name=name, topic_id=topic_id)
        response.responses.append(answered)
        for index in offsets:
            place = topic_id, index
            error = errors.get(place) if place in starts else refused.get(name, unknown)
            answered.partitions.append(response_class.AlterShareGroupOffsetsResponsePartition(
                partition_index=index, error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else str(error)))
            if pace.spend():
                yield
        if pace.spend():
            yield
    return response


API = Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, handle)
