"""ListPartitionReassignments (key 46), version 0 (KIP-455).

The answer is always empty, because partitions of a single node are never reassigned.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ListPartitionReassignmentsResponse as Response
from kbroker.security.acl_codes import Operation, ResourceType


def handle(request: Request, _body: Any) -> Any:
    require(request, Operation.DESCRIBE, ResourceType.CLUSTER)
    return Response(error_message=None)


def error_response(_body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return Response(error_code=int(code), error_message=message)


API = Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, handle, error_response)
