"""OffsetFetch (key 9), versions 1-10.

- From version 2 on, a request with null topics asks for all offsets of a group. The answer has a top-level error.
- Version 5 adds leader epochs (KIP-320).
- From version 7 on, a request may require stable offsets (KIP-447). If it does, a partition with offsets in an open
  transaction gets UNSTABLE_OFFSET_COMMIT.
- From version 8 on, a request can name many groups (KIP-709).
- From version 9 on, a request can name a member of the consumer protocol (KIP-848).
- In version 10, requests give topics by id (KIP-848). An unknown id gets UNKNOWN_TOPIC_ID.

An unknown group is not an error: all its offsets are -1. A group, topic or partition that a request names twice is
answered once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, ReplyRoom, Steps, add_indexes, distinct_indexes, in_parts
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.commits import NO_TOPIC_ID
from kbroker.group.offset_operations import FetchedOffset
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import OffsetFetchResponse
from kbroker.security.acl_codes import Operation, ResourceType

DESCRIBE = Operation.DESCRIBE
GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
Wanted = dict[Any, dict[int, None]]
"""Maps each topic to its requested partitions. The key is the topic name, or the topic id if the request gives ids."""


def handle(request: Request, body: Any) -> Steps:
    answers = OffsetAnswers(request, body.require_stable)
    if request.version < 8:
        require(request, DESCRIBE, GROUP, body.group_id)
        wanted = None
        if body.topics is not None:
            wanted = yield from distinct_indexes(body.topics, 'name', 'partition_indexes', answers.pace)
        return OffsetFetchResponse(topics=(yield from answers.fetch_topics(body.group_id, wanted)))
    by_group: dict[str, Wanted] = {}
    members: dict[str, tuple[str | None, int]] = {}
    whole = set()
    key = 'topic_id' if answers.by_id else 'name'
    for group in body.groups:
        named = by_group.setdefault(group.group_id, {})
        members.setdefault(group.group_id, (group.member_id, group.member_epoch))
        if group.topics is None:
            whole.add(group.group_id)
        elif group.group_id not in whole:
            yield from add_indexes(named, group.topics, key, 'partition_indexes', answers.pace)
        if answers.pace.spend():
            yield
    groups = []
    for group_id, named in by_group.items():
        groups.append((yield from answers.fetch_group(
            group_id, members[group_id], None if group_id in whole else named)))
    return OffsetFetchResponse(groups=groups)


class OffsetAnswers:
    """Creates the answers for the groups of one request."""

    def __init__(self, request: Request, require_stable: bool):
        self.request = request
        self.node = request.node
        self.require_stable = require_stable
        self.by_id = request.version >= 10
        self.pace = Pace()
        self._room = ReplyRoom()
        self._among_groups = request.version >= 8

    def fetch_group(self, group_id: str, member: tuple[str | None, int], wanted: Wanted | None) -> Steps:
        """Return the answer for one group of a request of version 8 or later. If the group is refused, its answer has
        the error.

        `member` is (id, epoch) of the member that sent the request.

        When the answer has its maximum size, the remaining groups get COORDINATOR_LOAD_IN_PROGRESS, and clients request
        them again.
        """
        if self.pace.spend():
            yield
        try:
            require(self.request, DESCRIBE, GROUP, group_id)
            self._room.check(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            self.node.groups.check_fetch(group_id, *member)
            topics = yield from self.fetch_topics(group_id, wanted)
        except KafkaError as error:
            return OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group_id, error_code=error.code)
        return OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group_id, topics=topics)

    def fetch_topics(self, group_id: str, wanted: Wanted | None) -> Steps:
        """Return the offsets of the `wanted` topics, or, if it is None, of all topics for which the group has
        offsets."""
        if wanted is None:
            return (yield from self._fetch_all(group_id))
        topics = []
        for key, indexes in wanted.items():
            topics.append((yield from self._fetch_topic(group_id, key, list(indexes))))
            if self.pace.spend():
                yield
        return topics

    def _fetch_all(self, group_id: str) -> Steps:
        topics: dict[str, Any] = {}
        forbidden: set[str] = set()
        for keys in in_parts(self.node.groups.offset_keys(group_id)):
            partitions = [(key.topic, key.partition) for key in keys]
            fetched = self.node.groups.fetch_offsets(group_id, partitions, self.require_stable)
            for (name, index), offset in fetched.items():
                if name in forbidden:
                    continue
                if name not in topics:
                    if not self._may_describe(name):
                        forbidden.add(name)
                        continue
                    hosted = self.node.topics.topic(name)
                    topics[name] = self._topic(name, NO_TOPIC_ID if hosted is None else hosted.topic_id)
                topics[name].partitions.append(self._partition(index, offset))
            if self.pace.spend(len(partitions)):
                yield
        # If the answer names topics by id, it omits deleted topics, whose ids are not known.
        return [topic for topic in topics.values() if not self.by_id or topic.topic_id != NO_TOPIC_ID]

    def _fetch_topic(self, group_id: str, key: Any, indexes: Sequence[int]) -> Steps:
        name, refused = key, None
        if self.by_id:
            hosted = self.node.topics.topic_by_id(key)
            name = '' if hosted is None else hosted.name
            refused = FetchedOffset(ErrorCode.UNKNOWN_TOPIC_ID) if hosted is None else None
        if refused is None and not self._may_describe(name):
            refused = FetchedOffset(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        topic = self._topic(name, key if self.by_id else NO_TOPIC_ID)
        for part in in_parts(indexes):
            wanted = [(name, index) for index in part]
            if refused is None:
                fetched = self.node.groups.fetch_offsets(
                    group_id, wanted, self.require_stable, key if self.by_id else NO_TOPIC_ID)
            else:
                fetched = dict.fromkeys(wanted, refused)
            topic.partitions.extend(self._partition(index, fetched[name, index]) for index in part)
            if self.pace.spend(len(part)):
                yield
        return topic

    def _may_describe(self, name: str) -> bool:
        return self.request.may(DESCRIBE, TOPIC, name)

    def _topic(self, name: str, topic_id: bytes) -> Any:
        self._room.take(1, len(name))
        if not self._among_groups:
            return OffsetFetchResponse.OffsetFetchResponseTopic(name=name)
        return OffsetFetchResponse.OffsetFetchResponseTopics(name=name, topic_id=topic_id)

    def _partition(self, index: int, fetched: FetchedOffset) -> Any:
        self._room.take(1, len(fetched.metadata))
        return described(self._among_groups, index, fetched)


def described(among_groups: bool, index: int, fetched: FetchedOffset) -> Any:
    partition_class = (OffsetFetchResponse.OffsetFetchResponsePartitions if among_groups
                       else OffsetFetchResponse.OffsetFetchResponsePartition)
    return partition_class(partition_index=index, committed_offset=fetched.offset,
                           committed_leader_epoch=fetched.leader_epoch, metadata=fetched.metadata,
                           error_code=fetched.error)


def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any:
    """Return the response to a request that failed as a whole. In version 1, which has no top-level error, each
    partition has the error."""
    if version >= 8:
        group_class = OffsetFetchResponse.OffsetFetchResponseGroup
        return OffsetFetchResponse(
            groups=[group_class(group_id=each.group_id, error_code=code) for each in body.groups]
        )
    if version >= 2:
        return OffsetFetchResponse(error_code=code)
    failed = FetchedOffset(code)
    return OffsetFetchResponse(topics=[
        OffsetFetchResponse.OffsetFetchResponseTopic(
            name=topic.name, partitions=[described(False, index, failed) for index in topic.partition_indexes])
        for topic in body.topics or ()])


API = Api(ApiKey.OFFSET_FETCH, 1, 10, handle, error_response)
