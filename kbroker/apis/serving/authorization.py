"""Checks of a client's rights, for handlers. If a right is missing, the error code depends on the type of the resource
(KIP-11)."""
from __future__ import annotations

from kbroker.apis.serving.request import Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.image import ResourceType as ConfigType
from kbroker.security.acl_codes import CLUSTER_NAME, Operation, ResourceType
from kbroker.security.escape import shown

IDEMPOTENT_WRITE, WRITE = Operation.IDEMPOTENT_WRITE, Operation.WRITE
CLUSTER, TOPIC = ResourceType.CLUSTER, ResourceType.TOPIC
CODES = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
MOST_OF_A_PRINCIPAL = 64
"""The most characters of the client's name in the text of an error. A request may name very many resources, and each
has a text in the response.
"""
WORDS = {TOPIC: 'topic', ResourceType.GROUP: 'group', ResourceType.TRANSACTIONAL_ID: 'transactional id'}

ACL_TYPE_OF_CONFIG: dict[int, ResourceType] = {
    ConfigType.TOPIC: ResourceType.TOPIC,
    ConfigType.GROUP: ResourceType.GROUP,
    ConfigType.BROKER: ResourceType.CLUSTER,
    ConfigType.BROKER_LOGGER: ResourceType.CLUSTER,
    ConfigType.CLIENT_METRICS: ResourceType.CLUSTER,
}
"""Maps each resource type with configs to the resource type whose ACLs control the access to these configs."""


def require(request: Request, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> None:
    """Raise KafkaError unless the client may do `operation` with the resource. The error code depends on
    `resource_type`."""
    if not request.may(operation, resource_type, name):
        raise missing_right(request, operation, resource_type, name)


def missing_right(request: Request, operation: Operation, resource_type: ResourceType, name: str) -> KafkaError:
    """Return the error for a client that lacks a right. Its text names the right, for APIs whose response has a text.

    The text depends on nothing but the request and the client's own name, so it does not show whether the resource
    exists.
    """
    what = 'the cluster' if resource_type is CLUSTER else f'{WORDS[resource_type]} {shown(name)}'
    return KafkaError(CODES[resource_type], f'{_who(request)} needs {operation.name} on {what}')


def _who(request: Request) -> str:
    return shown(str(request.principal), MOST_OF_A_PRINCIPAL)


def refusal(resource_type: int) -> KafkaError:
    """Return the error for a client that lacks a right to a resource of this type."""
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
    """Raise KafkaError unless the client may get a producer id: it needs IDEMPOTENT_WRITE on the cluster, or WRITE on
    any topic (KIP-679)."""
    if request.access is None or may_on_cluster(request, IDEMPOTENT_WRITE, quiet=True):
        return
    if not request.access.may_by_type(WRITE, TOPIC, request):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f'{_who(request)} needs WRITE on a topic, or '
                         'IDEMPOTENT_WRITE on the cluster')
