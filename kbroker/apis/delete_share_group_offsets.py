"""DeleteShareGroupOffsets (key 92), version 0 (KIP-932).

Deletes the share state of all partitions of the named topics in a share group, which must not have members. A topic
without share state in the group gets UNKNOWN_TOPIC_OR_PARTITION. As in Apache Kafka, the answer has no topics if the
group has never had a share state. The answer is sent when the changes are durable.
"""
from __future__ import annotations

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


def handle(request: Request, body: Any) -> Steps:
    require_group_protocol(request, 'share')
    require(request, Operation.DELETE, ResourceType.GROUP, body.group_id)
    pace = Pace()
    topic_ids: dict[str, bytes] = {}
    refused: dict[str, KafkaError] = {}
    for topic in body.topics:
        name = topic.topic_name
        if name in topic_ids:
            continue
        topic_ids[name] = NO_TOPIC_ID
        found = request.node.topics.topic(name)
        if not request.may(Operation.READ, ResourceType.TOPIC, name):
            refused[name] = refusal(ResourceType.TOPIC)
        elif found is not None:
            topic_ids[name] = found.topic_id
        if pace.spend():
            yield

    def done(error: KafkaError | None, deleted: frozenset[bytes] | None) -> None:
        if error is not None:
            request.reply(API.failure(body, error.code, str(error), request.version))
        else:
            answered = {name: topic_ids[name] for name in refused} if deleted is None else topic_ids
            request.start_work(respond(answered, refused, deleted or frozenset()),
                               lambda _error, response: request.reply(response))

    request.node.groups.share_offsets(body.group_id).delete(
        body.group_id, frozenset(topic_ids.values()), Callback(done))


def respond(topic_ids: dict[str, bytes], refused: dict[str, KafkaError], deleted: frozenset[bytes]) -> Steps:
    pace = Pace()
    response = messages.DeleteShareGroupOffsetsResponse()
    unknown = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.message)
    for name, topic_id in topic_ids.items():
        error = None if topic_id in deleted else refused.get(name, unknown)
        response.responses.append(messages.DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic(
            topic_name=name, topic_id=topic_id if error is None else NO_TOPIC_ID,
            error_code=ErrorCode.NONE if error is None else error.code,
            error_message=None if error is None else str(error)))
        if pace.spend():
            yield
    return response


API = Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, handle)
