"""The codes of ACLs in requests and in the metadata log (KIP-133, KIP-290), and filters of ACLs."""
from __future__ import annotations

import enum
from typing import Any, NamedTuple


class ResourceType(enum.IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(enum.IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(enum.IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


def name_of(codes: type[enum.IntEnum], code: int) -> str:
    """Return the name of a code, or the number as a text if the code is unknown."""
    return codes(code).name if code in codes.__members__.values() else str(code)


CLUSTER_NAME = 'kafka-cluster'
"""The name of the only resource of type CLUSTER."""
WILDCARD = '*'
"""The resource name that means every resource, and the host that means every host. `User:*` means every principal."""


class AclFilter(NamedTuple):
    """An ACL, or a filter of ACLs. In a filter, None and the codes ANY match everything."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    def matches(self, entry: Any) -> bool:
        """Return whether an ACL, an AccessControlEntryRecord, matches this filter."""
        return (self.resource_type in (ResourceType.ANY, entry.resource_type)
                and self.matches_pattern(entry.pattern_type, entry.resource_name)
                and (self.principal is None or self.principal == entry.principal)
                and (self.host is None or self.host == entry.host)
                and self.operation in (Operation.ANY, entry.operation)
                and self.permission_type in (Permission.ANY, entry.permission_type))

    def matches_pattern(self, pattern_type: int, name: str) -> bool:
        if self.pattern_type != PatternType.MATCH:
            return (self.pattern_type in (PatternType.ANY, pattern_type)
                    and (self.resource_name is None or self.resource_name == name))
        if self.resource_name is None:
            return True
        if pattern_type == PatternType.PREFIXED:
            return self.resource_name.startswith(name)
        return name in (self.resource_name, WILDCARD)
