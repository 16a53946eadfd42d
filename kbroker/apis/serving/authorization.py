"""The check of a right by a handler. A missing right becomes the error code of the resource's type (KIP-11)."""
from __future__ import annotations

from kbroker.apis.serving.request import Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.image import ResourceType as ConfigType
from kbroker.security.acl_codes import CLUSTER_NAME, Operation, ResourceType

IDEMPOTENT_WRITE, WRITE = Operation.IDEMPOTENT_WRITE, Operation.WRITE
CLUSTER, TOPIC = ResourceType.CLUSTER, ResourceType.TOPIC
CODES = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

ACL_TYPE_OF_CONFIG: dict[int, ResourceType] = {
    ConfigType.TOPIC: ResourceType.TOPIC,
    ConfigType.GROUP: ResourceType.GROUP,
    ConfigType.BROKER: ResourceType.CLUSTER,
    ConfigType.BROKER_LOGGER: ResourceType.CLUSTER,
    ConfigType.CLIENT_METRICS: ResourceType.CLUSTER,
}
"""The type of the resource whose rights count for the configs of a resource, by the type of the latter."""


def require(request: Request, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> None:
    """Raise KafkaError with the code of the resource's type unless the client may do `operation` with it."""
    if not request.may(operation, resource_type, name):
        raise refusal(resource_type)


def refusal(resource_type: int) -> KafkaError:
    """Return the error of a client without the right to a resource of the type."""
    code = CODES[ResourceType(resource_type)]
    return KafkaError(code, code.message)


def may_on_cluster(request: Request, operation: Operation, quiet: bool = False) -> bool:
    """Return whether the client may do `operation` with the cluster. With `quiet`, a denial is not audited."""
    return request.may(operation, CLUSTER, CLUSTER_NAME, quiet)


def require_on_config(request: Request, operation: Operation, resource_type: int, name: str) -> None:
    """Raise KafkaError unless the client may do `operation` with the configs of a resource.

    The configs of brokers, of their loggers and of client metrics belong to the cluster. The caller refuses a resource
    of a type that does not exist.
    """
    if resource_type in ACL_TYPE_OF_CONFIG:
        acl_type = ACL_TYPE_OF_CONFIG[resource_type]
        require(request, operation, acl_type, CLUSTER_NAME if acl_type is CLUSTER else name)


def require_idempotent_write(request: Request) -> None:
    """Raise KafkaError unless the client may write: to the cluster with a producer id, or to any topic (KIP-679)."""
    if request.access is None or may_on_cluster(request, IDEMPOTENT_WRITE, quiet=True):
        return
    if not request.access.may_by_type(WRITE, TOPIC, request):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message)
