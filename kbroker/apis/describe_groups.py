"""DescribeGroups (key 15), versions 0-6.

Members show their metadata and assignment while the group is stable. A group that does not exist is Dead, without an
error up to version 5, GROUP_ID_NOT_FOUND with a message from version 6 (KIP-1043). Version 3 may ask which operations
the client may do (KIP-430): without an authorizer all that a group has. Version 4 brings group.instance.id.
"""

from __future__ import annotations

from typing import Any

from kbroker.apis.authorized_operations import GROUP, NOT_ASKED
from kbroker.apis.request import Api, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.group.classic import ClassicGroup, GroupState
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeGroupsResponse


def handle(request: Request, body: Any) -> Any:
    return DescribeGroupsResponse(
        groups=[describe(request, group_id, body.include_authorized_operations) for group_id in body.groups]
    )


def describe(request: Request, group_id: str, include_authorized_operations: bool) -> Any:
    try:
        group = request.node.groups.describe(group_id)
    except KafkaError as error:
        missing = error.code is ErrorCode.GROUP_ID_NOT_FOUND
        return DescribeGroupsResponse.DescribedGroup(
            group_id=group_id,
            group_state=GroupState.DEAD.value if missing else '',
            error_message=str(error),
            error_code=ErrorCode.NONE if missing and request.version < 6 else error.code,
        )
    return DescribeGroupsResponse.DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or '',
        protocol_data=group.protocol_name or '' if group.state is GroupState.STABLE else '',
        members=describe_members(group),
        authorized_operations=GROUP if include_authorized_operations else NOT_ASKED,
    )


def describe_members(group: ClassicGroup) -> list[Any]:
    stable = group.state is GroupState.STABLE
    return [
        DescribeGroupsResponse.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol_name) if stable else b'',
            member_assignment=member.assignment if stable else b'',
        )
        for member in group.members.values()
    ]


API = Api(ApiKey.DESCRIBE_GROUPS, 0, 6, handle)
