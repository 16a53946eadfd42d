"""Decisions by ACLs: Kafka's StandardAuthorizer (KIP-11, KIP-290, KIP-801).

A super user may do everything. For other users, an ACL that denies an operation overrides an ACL that allows it. An ACL
names its resources literally, by `*` or by a prefix. For a resource that no ACL covers, the setting
`allow.everyone.if.no.acl.found` decides.
"""
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from weakref import WeakValueDictionary

from kbroker.base.ledger import Line
from kbroker.security.access import Access, DecisionCaches
from kbroker.security.acl_codes import WILDCARD, Operation, PatternType, Permission
from kbroker.security.acl_index import MOST_ACL_BYTES, AclIndex, Decision, Entry
from kbroker.security.acl_patterns import decide
from kbroker.security.decision_log import DecisionLog
from kbroker.security.hosts import host_key
from kbroker.security.principal import Principal

SUPER_USER = Decision(True, 'SuperUser')
DEFAULT_ALLOW = Decision(True, 'DefaultAllow')
DEFAULT_DENY = Decision(False, 'DefaultDeny')

SOME_NAME = 'hardcode'
"""A stand-in for a resource name. Kafka's authorizer uses it to check access to any resource of a type."""

_IMPLIED_BY = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
_DENIED_BY = {int(operation): (int(operation), int(Operation.ALL)) for operation in Operation}
_ALLOWED_BY = {int(operation): (*_DENIED_BY[operation], *map(int, _IMPLIED_BY.get(operation, ())))
               for operation in Operation}
"""Maps each operation to the operations of the ACLs that allow it, such as DESCRIBE to READ, WRITE and others.
_DENIED_BY does the same for the ACLs that deny it.
"""


class Authorizer:
    """The ACLs of the cluster, and the decisions about access.

    `AclFollower` calls `put` and `remove` with the records of the metadata log. Each change takes effect immediately,
    even for open connections: their `Access` objects drop their stored decisions.
    """

    def __init__(self, super_users: Collection[Principal] = (), allow_if_no_acl: bool = False,
                 log: DecisionLog | None = None):
        self.super_users = frozenset(map(str, super_users))
        self.allow_if_no_acl = allow_if_no_acl
        self.index = AclIndex()
        self.log = DecisionLog() if log is None else log
        self.caches = DecisionCaches(self)
        self.nothing = DEFAULT_DENY
        """The decision for a check without a resource name: denied."""
        self._accesses: WeakValueDictionary[tuple[str, str], Access] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self.index)

    def ledger(self) -> list[Line]:
        return [
            Line('ACLs', 'bytes', lambda: self.index.held_bytes, lambda: MOST_ACL_BYTES, 'fixed'),
            Line('remembered decisions', 'bytes', lambda: self.caches.held_bytes, lambda: self.caches.most_bytes,
                 'the oldest client\'s are forgotten'),
            *self.log.ledger()]

    @property
    def generation(self) -> int:
        """A number that grows with each change of an ACL."""
        return self.caches.generation

    def put(self, entry: Entry) -> None:
        """Add an ACL, given as an AccessControlEntryRecord."""
        self.index.put(entry)
        self.caches.expire()

    def remove(self, entry_id: bytes) -> None:
        """Remove the ACL with this id."""
        self.index.remove(entry_id)
        self.caches.expire()

    def access_of(self, principal: Principal, host: str) -> Access:
        """Return the rights of a principal at a host. All connections of one principal and host share the object."""
        key = str(principal), host_key(host)
        access = self._accesses.get(key)
        if access is None:
            access = self._accesses[key] = Access(self.caches, principal, host)
        return access

    def accesses(self) -> list[Access]:
        """Return the Access objects in use, the oldest first."""
        return list(self._accesses.values())

    # -- decisions

    def decide(self, principal: Principal, host: str, operation: int, resource_type: int, name: str) -> Decision:
        """Return the decision whether the principal may do the operation on one resource."""
        who = str(principal)
        if who in self.super_users:
            return SUPER_USER
        where = host_key(host)
        patterns = self.index.patterns_of(resource_type, name)
        found: Decision | None = decide(patterns, self.index.owners_of(who, where), _DENIED_BY[operation],
                                        _ALLOWED_BY[operation])
        if found is not None:
            return found
        return DEFAULT_ALLOW if self.allow_if_no_acl and not patterns else DEFAULT_DENY

    def decide_by_type(self, principal: Principal, host: str, operation: int, resource_type: int) -> Decision:
        """Return the decision whether the principal may do the operation on at least one resource of the type."""
        decision = self.decide(principal, host, operation, resource_type, SOME_NAME)
        if decision.allowed:
            return decision
        own = [entry for entry in self.index.owned_by(resource_type, str(principal), host_key(host))
               if entry.operation in _DENIED_BY[operation]]
        denied = [entry for entry in own if entry.permission_type == Permission.DENY]
        denied_names = {entry.resource_name: entry for entry in denied if entry.pattern_type == PatternType.LITERAL}
        if WILDCARD in denied_names:
            return Decision(False, denied_names[WILDCARD])
        prefixes = _shortest(entry.resource_name for entry in denied if entry.pattern_type == PatternType.PREFIXED)
        for entry in own:
            if entry.permission_type != Permission.ALLOW:
                continue
            is_literal = entry.pattern_type == PatternType.LITERAL
            if is_literal and entry.resource_name == WILDCARD:
                return Decision(True, entry)
            if not ((is_literal and entry.resource_name in denied_names) or _has_prefix(entry.resource_name, prefixes)):
                return Decision(True, entry)
        return DEFAULT_DENY


def _shortest(prefixes: Iterable[str]) -> list[str]:
    """Return the sorted prefixes, without those that begin with a shorter prefix of the list."""
    found: list[str] = []
    for prefix in sorted(prefixes):
        if not found or not prefix.startswith(found[-1]):
            found.append(prefix)
    return found


def _has_prefix(name: str, prefixes: list[str]) -> bool:
    """Return whether a name begins with one of the prefixes, which are a result of `_shortest`."""
    at = bisect_right(prefixes, name)
    return at > 0 and name.startswith(prefixes[at - 1])
