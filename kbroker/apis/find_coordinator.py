"""FindCoordinator (key 10), versions 0-6.

Version 0 asks for groups only, 1-3 for one key, 4 and later for many (KIP-699). Version 5 lets the client know
TRANSACTION_ABORTABLE (KIP-890), which nothing here answers; version 6 knows share groups (KIP-932), which are not
served: INVALID_REQUEST. This broker coordinates everything; the internal topic of the kind asked for is created at the
first question, so that the coordinator is there when its address is. A key that is named twice is answered once.
"""

from __future__ import annotations

from typing import Any

from kbroker.apis.long_answers import Pace, Steps
from kbroker.apis.request import Api, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import FindCoordinatorResponse

INTERNAL_TOPIC_OF = {0: CONSUMER_OFFSETS, 1: TRANSACTION_STATE}
"""By key type: group, transactional.id."""


def handle(request: Request, body: Any) -> Steps:
    topic = INTERNAL_TOPIC_OF.get(body.key_type)
    if topic is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f'key type 0 (group) or 1 (transaction) expected, found {body.key_type}'
        )
    node = request.node
    if node.topics.ensure_internal(topic).partitions[0].is_offline:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f'the partitions of {topic} are offline')
    host, port = request.advertised_address
    node_id = node.metadata.node_id
    if request.version < 4:
        return FindCoordinatorResponse(node_id=node_id, host=host, port=port)
    pace = Pace()
    coordinators = []
    for key in dict.fromkeys(body.coordinator_keys):
        coordinators.append(FindCoordinatorResponse.Coordinator(key=key, node_id=node_id, host=host, port=port))
        if pace.spend():
            yield
    return FindCoordinatorResponse(coordinators=coordinators)


def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any:
    if version < 4:
        return FindCoordinatorResponse(error_code=code, error_message=message, node_id=-1, host='', port=-1)
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(
                key=key, error_code=code, error_message=message, node_id=-1, host='', port=-1
            )
            for key in body.coordinator_keys
        ]
    )


API = Api(ApiKey.FIND_COORDINATOR, 0, 6, handle, error_response)
