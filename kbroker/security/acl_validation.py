"""Checks of an ACL before it is written. As in Apache Kafka 4.4, a host is a range of addresses if it contains a slash,
and any text otherwise. Each resource type may have each operation.
"""
from __future__ import annotations

from kbroker.protocol.codec import MAX_STRING_BYTES
from kbroker.security.acl_codes import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from kbroker.security.acl_index import Entry

KINDS = (('resource type', ResourceType), ('pattern type', PatternType), ('operation', Operation),
         ('permission', Permission))
LEAST_OF_A_FILTER = (ResourceType.ANY, PatternType.ANY, Operation.ANY, Permission.ANY)
LEAST_OF_AN_ACL = (ResourceType.TOPIC, PatternType.LITERAL, Operation.ALL, Permission.DENY)


def unknown_code(codes: tuple[int, int, int, int], least: tuple[int, int, int, int]) -> str | None:
    """Return a text about the first code that is not valid, or None. Codes and lower limits are in the order of
    KINDS.
    """
    for (what, kinds), code, low in zip(KINDS, codes, least, strict=True):
        if not low <= code <= max(kinds):
            return f'{what} {int(low)} to {max(kinds).value} expected, found {code}'
    return None


def reason_to_refuse(entry: Entry) -> str | None:
    """Return the reason to refuse an ACL, an AccessControlEntryRecord. Return None if the ACL is valid, except perhaps
    for a range in its host: see `reason_to_refuse_range`.
    """
    reason = unknown_code((entry.resource_type, entry.pattern_type, entry.operation, entry.permission_type),
                          LEAST_OF_AN_ACL)
    if reason is not None:
        return reason
    if entry.resource_type == ResourceType.CLUSTER and entry.resource_name != CLUSTER_NAME:
        return f'the name {CLUSTER_NAME} expected for the cluster, found {entry.resource_name[:80]!r}'
    if not entry.resource_name:
        return 'the name of a resource expected, found an empty one'
    if ':' not in entry.principal:
        return f'a principal TYPE:NAME expected, found {entry.principal[:80]!r}'
    if not entry.host:
        return 'a host expected, * for every host, found an empty one'
    if max(len(text.encode()) for text in (entry.resource_name, entry.principal, entry.host)) > MAX_STRING_BYTES:
        return f'found a text of more than {MAX_STRING_BYTES} bytes'
    return None


def reason_to_refuse_range(host: str) -> str | None:
    """Return the reason to refuse a host with a slash. Return None if the host is a range of addresses."""
    from kbroker.security.networks import parse_network  # no broker without ranges needs it
    try:
        parse_network(host)
    except ValueError as error:
        return f'Invalid CIDR notation {host[:80]!r}: {error}'
    return None
