"""ShareGroupDescribe (key 77), version 1 (KIP-932).

A group that does not exist, or is of another type, gets GROUP_ID_NOT_FOUND. A group that is named twice is described
once.
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
from kbroker.group.share.group import ShareGroup
from kbroker.group.share.heartbeat import ASSIGNOR
from kbroker.group.share.member_rows import ShareMember
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acl_codes import Operation, ResourceType


def handle(request: Request, body: Any) -> Steps:
    topics = GroupTopics(request, messages.ShareGroupDescribeResponse)
    return describe_each(request, body, 'share', messages.ShareGroupDescribeResponse, topics.pace,
                         lambda group_id: describe(request, topics, group_id))


def describe(request: Request, topics: GroupTopics, group_id: str) -> Steps:
    """Return the description of a group. Raise KafkaError GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND or COORDINATOR_LOAD_IN_PROGRESS."""
    require(request, Operation.DESCRIBE, ResourceType.GROUP, group_id)
    topics.room.check(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    group = request.node.groups.describe(group_id, ShareGroup.group_type)
    described = messages.ShareGroupDescribeResponse.DescribedGroup(
        group_id=group_id, group_state=group.state_name, group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch, assignor_name=ASSIGNOR, authorized_operations=NOT_ASKED)
    for member in list(group.members.values()):
        described.members.append((yield from describe_member(topics, member)))
        if topics.pace.spend(member_elements(len(member.names))):
            yield
    return described


def describe_member(topics: GroupTopics, member: ShareMember) -> Steps:
    names = sorted(member.names)
    topics.room.take(1 + len(names), sum(map(len, names)))
    return messages.ShareGroupDescribeResponse.Member(
        member_id=member.member_id, rack_id=member.rack_id, member_epoch=member.epoch, client_id=member.client_id,
        client_host=member.client_host, subscribed_topic_names=names,
        assignment=(yield from topics.assignment(
            {topic_id: list(partitions) for topic_id, partitions in member.held.assigned.items()})))


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Steps:
    return all_failed(messages.ShareGroupDescribeResponse, body, code, message)


API = Api(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, handle, error_response)
