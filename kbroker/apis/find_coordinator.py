"""FindCoordinator (key 10), versions 0-6.

In version 0, a key is always a group id. Requests of versions 0-3 have one key, those from version 4 on many keys
(KIP-699). A client that sends version 5 knows the error code TRANSACTION_ABORTABLE (KIP-890), which this API never
returns. Version 6 adds the coordinators of share partitions (KIP-932), whose key is `group:topicId:partition`. This
broker coordinates everything. The first request for a type of coordinator creates the internal topic of that type, so
that the topic exists before the client sends requests to the coordinator. A key that is named twice is answered once.
"""

from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import missing_right, require
from kbroker.apis.serving.long_answers import Pace, Steps, counted, each
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from kbroker.group.share.rows import parse_coordinator_key
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import FindCoordinatorResponse
from kbroker.security.acl_codes import Operation, ResourceType

CLUSTER_ACTION, DESCRIBE = Operation.CLUSTER_ACTION, Operation.DESCRIBE
CLUSTER = ResourceType.CLUSTER
INTERNAL_TOPIC_OF = {0: CONSUMER_OFFSETS, 1: TRANSACTION_STATE, 2: SHARE_GROUP_STATE}
"""Maps each key type to the internal topic of its coordinator. 0: group, 1: transactional.id, 2: share partition."""
RESOURCE_OF = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}
SHARE_PARTITION = 2
VERSION_WITH_SHARE_PARTITIONS = 6
SUCCESS = 'NONE'
"""The error message in successful answers of versions 0-3, as in Kafka. From version 4 on, this message is empty."""


def handle(request: Request, body: Any) -> Steps:
    if body.key_type == SHARE_PARTITION and request.version >= VERSION_WITH_SHARE_PARTITIONS:
        require(request, CLUSTER_ACTION, CLUSTER)
        return (yield from coordinators_of_share_partitions(request, body.coordinator_keys))
    if body.key_type not in RESOURCE_OF:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f'key type 0 (group), 1 (transaction) or, from version '
            f'{VERSION_WITH_SHARE_PARTITIONS} on, 2 (share partition) expected, found {body.key_type}'
        )
    resource_type = RESOURCE_OF[body.key_type]
    if request.version < 4:
        require(request, DESCRIBE, resource_type, body.key)
        return FindCoordinatorResponse(error_message=SUCCESS, **coordinator(request, body.key_type))
    pace = Pace()
    coordinators = []
    found: dict[str, Any] = {}
    for key in (yield from counted(body.coordinator_keys, pace)):
        if request.may(DESCRIBE, resource_type, key):
            found = found or coordinator(request, body.key_type)
            coordinators.append(FindCoordinatorResponse.Coordinator(key=key, **found))
        else:
            right = missing_right(request, DESCRIBE, resource_type, key)
            coordinators.append(failed(key, right.code, str(right)))
        if pace.spend():
            yield
    return FindCoordinatorResponse(coordinators=coordinators)


def coordinators_of_share_partitions(request: Request, keys: list[str]) -> Steps:
    pace = Pace()
    coordinators = []
    found: dict[str, Any] = {}
    for key in (yield from counted(keys, pace)):
        try:
            parse_coordinator_key(key)
        except KafkaError as error:
            coordinators.append(failed(key, error.code, str(error)))
        else:
            found = found or coordinator(request, SHARE_PARTITION)
            coordinators.append(FindCoordinatorResponse.Coordinator(key=key, **found))
        if pace.spend():
            yield
    return FindCoordinatorResponse(coordinators=coordinators)


def coordinator(request: Request, key_type: int) -> dict[str, Any]:
    """Return the fields of the answer that name this broker as the coordinator. Create the coordinator's internal topic
    if it does not exist."""
    node, topic = request.node, INTERNAL_TOPIC_OF[key_type]
    if node.topics.ensure_internal(topic).partitions[0].is_offline:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f'the partitions of {topic} are offline')
    host, port = request.advertised_address
    return {'node_id': node.metadata.node_id, 'host': host, 'port': port}


def failed(key: str, code: ErrorCode, message: str) -> Any:
    return FindCoordinatorResponse.Coordinator(
        key=key, error_code=code, error_message=message, node_id=-1, host='', port=-1)


def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Steps:
    if version < 4:
        return FindCoordinatorResponse(error_code=code, error_message=message, node_id=-1, host='', port=-1)
    return FindCoordinatorResponse(coordinators=(yield from each(
        body.coordinator_keys, lambda key: failed(key, code, message), Pace())))


API = Api(ApiKey.FIND_COORDINATOR, 0, 6, handle, error_response)
