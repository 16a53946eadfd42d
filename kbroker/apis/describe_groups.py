"""DescribeGroups (key 15), versions 0-6.

The response has the last assignment of each member, and, while the group is stable, the metadata of each member. A
group that does not exist has the state Dead. From version 6 on, its description also has the error GROUP_ID_NOT_FOUND
and a message (KIP-1043). Version 3 adds the operations that the client is authorized to perform (KIP-430), and version
4 adds group.instance.id. A group that the request names twice is described once.
"""

from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.authorized_operations import NOT_ASKED, authorized_operations, decisions_about
from kbroker.apis.serving.long_answers import Pace, ReplyRoom, Steps, counted
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.classic.group import ClassicGroup
from kbroker.group.classic.states import GroupState
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeGroupsResponse
from kbroker.security.acl_codes import Operation, ResourceType


def handle(request: Request, body: Any) -> Steps:
    """Describe each group once. When the response has its maximum size, the remaining groups get
    COORDINATOR_LOAD_IN_PROGRESS, and clients request them again.
    """
    pace, room = Pace(), ReplyRoom()
    groups = []
    for group_id in (yield from counted(body.groups, pace)):
        if pace.spend(decisions_about(ResourceType.GROUP, body.include_authorized_operations)):
            yield
        try:
            require(request, Operation.DESCRIBE, ResourceType.GROUP, group_id)
            room.check(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            group = request.node.groups.describe(group_id, ClassicGroup.group_type)
        except KafkaError as error:
            groups.append(failed(group_id, error, request.version))
            if groups[-1].error_code == ErrorCode.NONE:
                groups[-1].authorized_operations = operations_on(request, body, group_id)
            continue
        members = yield from describe_members(group, pace, room)
        groups.append(DescribeGroupsResponse.DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or '',
            protocol_data=group.protocol_name or '' if group.state is GroupState.STABLE else '',
            members=members,
            authorized_operations=operations_on(request, body, group_id),
        ))
    return DescribeGroupsResponse(groups=groups)


def operations_on(request: Request, body: Any, group_id: str) -> int:
    if not body.include_authorized_operations:
        return NOT_ASKED
    return authorized_operations(request, ResourceType.GROUP, group_id)


def failed(group_id: str, error: KafkaError, version: int) -> Any:
    missing = error.code is ErrorCode.GROUP_ID_NOT_FOUND
    return DescribeGroupsResponse.DescribedGroup(
        group_id=group_id,
        group_state=GroupState.DEAD.value if missing else '',
        error_message=str(error),
        error_code=ErrorCode.NONE if missing and version < 6 else error.code,
    )


def describe_members(group: ClassicGroup, pace: Pace, room: ReplyRoom) -> Steps:
    """Return descriptions of the members that the group has at the time of the call. A generator: members that join or
    leave between its parts do not change the result."""
    described = []
    for member in list(group.members.values()):
        stable = group.state is GroupState.STABLE
        described.append(DescribeGroupsResponse.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol_name) if stable else b'',
            member_assignment=member.assignment,
        ))
        room.take(1, len(described[-1].member_metadata) + len(described[-1].member_assignment))
        if pace.spend():
            yield
    return described


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return DescribeGroupsResponse(groups=[
        DescribeGroupsResponse.DescribedGroup(group_id=group_id, error_code=int(code), error_message=message)
        for group_id in dict.fromkeys(body.groups)])


API = Api(ApiKey.DESCRIBE_GROUPS, 0, 6, handle, error_response)
