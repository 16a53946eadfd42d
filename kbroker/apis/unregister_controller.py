"""UnregisterController (key 94), version 0: remove the registration of a controller that has left the cluster.

The only voter is this node. The metadata log of a cluster that shrank to one node still has the registrations of the
controllers that left, and in Apache Kafka a registration that does not support a new `metadata.version` prevents the
upgrade. A removal is one UnregisterControllerRecord, which exists from `metadata.version` 33 on.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.features import CONTROLLERS_UNREGISTERED_SINCE, METADATA_VERSION
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import UnregisterControllerRecord, UnregisterControllerResponse
from kbroker.security.acl_codes import Operation, ResourceType


def handle(request: Request, body: Any) -> Steps:
    metadata = request.node.metadata
    require(request, Operation.ALTER, ResourceType.CLUSTER)
    yield from metadata.commits.turns.take()
    try:
        check(metadata, body.controller_id)
        yield from metadata.commits.write([UnregisterControllerRecord(controller_id=body.controller_id)])
        return UnregisterControllerResponse()
    finally:
        metadata.commits.turns.end()


def check(metadata: Any, controller_id: int) -> None:
    """Raise KafkaError INVALID_REQUEST if the id is this node's, UNSUPPORTED_VERSION if the level of
    `metadata.version` is too low, CONTROLLER_ID_NOT_REGISTERED if no controller with this id is registered. The order
    is Apache Kafka's."""
    if controller_id == metadata.node_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, 'Controller cannot unregister itself while it is active.')
    if metadata.image.finalized_features[METADATA_VERSION] < CONTROLLERS_UNREGISTERED_SINCE:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION,
                         'The current MetadataVersion is too old to support controller unregistration.')
    if controller_id not in metadata.image.controllers:
        raise KafkaError(ErrorCode.CONTROLLER_ID_NOT_REGISTERED,
                         f'Controller ID {controller_id} is not currently registered.')


def error_response(_body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return UnregisterControllerResponse(error_code=int(code), error_message=message)


API = Api(ApiKey.UNREGISTER_CONTROLLER, 0, 0, handle, error_response)
