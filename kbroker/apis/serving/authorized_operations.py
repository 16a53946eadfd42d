"""The operations that a client may do with a resource, as a bit field (KIP-430). Bit n stands for the operation with
the code n."""
from __future__ import annotations

from kbroker.apis.serving.authorization import may_on_cluster
from kbroker.apis.serving.request import Request
from kbroker.security.acl_codes import CLUSTER_NAME, Operation, ResourceType

NOT_ASKED = -(2**31)

CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
OPERATIONS_ON = {
    ResourceType.TOPIC: (Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER,
                         Operation.DESCRIBE, *CONFIGS),
    ResourceType.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE, *CONFIGS),
    ResourceType.CLUSTER: (Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, *CONFIGS,
                           Operation.IDEMPOTENT_WRITE),
}
"""Maps each resource type to the operations that exist for it."""


def decisions_about(resource_type: ResourceType, is_asked: bool = True) -> int:
    """Return for how many elements of work one described resource counts: 1, or, if the client asks for the authorized
    operations, their number."""
    return len(OPERATIONS_ON[resource_type]) if is_asked else 1


def bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


EVERY_BIT = {resource_type: bits(*operations) for resource_type, operations in OPERATIONS_ON.items()}


def authorized_operations(request: Request, resource_type: ResourceType, name: str) -> int:
    """Return the bit field of the operations that the client may do. Without an authorizer, it may do all
    operations."""
    if request.access is None:
        return EVERY_BIT[resource_type]
    return bits(*(operation for operation in OPERATIONS_ON[resource_type]
                  if request.may(operation, resource_type, name, quiet=True)))


def authorized_cluster_operations(request: Request) -> int:
    """Return the bit field of the operations that the client may do with the cluster, or 0 if it may not describe the
    cluster."""
    if not may_on_cluster(request, Operation.DESCRIBE):
        return 0
    return authorized_operations(request, ResourceType.CLUSTER, CLUSTER_NAME)
