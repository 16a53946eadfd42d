"""Filters and checks that CreateAcls, DescribeAcls and DeleteAcls share (KIP-140, KIP-290)."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, ReplyRoom, Steps
from kbroker.apis.serving.request import Request
from kbroker.base.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.security.acl_codes import AclFilter, Operation, ResourceType
from kbroker.security.acl_index import Entry

if TYPE_CHECKING:
    from kbroker.security.authorizer import Authorizer


def authorizer_for(request: Request, operation: Operation) -> Authorizer:
    """Return the authorizer. Raise KafkaError CLUSTER_AUTHORIZATION_FAILED if the client may not do `operation` with
    the cluster, or SECURITY_DISABLED if there is no authorizer."""
    require(request, operation, ResourceType.CLUSTER)
    authorizer: Authorizer | None = request.node.authorizer
    if authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, 'access control is off: authorizer.class.name is not set')
    return authorizer


def filter_of(row: Any) -> AclFilter:
    """Return the filter in `row`: a DescribeAcls request, or an element of a DeleteAcls request. Raise ProtocolError if
    one of its codes is 0.
    """
    check_codes(row.resource_type_filter, row.pattern_type_filter, row.operation, row.permission_type)
    return AclFilter(row.resource_type_filter, row.resource_name_filter, row.pattern_type_filter, row.principal_filter,
                     row.host_filter, row.operation, row.permission_type)


def check_codes(*codes: int) -> None:
    """Raise ProtocolError if one of the codes is 0 (UNKNOWN). Kafka does not parse requests with this code."""
    if 0 in codes:
        raise ProtocolError(f'an ACL with the codes {codes}: a code other than 0 expected')


def matching(authorizer: Authorizer, wanted: AclFilter, pace: Pace, room: ReplyRoom) -> Steps:
    """Return the entries that match a filter. Raise KafkaError INVALID_REQUEST if the answer becomes too long.

    If ACLs change during the scan of the candidates, the scan is repeated once, with a copy of the list of candidates.
    """
    generation = authorizer.generation
    found: list[Entry] = []
    string_bytes = 0
    for entry in authorizer.index.candidates(wanted):
        if wanted.matches(entry):
            found.append(entry)
            string_bytes += bytes_of_strings(entry)
        if pace.spend():
            yield
            if authorizer.generation != generation:
                break
    else:
        return checked(found, string_bytes, room)
    found, string_bytes = [], 0
    for entry in list(authorizer.index.candidates(wanted)):
        if wanted.matches(entry):
            found.append(entry)
            string_bytes += bytes_of_strings(entry)
        if pace.spend():
            yield
    return checked(found, string_bytes, room)


def checked(found: list[Entry], string_bytes: int, room: ReplyRoom) -> list[Entry]:
    """Return the entries. Raise KafkaError INVALID_REQUEST if the answer has no room for them."""
    room.take(len(found), string_bytes)
    room.check(ErrorCode.INVALID_REQUEST)
    return found


def bytes_of_strings(entry: Entry) -> int:
    return len(entry.resource_name) + len(entry.principal) + len(entry.host)
