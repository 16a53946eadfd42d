"""StreamsGroupTopologyDescriptionUpdate (key 93), version 0 (KIP-1331): store the description of a topology.

Apache Kafka hands the description to a Java plugin, and has no plugin of its own. kbroker loads no Java classes, so it
answers as Apache Kafka does without a plugin. A client sends a description only after a heartbeat that asks for it.
kbroker's heartbeats never ask.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acl_codes import Operation, ResourceType


def handle(request: Request, body: Any) -> Any:
    require(request, Operation.READ, ResourceType.GROUP, body.group_id)
    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION,
                     'The broker has no streams group topology description plugin configured.')


def error_response(_body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return messages.StreamsGroupTopologyDescriptionUpdateResponse(error_code=int(code), error_message=message)


API = Api(ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0, 0, handle, error_response)
