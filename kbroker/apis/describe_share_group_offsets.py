"""DescribeShareGroupOffsets (key 90), versions 0-1 (KIP-932).

Returns the offset at which a share group starts to read each partition. Version 1 adds the lag: the number of records
from that offset on that no member has finished processing. A request without topics asks for all partitions with share
state. A partition without share state has the start offset -1. So have all partitions of a group that does not exist or
is not a share group. These cases are not errors.
"""
from __future__ import annotations

import contextlib
from typing import Any

from kbroker.apis.serving.authorization import refusal, require
from kbroker.apis.serving.group_protocols import require_group_protocol
from kbroker.apis.serving.long_answers import Pace, ReplyRoom, Steps, counted, distinct_indexes, each, overdue_ms
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.share.group import ShareGroup
from kbroker.group.share.rows import UNKNOWN_OFFSET, ShareKey
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acl_codes import Operation, ResourceType

NO_TOPIC_ID = bytes(16)
DESCRIBE, GROUP, TOPIC = Operation.DESCRIBE, ResourceType.GROUP, ResourceType.TOPIC
UNKNOWN_LAG = -1


def group_row(**fields: Any) -> Any:
    return messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup(**fields)


def topic_row(**fields: Any) -> Any:
    return messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic(**fields)


def partition_row(**fields: Any) -> Any:
    return messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition(**fields)


def handle(request: Request, body: Any) -> Steps:
    require_group_protocol(request, 'share')
    described = Description(request)
    groups = {}
    for group in body.groups:
        groups[group.group_id] = group
        if described.pace.spend():
            yield
    response = messages.DescribeShareGroupOffsetsResponse()
    for group_id, group in groups.items():
        if described.pace.spend():
            yield
        try:
            topics = yield from described.describe(group_id, group.topics)
        except KafkaError as error:
            response.groups.append(failed(group_id, error.code, str(error)))
        else:
            response.groups.append(group_row(group_id=group_id, topics=topics))
    return response


class Description:
    """Creates the descriptions of groups for one answer."""

    def __init__(self, request: Request):
        self._request = request
        self.pace = Pace()
        self._room = ReplyRoom()
        self._overdue_ms = overdue_ms(request)

    def describe(self, group_id: str, named: Any) -> Steps:
        """Return the described topics of a group. Raise KafkaError GROUP_AUTHORIZATION_FAILED or
        COORDINATOR_LOAD_IN_PROGRESS."""
        require(self._request, DESCRIBE, GROUP, group_id)
        self._room.check(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if named is None:
            return (yield from self._initialized(group_id))
        topics = []
        wanted = yield from distinct_indexes(named, 'topic_name', 'partitions', self.pace)
        for name, indexes in wanted.items():
            is_allowed = self._request.may(DESCRIBE, TOPIC, name)
            topics.append((yield from (self._topic(group_id, name, indexes) if is_allowed
                                       else self._refused(name, indexes))))
            if self.pace.spend():
                yield
        return topics

    def _refused(self, name: str, indexes: Any) -> Steps:
        error, response = refusal(TOPIC), topic_row(topic_name=name, topic_id=NO_TOPIC_ID)
        self._room.take(1 + len(indexes), len(name))
        for index in indexes:
            response.partitions.append(partition_row(
                partition_index=index, start_offset=UNKNOWN_OFFSET, error_code=error.code, error_message=str(error)))
            if self.pace.spend():
                yield
        return response

    def _initialized(self, group_id: str) -> Steps:
        """Describe all partitions with share state of the existing topics that the client may describe."""
        try:
            group = self._request.node.groups.describe(group_id, ShareGroup.group_type)
        except KafkaError as error:
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                return []
            raise
        topics = []
        for topic_id, state in group.initialized.items():
            if self._request.node.topics.topic_by_id(topic_id) is not None and (
                    self._request.may(DESCRIBE, TOPIC, state.name, quiet=True)):
                topics.append((yield from self._topic(group_id, state.name, sorted(state.partitions))))
        return topics

    def _topic(self, group_id: str, name: str, indexes: Any) -> Steps:
        topic = self._request.node.topics.topic(name)
        response = topic_row(topic_name=name, topic_id=NO_TOPIC_ID if topic is None else topic.topic_id)
        self._room.take(1 + len(indexes), len(name))
        for index in indexes:
            response.partitions.append((yield from self._partition(group_id, topic, index)))
            if self.pace.spend():
                yield
        return response

    def _partition(self, group_id: str, topic: Any, index: int) -> Steps:
        nothing = partition_row(partition_index=index, start_offset=UNKNOWN_OFFSET)
        if topic is None or not 0 <= index < len(topic.partitions):
            return nothing
        partition = topic.partitions[index]
        with contextlib.suppress(KafkaError):       # without its disk, a lag is that of what can be read
            yield from partition.acknowledged(self._overdue_ms)
        states = self._request.node.share_states
        state = states.summary(ShareKey(group_id, topic.topic_id, index)) if states.is_served else None
        if state is None:
            return nothing
        lag = state.lag(partition.high_watermark)
        return partition_row(partition_index=index, start_offset=state.start_offset,
                             leader_epoch=state.leader_epoch, lag=UNKNOWN_LAG if lag is None else lag)


def failed(group_id: str, code: ErrorCode, message: str) -> Any:
    return group_row(group_id=group_id, error_code=code, error_message=message)


def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Steps:
    pace = Pace()
    names = yield from counted((group.group_id for group in body.groups), pace)
    return messages.DescribeShareGroupOffsetsResponse(groups=(yield from each(
        names, lambda group_id: failed(group_id, code, message), pace)))


API = Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, handle, error_response)
