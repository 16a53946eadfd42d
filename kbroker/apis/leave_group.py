"""LeaveGroup (key 13), versions 0-5.

In versions 0-2, one member leaves, and the answer has one error code. From version 3 on, many members can leave, and
the answer has an error code for each member. A request can name static members by group.instance.id (KIP-345). Version
5 adds the client's reason for leaving (KIP-800).
"""

from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import LeaveGroupRequest, LeaveGroupResponse
from kbroker.security.acl_codes import Operation, ResourceType

READ, GROUP = Operation.READ, ResourceType.GROUP


def handle(request: Request, body: Any) -> Steps:
    require(request, READ, GROUP, body.group_id)
    groups = request.node.groups
    if request.version >= 3:
        response = yield from groups.leave(body)
        return response
    alone = LeaveGroupRequest.MemberIdentity(member_id=body.member_id)
    response = yield from groups.leave(LeaveGroupRequest(group_id=body.group_id, members=[alone]))
    return LeaveGroupResponse(error_code=response.members[0].error_code)


API = Api(ApiKey.LEAVE_GROUP, 0, 5, handle)
