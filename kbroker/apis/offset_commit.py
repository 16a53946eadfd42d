"""OffsetCommit (key 8), versions 2-10.

Answered when the offsets are durable. Versions 2-4 may set a retention of their own; 6 brings leader epochs (KIP-320),
7 static membership (KIP-345), 9 GROUP_ID_NOT_FOUND for a generation of an unknown group (KIP-848); 10 names topics by
id (KIP-848): UNKNOWN_TOPIC_ID. Partitions that do not exist are refused one by one, the others are committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.apis.context import Api, RequestContext
from kbroker.apis.offset_commits import offsets_to_commit
from kbroker.errors import ErrorCode
from kbroker.group.offsets import Commit
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import OffsetCommitResponse


def handle(context: RequestContext, request: Any) -> None:
    topics, by_id = context.broker.topics, context.version >= 10
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def find_topic(topic: Any) -> Any:
        return topics.topic_by_id(topic.topic_id) if by_id else topics.topic(topic.name)

    # Found once: a topic may be deleted while the disk is awaited.
    hosted = [find_topic(topic) for topic in request.topics]

    def done(results: dict[tuple[str, int], ErrorCode]) -> None:
        def error_of(position: int, partition: int) -> ErrorCode:
            topic = hosted[position]
            if topic is None:
                return unknown
            return results.get((topic.name, partition), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

        context.reply(respond(request, error_of))

    offsets = offsets_to_commit(request, hosted)
    if not offsets:
        done({})
        return
    context.broker.groups.commit(
        Commit(
            request.group_id,
            offsets,
            request.generation_id_or_member_epoch,
            request.member_id,
            request.group_instance_id,
            request.retention_time_ms,
        ),
        context.version,
        done,
    )


def respond(request: Any, error_of: Callable[[int, int], ErrorCode]) -> Any:
    """`error_of` is asked with a topic's position in the request and the index of a partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=error_of(position, partition.partition_index),
                    )
                    for partition in topic.partitions
                ],
            )
            for position, topic in enumerate(request.topics)
        ]
    )


def error_response(request: Any, code: ErrorCode, message: str, version: int) -> Any:
    return respond(request, lambda position, partition: code)


API = Api(ApiKey.OFFSET_COMMIT, 2, 10, handle, error_response)
