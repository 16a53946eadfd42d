"""Heartbeat (key 12), versions 0-4.

Keeps a member's session alive. The response tells the member of a rebalance with the error REBALANCE_IN_PROGRESS.
Version 3 adds static membership (KIP-345).
"""

from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.request import Api, Request
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import HeartbeatResponse
from kbroker.security.acl_codes import Operation, ResourceType

READ, GROUP = Operation.READ, ResourceType.GROUP


def handle(request: Request, body: Any) -> Any:
    require(request, READ, GROUP, body.group_id)
    request.node.groups.heartbeat(body)
    return HeartbeatResponse()


API = Api(ApiKey.HEARTBEAT, 0, 4, handle)
