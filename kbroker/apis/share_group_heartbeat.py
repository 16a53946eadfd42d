"""ShareGroupHeartbeat (key 76), version 1 (KIP-932).

Joins a share group, keeps a member alive, brings its assignment, and leaves the group. Clients make their member ids.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.group_protocols import require_group_protocol
from kbroker.apis.serving.heartbeat_calls import call_of, check_given, invalid, reply_to, with_names
from kbroker.apis.serving.idle_heartbeat import IdleHeartbeatHandler
from kbroker.apis.serving.long_answers import Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.group.modern.heartbeat import JOIN_EPOCH, LEAVE_EPOCH
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acl_codes import Operation, ResourceType

LONGEST_MEMBER_ID = 36
"""The length of a UUID as most libraries write it."""


def handle(request: Request, body: Any) -> Steps | None:
    require_group_protocol(request, 'share')
    require(request, Operation.READ, ResourceType.GROUP, body.group_id)
    return with_names(request, body, submit)


def submit(request: Request, body: Any, names: frozenset[str] | None) -> None:
    check_fields(body)
    request.node.groups.share_heartbeat(call_of(request, body, names), reply_to(request, body))


def check_fields(body: Any) -> None:
    """INVALID_REQUEST."""
    check_given(MemberId=body.member_id)
    if len(body.member_id) > LONGEST_MEMBER_ID:
        raise invalid(f'found a member id of {len(body.member_id)} characters, expected {LONGEST_MEMBER_ID} at most')
    check_given(GroupId=body.group_id, RackId=body.rack_id)
    if body.member_epoch == JOIN_EPOCH and not body.subscribed_topic_names:
        raise invalid('expected topics of a member that joins, found none')
    if body.member_epoch < LEAVE_EPOCH:
        raise invalid(f'found member epoch {body.member_epoch}, expected {LEAVE_EPOCH} or more')


API = Api(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, IdleHeartbeatHandler('share', handle, 'ShareGroupHeartbeatRequest'))
