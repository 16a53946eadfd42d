"""SyncGroup (key 14), versions 0-5.

Parked until the leader's assignment is durable; a stable group answers at once. Version 3 brings static membership
(KIP-345); 5 must name the protocol type and name that the client believes in (KIP-559): INCONSISTENT_GROUP_PROTOCOL
where they are missing or differ.
"""

from __future__ import annotations

from typing import Any

from kbroker.apis.context import Api, RequestContext
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey


def handle(context: RequestContext, request: Any) -> None:
    if context.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, 'version 5 must name the protocol type and the protocol'
        )
    context.broker.groups.sync(request, context.reply)


API = Api(ApiKey.SYNC_GROUP, 0, 5, handle)
