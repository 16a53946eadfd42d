"""Heartbeat (key 12), versions 0-4.

Keeps a member's session alive and tells it of a rebalance (REBALANCE_IN_PROGRESS). Version 3 brings static membership
(KIP-345).
"""

from __future__ import annotations

from typing import Any

from kbroker.apis.request import Api, Request
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import HeartbeatResponse


def handle(request: Request, body: Any) -> Any:
    request.node.groups.heartbeat(body)
    return HeartbeatResponse()


API = Api(ApiKey.HEARTBEAT, 0, 4, handle)
