"""ACLs in which names such as `topic` replace the codes of requests."""
from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from kbroker.client.code_names import code_named
from kbroker.security.acl_codes import AclFilter, Operation, PatternType, Permission, ResourceType


class Acl(NamedTuple):
    """An ACL, or a filter of ACLs. In a filter, `any` and None match everything.

    The names are those of `kafka-acls`:
    * resource types: topic, group, cluster, transactional_id, delegation_token, user
    * pattern types: literal, prefixed, and match (only in a filter)
    * operations: read, write, all and others
    * permission types: allow, deny

    A code without a name remains a number.
    """

    resource_type: str | int = 'any'
    resource_name: str | None = None
    pattern_type: str | int = 'any'
    principal: str | None = None
    host: str | None = None
    operation: str | int = 'any'
    permission_type: str | int = 'any'


def codes_of(acl: Acl) -> AclFilter:
    """Return the ACL with codes instead of names. Raise ValueError for an unknown name."""
    return AclFilter(_code(ResourceType, acl.resource_type), acl.resource_name, _code(PatternType, acl.pattern_type),
                     acl.principal, acl.host, _code(Operation, acl.operation), _code(Permission, acl.permission_type))


def named(resource_type: int, resource_name: str, pattern_type: int, row: Any) -> Acl:
    """Return the ACL of a row of DescribeAcls or DeleteAcls, with names instead of codes."""
    return Acl(_name(ResourceType, resource_type), resource_name, _name(PatternType, pattern_type), row.principal,
               row.host, _name(Operation, row.operation), _name(Permission, row.permission_type))


def _code(codes: type[IntEnum], value: str | int) -> int:
    return int(value if isinstance(value, int) else code_named(codes, value, 'in an ACL'))


def _name(codes: type[IntEnum], code: int) -> str | int:
    return codes(code).name.lower() if code in codes.__members__.values() else code
