"""ShareGroupDescribe (key 77), version 1 (KIP-932).

A group that does not exist, or is of another type, is GROUP_ID_NOT_FOUND. A group that is named twice is described
once.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.authorization import require
from kbroker.apis.authorized_operations import NOT_ASKED, authorized_operations
from kbroker.apis.group_protocols import require_group_protocol
from kbroker.apis.group_topics import GroupTopics, member_elements
from kbroker.apis.long_answers import Steps
from kbroker.apis.request import Api, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.group.share_group import ShareGroup
from kbroker.group.share_heartbeat import ASSIGNOR
from kbroker.group.share_member_rows import ShareMember
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acl_codes import Operation, ResourceType


def handle(request: Request, body: Any) -> Steps:
    """Describe each group once. When the answer is full, the groups that are left get COORDINATOR_LOAD_IN_PROGRESS:
    clients ask for these again."""
    require_group_protocol(request, 'share')
    groups, topics = [], GroupTopics(request, messages.ShareGroupDescribeResponse)
    for group_id in dict.fromkeys(body.group_ids):
        if topics.pace.spend():
            yield
        try:
            described = yield from describe(request, topics, group_id)
        except KafkaError as error:
            groups.append(failed(group_id, error.code, str(error)))
            continue
        if body.include_authorized_operations:
            described.authorized_operations = authorized_operations(request, ResourceType.GROUP, group_id)
        groups.append(described)
    return messages.ShareGroupDescribeResponse(groups=groups)


def describe(request: Request, topics: GroupTopics, group_id: str) -> Steps:
    """GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED, GROUP_ID_NOT_FOUND, COORDINATOR_LOAD_IN_PROGRESS."""
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


def failed(group_id: str, code: ErrorCode, message: str) -> Any:
    return messages.ShareGroupDescribeResponse.DescribedGroup(
        group_id=group_id, error_code=code, error_message=message, authorized_operations=NOT_ASKED)


def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any:
    return messages.ShareGroupDescribeResponse(
        groups=[failed(group_id, code, message) for group_id in dict.fromkeys(body.group_ids)])


API = Api(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, handle, error_response)
