"""OffsetDelete (key 47), version 0 (KIP-496).

Deletes committed offsets of a group. A topic to which members of the group are subscribed gets
GROUP_SUBSCRIBED_TO_TOPIC. A group whose members are not consumers gets NON_EMPTY_GROUP. An unknown group gets
GROUP_ID_NOT_FOUND. The answer is sent when the tombstones are durable.
"""

from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Api, Request, answering
from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import OffsetDeleteResponse
from kbroker.security.acl_codes import Operation, ResourceType


def handle(request: Request, body: Any) -> Steps:
    require(request, Operation.DELETE, ResourceType.GROUP, body.group_id)
    topics = request.node.topics
    pace = Pace()
    wanted = []
    indexes: dict[str, dict[int, None]] = {}
    forbidden: set[str] = set()
    for topic in body.topics:
        if topic.name not in indexes and not request.may(Operation.READ, ResourceType.TOPIC, topic.name):
            forbidden.add(topic.name)
        named = indexes.setdefault(topic.name, {})
        for partition in topic.partitions:
            index = partition.partition_index
            if index not in named and topic.name not in forbidden and topics.find(topic.name, index) is not None:
                wanted.append((topic.name, index))
            named[index] = None
            if pace.spend():
                yield
        if pace.spend():
            yield

    def done(error: KafkaError | None, results: dict[tuple[str, int], ErrorCode]) -> None:
        request.start_work(answering(request, body, respond(indexes, forbidden, results)))

    request.node.groups.delete_offsets(body.group_id, wanted, Callback(done))


def respond(indexes: dict[str, dict[int, None]], forbidden: set[str],
            results: dict[tuple[str, int], ErrorCode]) -> Steps:
    """Return the response, in which each partition has one result, however often the request names it."""
    pace = Pace()
    response = OffsetDeleteResponse()
    for name, named in indexes.items():
        missing = (ErrorCode.TOPIC_AUTHORIZATION_FAILED if name in forbidden
                   else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        topic = OffsetDeleteResponse.OffsetDeleteResponseTopic(name=name)
        response.topics.append(topic)
        for index in named:
            topic.partitions.append(OffsetDeleteResponse.OffsetDeleteResponsePartition(
                partition_index=index,
                error_code=results.get((name, index), missing)))
            if pace.spend():
                yield
        if pace.spend():
            yield
    return response


API = Api(ApiKey.OFFSET_DELETE, 0, 0, handle)
