"""Describes the assignments of members of consumer and share groups."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.apis.serving.long_answers import Pace, ReplyRoom, Steps
from kbroker.apis.serving.request import Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.security.acl_codes import Operation, ResourceType

MEMBER_ELEMENTS = 4
"""The description of a member without an assignment counts as this many elements of work."""
NAMES_AN_ELEMENT = 8
"""This many topic names of a member count as one element of work, because the names are sorted and counted."""


def member_elements(names: int) -> int:
    """Return for how many elements of work the description of a member with this many topic names counts."""
    return MEMBER_ELEMENTS + names // NAMES_AN_ELEMENT


class GroupTopics:
    """Creates the assignments in one response. `response` is the response's message class, which has the structs
    Assignment and TopicPartitions."""

    def __init__(self, request: Request, response: Any):
        self.pace = Pace()
        self.room = ReplyRoom()
        self._request = request
        self._response = response
        self._may_describe: dict[str, bool] = {}

    def assignment(self, partitions: Mapping[bytes, list[int]]) -> Steps:
        """Return the assignment of `partitions`, which maps topic ids to partition indexes, without deleted topics.
        Raise KafkaError TOPIC_AUTHORIZATION_FAILED if the client may not describe one of the topics."""
        topics = self._request.node.topics
        found = []
        for topic_id, indexes in partitions.items():
            if self.pace.spend(1 + len(indexes) // 8):
                yield
            topic = topics.topic_by_id(topic_id)
            if topic is None:
                continue
            self._check(topic.name)
            self.room.take(1, len(topic.name) + 4 * len(indexes))
            found.append(self._response.TopicPartitions(
                topic_id=topic_id, topic_name=topic.name, partitions=indexes))
        return self._response.Assignment(topic_partitions=found)

    def _check(self, name: str) -> None:
        if name not in self._may_describe:
            self._may_describe[name] = self._request.may(Operation.DESCRIBE, ResourceType.TOPIC, name)
        if not self._may_describe[name]:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                             'The group has described topic(s) that the client is not authorized to describe.')
