"""OffsetFetch (key 9), versions 1-10.

Version 2 may ask for all of a group's offsets (null topics) and has an error of the whole; 5 brings leader epochs
(KIP-320); 7 may insist on stable offsets (KIP-447): UNSTABLE_OFFSET_COMMIT while a transaction holds the partition; 8
asks for many groups (KIP-709); 9 names a member of the consumer protocol, 10 topics by id (KIP-848): UNKNOWN_TOPIC_ID.
An unknown group is no error: it has no offsets, -1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kbroker.apis.request import Api, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.group.offsets import FetchedOffset
from kbroker.group.records import NO_TOPIC_ID
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import OffsetFetchResponse


def handle(request: Request, body: Any) -> Any:
    if request.version >= 8:
        groups = [fetch_group(request, group, body.require_stable) for group in body.groups]
        return OffsetFetchResponse(groups=groups)
    fetched = fetch_topics(request, body.group_id, body.topics, body.require_stable)
    return OffsetFetchResponse(topics=[alone(topic) for topic in fetched])


def fetch_group(request: Request, group: Any, require_stable: bool) -> Any:
    """The answer for one group of version 8 and later; what is wrong with one group is no matter of the others."""
    try:
        topics = fetch_topics(request, group.group_id, group.topics, require_stable)
    except KafkaError as error:
        return OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    answers = [among_groups(topic) for topic in topics]
    return OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, topics=answers)


class FetchedTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: list[tuple[int, FetchedOffset]]


def fetch_topics(request: Request, group_id: str, wanted: Any, require_stable: bool) -> list[FetchedTopic]:
    """The topics that a request names, or with None all that the group has offsets of."""
    by_id = request.version >= 10
    if wanted is None:
        found = all_topics(request, group_id, require_stable)
        # A topic that is gone has no id to be named by.
        return [topic for topic in found if not by_id or topic.topic_id != NO_TOPIC_ID]
    return [fetch_topic(request, group_id, topic, by_id, require_stable) for topic in wanted]


def all_topics(request: Request, group_id: str, require_stable: bool) -> list[FetchedTopic]:
    found: dict[str, FetchedTopic] = {}
    for (name, index), offset in request.node.groups.fetch_offsets(group_id, None, require_stable).items():
        if name not in found:
            hosted = request.node.topics.topic(name)
            found[name] = FetchedTopic(name, NO_TOPIC_ID if hosted is None else hosted.topic_id, [])
        found[name].partitions.append((index, offset))
    return list(found.values())


def fetch_topic(request: Request, group_id: str, topic: Any, by_id: bool, require_stable: bool) -> FetchedTopic:
    name = topic.name
    if by_id:
        hosted = request.node.topics.topic_by_id(topic.topic_id)
        if hosted is None:
            unknown = FetchedOffset(ErrorCode.UNKNOWN_TOPIC_ID)
            return FetchedTopic('', topic.topic_id, [(index, unknown) for index in topic.partition_indexes])
        name = hosted.name
    wanted = [(name, index) for index in topic.partition_indexes]
    fetched = request.node.groups.fetch_offsets(group_id, wanted, require_stable)
    topic_id = topic.topic_id if by_id else NO_TOPIC_ID
    return FetchedTopic(name, topic_id, [(partition[1], fetched[partition]) for partition in wanted])


def alone(topic: FetchedTopic) -> Any:
    """A topic in the answer of versions 1-7."""
    partition_class = OffsetFetchResponse.OffsetFetchResponsePartition
    partitions = [answer_partition(partition_class, *partition) for partition in topic.partitions]
    return OffsetFetchResponse.OffsetFetchResponseTopic(name=topic.name, partitions=partitions)


def among_groups(topic: FetchedTopic) -> Any:
    """A topic in the answer of version 8 and later."""
    partition_class = OffsetFetchResponse.OffsetFetchResponsePartitions
    partitions = [answer_partition(partition_class, *partition) for partition in topic.partitions]
    return OffsetFetchResponse.OffsetFetchResponseTopics(
        name=topic.name, topic_id=topic.topic_id, partitions=partitions
    )


def answer_partition(partition_class: Any, index: int, fetched: FetchedOffset) -> Any:
    return partition_class(
        partition_index=index,
        committed_offset=fetched.offset,
        committed_leader_epoch=fetched.leader_epoch,
        metadata=fetched.metadata,
        error_code=fetched.error,
    )


def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any:
    """Version 1 has no error of the whole: each partition carries it."""
    if version >= 8:
        group_class = OffsetFetchResponse.OffsetFetchResponseGroup
        return OffsetFetchResponse(
            groups=[group_class(group_id=each.group_id, error_code=code) for each in body.groups]
        )
    failed = FetchedOffset(code)
    topics = [
        FetchedTopic(topic.name, NO_TOPIC_ID, [(index, failed) for index in topic.partition_indexes])
        for topic in body.topics or ()
    ]
    return OffsetFetchResponse(error_code=code, topics=[alone(topic) for topic in topics])


API = Api(ApiKey.OFFSET_FETCH, 1, 10, handle, error_response)
