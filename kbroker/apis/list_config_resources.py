"""ListConfigResources (key 74), versions 0-1 (KIP-1142): list the resources that have a configuration.

Version 0 lists only client metrics. A request of version 1 names the types to list. Without types, it lists all of
them: topics, brokers, broker loggers, client metrics and groups. All existing topics, this broker and its loggers are
listed. Groups and client metrics are listed only if they have configs.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.image import ResourceType
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ListConfigResourcesResponse
from kbroker.security.acl_codes import Operation
from kbroker.security.acl_codes import ResourceType as AclType

ALL = tuple(ResourceType)


def handle(request: Request, body: Any) -> Steps:
    require(request, Operation.DESCRIBE_CONFIGS, AclType.CLUSTER)
    types = (ResourceType.CLIENT_METRICS,) if request.version == 0 else tuple(body.resource_types) or ALL
    for resource_type in types:
        if resource_type not in ALL:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f'resource type {resource_type}, one of {ALL} expected')
    pace = Pace()
    listed = []
    for resource_type in sorted(set(types)):
        for name in names(request, resource_type):
            listed.append(ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=resource_type))
            if pace.spend():
                yield
    return ListConfigResourcesResponse(config_resources=listed)


def names(request: Request, resource_type: int) -> list[str]:
    if resource_type == ResourceType.TOPIC:
        return sorted(topic.name for topic in request.node.topics.topics())
    if resource_type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(request.node.metadata.node_id)]
    return sorted(name for kind, name in request.node.metadata.image.configs if kind == resource_type)


API = Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, handle)
