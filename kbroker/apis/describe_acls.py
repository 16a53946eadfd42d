"""DescribeAcls (key 29), versions 1-3 (KIP-140): return the ACLs that match a filter.

The ACLs are grouped by resource pattern (KIP-290). A filter with an undefined code matches no ACL.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.acls import authorizer_for, filter_of, matching
from kbroker.apis.serving.long_answers import Pace, ReplyRoom, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeAclsResponse
from kbroker.security.acl_codes import Operation
from kbroker.security.acl_index import pattern_of

Resource = DescribeAclsResponse.DescribeAclsResource
Description = DescribeAclsResponse.AclDescription


def handle(request: Request, body: Any) -> Steps:
    wanted = filter_of(body)
    authorizer = authorizer_for(request, Operation.DESCRIBE)
    pace = Pace()
    found = yield from matching(authorizer, wanted, pace, ReplyRoom())
    resources: dict[Any, Any] = {}
    for entry in found:
        pattern = pattern_of(entry)
        resource = resources.get(pattern)
        if resource is None:
            resource = resources[pattern] = Resource(
                resource_type=entry.resource_type, resource_name=entry.resource_name, pattern_type=entry.pattern_type)
        resource.acls.append(Description(
            principal=entry.principal, host=entry.host, operation=entry.operation,
            permission_type=entry.permission_type))
        if pace.spend():
            yield
    return DescribeAclsResponse(error_message='', resources=list(resources.values()))


API = Api(ApiKey.DESCRIBE_ACLS, 1, 3, handle)
