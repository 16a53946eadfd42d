"""ShareGroupHeartbeat (key 76), version 1 (KIP-932).

With this request, a member joins a share group, stays in the group, gets its assignment, or leaves. The client makes
the member id.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.heartbeat_calls import HeartbeatKind, check_given, invalid
from kbroker.apis.serving.idle_heartbeat import HeartbeatHandler
from kbroker.apis.serving.request import Api, Request
from kbroker.group.modern.heartbeat import JOIN_EPOCH, LEAVE_EPOCH
from kbroker.protocol.api_keys import ApiKey

LONGEST_MEMBER_ID = 36
"""The number of characters of a UUID in its usual text form, with hyphens."""


def check(_request: Request, body: Any) -> None:
    """Raise INVALID_REQUEST if fields of the request contradict each other."""
    check_given(MemberId=body.member_id)
    if len(body.member_id) > LONGEST_MEMBER_ID:
        raise invalid(f'found a member id of {len(body.member_id)} characters, expected {LONGEST_MEMBER_ID} at most')
    check_given(GroupId=body.group_id, RackId=body.rack_id)
    if body.member_epoch == JOIN_EPOCH and not body.subscribed_topic_names:
        raise invalid('expected topics of a member that joins, found none')
    if body.member_epoch < LEAVE_EPOCH:
        raise invalid(f'found member epoch {body.member_epoch}, expected {LEAVE_EPOCH} or more')


KIND = HeartbeatKind('share', check)
API = Api(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, HeartbeatHandler(KIND, 'ShareGroupHeartbeatRequest'))
