"""ConsumerGroupDescribe (key 69), versions 0-1 (KIP-848).

In version 1, the answer has the protocol of each member: classic or consumer. A group that does not exist, or is of
another type, gets GROUP_ID_NOT_FOUND. A group that is named twice is described once.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.authorized_operations import NOT_ASKED
from kbroker.apis.serving.group_descriptions import all_failed, describe_each
from kbroker.apis.serving.group_topics import GroupTopics, member_elements
from kbroker.apis.serving.long_answers import Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode
from kbroker.group.consumer.group import ConsumerGroup
from kbroker.group.consumer.member import ConsumerMember
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acl_codes import Operation, ResourceType

CLASSIC, CONSUMER = 0, 1
"""Kafka's codes for the protocol of a member."""


def handle(request: Request, body: Any) -> Steps:
    description = Description(request)
    return describe_each(request, body, 'consumer', messages.ConsumerGroupDescribeResponse, description.pace,
                         description.describe)


class Description:
    """Creates the descriptions of groups for one answer."""

    def __init__(self, request: Request):
        self._request = request
        self._topics = GroupTopics(request, messages.ConsumerGroupDescribeResponse)
        self._room = self._topics.room
        self.pace = self._topics.pace

    def describe(self, group_id: str) -> Steps:
        """Return the description of a group. Raise KafkaError GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED,
        GROUP_ID_NOT_FOUND or COORDINATOR_LOAD_IN_PROGRESS."""
        require(self._request, Operation.DESCRIBE, ResourceType.GROUP, group_id)
        self._room.check(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        groups = self._request.node.groups
        group = groups.describe(group_id, ConsumerGroup.group_type)
        described = messages.ConsumerGroupDescribeResponse.DescribedGroup(
            group_id=group_id, group_state=group.state_name, group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch, assignor_name=groups.consumer_assignor(group),
            authorized_operations=NOT_ASKED)
        for member in list(group.members.values()):
            described.members.append((yield from self._member(group, member)))
            if self.pace.spend(member_elements(len(member.names))):
                yield
        return described

    def _member(self, group: ConsumerGroup, member: ConsumerMember) -> Steps:
        held = member.held
        assigned = {topic_id: sorted({*held.assigned.get(topic_id, ()), *held.pending.get(topic_id, ())})
                    for topic_id in {**held.assigned, **held.pending}}
        target = {topic_id: sorted(partitions)
                  for topic_id, partitions in group.targets.get(member.member_id, {}).items()}
        names = sorted(member.names)
        self._room.take(1 + len(names), sum(map(len, names)))
        return messages.ConsumerGroupDescribeResponse.Member(
            member_id=member.member_id, instance_id=member.instance_id, rack_id=member.rack_id,
            member_epoch=member.epoch, client_id=member.client_id, client_host=member.client_host,
            subscribed_topic_names=names, subscribed_topic_regex=member.regex,
            assignment=(yield from self._topics.assignment(assigned)),
            target_assignment=(yield from self._topics.assignment(target)),
            member_type=CONSUMER if member.classic is None else CLASSIC)


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Steps:
    return all_failed(messages.ConsumerGroupDescribeResponse, body, code, message)


API = Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, handle, error_response)
