"""DescribeCluster (key 60), versions 0-2 (KIP-700): return the one broker, which is also the controller.

From version 1 on, a request asks for brokers or for controllers (KIP-919). kbroker has no controller listener, so it
only describes brokers. From version 2 on, the answer says which brokers are fenced (KIP-1073). This broker never is.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorized_operations import NOT_ASKED, authorized_cluster_operations
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeClusterResponse

BROKERS = 1
CONTROLLERS = 2


def handle(request: Request, body: Any) -> Any:
    node = request.node
    if request.version >= 1 and body.endpoint_type != BROKERS:
        code = (ErrorCode.MISMATCHED_ENDPOINT_TYPE if body.endpoint_type == CONTROLLERS
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)
        raise KafkaError(code, f'endpoint type {BROKERS} (brokers) expected, found {body.endpoint_type}')
    host, port = request.advertised_address
    if node.address_watch is not None:
        node.address_watch.look(request.connection.listener_name, request.client_host)
    node_id = node.metadata.node_id
    return DescribeClusterResponse(
        cluster_id=node.metadata.cluster_id, controller_id=node_id,
        brokers=[DescribeClusterResponse.DescribeClusterBroker(broker_id=node_id, host=host, port=port,
                                                               rack=node.config.broker_rack)],
        cluster_authorized_operations=(
            authorized_cluster_operations(request) if body.include_cluster_authorized_operations else NOT_ASKED))


API = Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, handle)
