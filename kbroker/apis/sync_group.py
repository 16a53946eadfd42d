"""SyncGroup (key 14), versions 0-5.

The request is parked until the leader's assignment is durable. In a stable group, it is answered immediately. Version 3
adds static membership (KIP-345). A request of version 5 must have the type and the name of the group's protocol
(KIP-559). If one of them is missing or wrong, the request gets INCONSISTENT_GROUP_PROTOCOL.
"""

from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.request import Api, Request
from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acl_codes import Operation, ResourceType

READ, GROUP = Operation.READ, ResourceType.GROUP


def handle(request: Request, body: Any) -> None:
    require(request, READ, GROUP, body.group_id)
    if request.version >= 5 and (body.protocol_type is None or body.protocol_name is None):
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, 'version 5 must name the protocol type and the protocol'
        )
    request.node.groups.sync(body, Callback(lambda error, response: request.reply(response)))


API = Api(ApiKey.SYNC_GROUP, 0, 5, handle)
