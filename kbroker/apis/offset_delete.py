"""OffsetDelete (key 47), version 0 (KIP-496).

Deletes a group's offsets of topics that its members do not read (GROUP_SUBSCRIBED_TO_TOPIC); a group with members that
are no consumers is NON_EMPTY_GROUP, an unknown one GROUP_ID_NOT_FOUND. Answered when the tombstones are durable.
"""

from __future__ import annotations

from typing import Any

from kbroker.apis.request import Api, Request
from kbroker.completion import Callback
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import OffsetDeleteResponse


def handle(request: Request, body: Any) -> None:
    topics = request.node.topics
    wanted = [
        (topic.name, partition.partition_index)
        for topic in body.topics
        for partition in topic.partitions
        if topics.find(topic.name, partition.partition_index) is not None
    ]

    def done(error: KafkaError | None, results: dict[tuple[str, int], ErrorCode]) -> None:
        request.reply(
            OffsetDeleteResponse(
                topics=[
                    OffsetDeleteResponse.OffsetDeleteResponseTopic(
                        name=topic.name,
                        partitions=[
                            OffsetDeleteResponse.OffsetDeleteResponsePartition(
                                partition_index=partition.partition_index,
                                error_code=results.get(
                                    (topic.name, partition.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                                ),
                            )
                            for partition in topic.partitions
                        ],
                    )
                    for topic in body.topics
                ]
            )
        )

    request.node.groups.delete_offsets(body.group_id, wanted, Callback(done))


API = Api(ApiKey.OFFSET_DELETE, 0, 0, handle)
