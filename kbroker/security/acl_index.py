"""The ACLs, indexed by what a decision needs, so that its time does not grow with their number.

An ACL concerns a pattern of resources, a principal and a host. A decision looks up the patterns that cover the
resource, and in each of them four pairs: the principal or `User:*`, from the host or from any. The patterns are the
literal name, the literal `*`, and the prefixes of the name. Only prefixes of a length that some ACL has are tried.
"""
from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from kbroker.security.acl_codes import WILDCARD, AclFilter, PatternType, Permission, ResourceType
from kbroker.security.hosts import host_key

EVERY_USER = 'User:*'
RESOURCE_TYPES = tuple(int(kind) for kind in ResourceType if kind > ResourceType.ANY)
ENTRY_BYTES = 1200
"""The memory of an ACL in the index and in the metadata image, besides its strings."""

_LITERAL, _PREFIXED = int(PatternType.LITERAL), int(PatternType.PREFIXED)

Entry = Any
"""An AccessControlEntryRecord."""
Pattern = tuple[int, int, str]
"""Resource type, pattern type and name."""

MOST_ACL_BYTES = 256 * 1024 * 1024
"""The bound on the memory of all ACLs: some 200,000 of them."""


class Decision(NamedTuple):
    """The answer to one question, and the reason: an ACL, or the name of a rule that needs none."""

    allowed: bool
    rule: Entry | str


class Rules:
    """The ACLs of one pattern for one principal from one host."""

    __slots__ = ('_decisions',)

    def __init__(self) -> None:
        self._decisions: dict[tuple[int, int], tuple[Decision, ...]] = {}
        """The decisions by operation and permission: several if hosts are spelled differently."""

    def add(self, entry: Entry) -> None:
        key = entry.operation, entry.permission_type
        decision = Decision(entry.permission_type == Permission.ALLOW, entry)
        self._decisions[key] = (*self._decisions.get(key, ()), decision)

    def remove(self, entry: Entry) -> bool:
        """Remove an entry. Return whether none is left."""
        key = entry.operation, entry.permission_type
        left = tuple(decision for decision in self._decisions[key] if decision.rule is not entry)
        if left:
            self._decisions[key] = left
        else:
            del self._decisions[key]
        return not self._decisions

    def find(self, operations: Iterable[int], permission: int) -> Decision | None:
        """Return the decision of an ACL with one of these operations."""
        for operation in operations:
            found = self._decisions.get((operation, permission))
            if found is not None:
                return found[0]
        return None

    def entries(self) -> Iterator[Entry]:
        return (decision.rule for decisions in self._decisions.values() for decision in decisions)


class AclIndex:
    """All ACLs."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.held_bytes = 0
        self._patterns: dict[Pattern, dict[bytes, Entry]] = {}
        self._rules: dict[tuple[Pattern, str, str], Rules] = {}
        """The rules by pattern, principal and host."""
        self._owned: dict[tuple[int, str, str], dict[bytes, Entry]] = {}
        """The entries by resource type, principal and host."""
        self._lengths: dict[int, dict[int, int]] = {}
        """The number of prefixes of each length, by resource type."""
        self._sorted_lengths: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self.entries)

    # -- changes

    def put(self, entry: Entry) -> None:
        """Add an entry, in place of one with its id."""
        self.remove(entry.id)
        self.entries[entry.id] = entry
        self.held_bytes += size_of(entry)
        pattern = pattern_of(entry)
        if pattern not in self._patterns and entry.pattern_type == PatternType.PREFIXED:
            self._add_length(entry.resource_type, len(entry.resource_name))
        self._patterns.setdefault(pattern, {})[entry.id] = entry
        host = host_key(entry.host)
        self._owned.setdefault((entry.resource_type, entry.principal, host), {})[entry.id] = entry
        rules = self._rules.get((pattern, entry.principal, host))
        if rules is None:
            rules = self._rules[pattern, entry.principal, host] = Rules()
        rules.add(entry)

    def remove(self, entry_id: bytes) -> None:
        """Remove the entry with this id, if there is one."""
        entry = self.entries.pop(entry_id, None)
        if entry is None:
            return
        self.held_bytes -= size_of(entry)
        pattern, host = pattern_of(entry), host_key(entry.host)
        if _discard(self._patterns, pattern, entry_id) and entry.pattern_type == PatternType.PREFIXED:
            self._remove_length(entry.resource_type, len(entry.resource_name))
        _discard(self._owned, (entry.resource_type, entry.principal, host), entry_id)
        if self._rules[pattern, entry.principal, host].remove(entry):
            del self._rules[pattern, entry.principal, host]

    def _add_length(self, resource_type: int, length: int) -> None:
        counts = self._lengths.setdefault(resource_type, {})
        if length not in counts:
            insort(self._sorted_lengths.setdefault(resource_type, []), length)
        counts[length] = counts.get(length, 0) + 1

    def _remove_length(self, resource_type: int, length: int) -> None:
        counts = self._lengths[resource_type]
        counts[length] -= 1
        if not counts[length]:
            del counts[length]
            lengths = self._sorted_lengths[resource_type]
            del lengths[bisect_left(lengths, length)]

    # -- questions

    def patterns_of(self, resource_type: int, name: str) -> Iterator[Pattern]:
        """Yield the patterns with ACLs that cover a resource."""
        patterns = self._patterns
        literal = resource_type, _LITERAL, name
        if literal in patterns:
            yield literal
        wildcard = resource_type, _LITERAL, WILDCARD
        if wildcard in patterns and name != WILDCARD:
            yield wildcard
        for length in self._sorted_lengths.get(resource_type, ()):
            if length > len(name):
                break
            prefix = resource_type, _PREFIXED, name[:length]
            if prefix in patterns:
                yield prefix

    def rules_of(self, pattern: Pattern, principal: str, host: str) -> Iterator[Rules]:
        """Yield the rules of a pattern for a principal at a host, which is spelled by `host_key`."""
        for who in (principal, EVERY_USER):
            for where in (host, WILDCARD):
                rules = self._rules.get((pattern, who, where))
                if rules is not None:
                    yield rules

    def owned_by(self, resource_type: int, principal: str, host: str) -> Iterator[Entry]:
        """Yield the entries of a type of resources for a principal at a host, which is spelled by `host_key`."""
        for who in (principal, EVERY_USER):
            for where in (host, WILDCARD):
                yield from self._owned.get((resource_type, who, where), {}).values()

    def candidates(self, wanted: AclFilter) -> Iterator[Entry]:
        """Yield all entries that match a filter, among others: few, if the filter names resource and principal."""
        if wanted.resource_name is None:
            yield from self.entries.values()
            return
        resource_types = RESOURCE_TYPES if wanted.resource_type == ResourceType.ANY else (wanted.resource_type,)
        for resource_type in resource_types:
            for pattern in self._patterns_for(wanted, resource_type, wanted.resource_name):
                if wanted.principal is None or wanted.host is None:
                    yield from self._patterns.get(pattern, {}).values()
                else:
                    rules = self._rules.get((pattern, wanted.principal, host_key(wanted.host)))
                    if rules is not None:
                        yield from rules.entries()

    def _patterns_for(self, wanted: AclFilter, resource_type: int, name: str) -> Iterable[Pattern]:
        if wanted.pattern_type == PatternType.MATCH:
            return self.patterns_of(resource_type, name)
        pattern_types = ((PatternType.LITERAL, PatternType.PREFIXED) if wanted.pattern_type == PatternType.ANY
                         else (wanted.pattern_type,))
        return [(resource_type, pattern_type, name) for pattern_type in pattern_types]

    def find_equal(self, entry: Entry) -> Entry | None:
        """Return the entry that is equal to `entry` but for its id, or None."""
        rules = self._rules.get((pattern_of(entry), entry.principal, host_key(entry.host)))
        if rules is None:
            return None
        identity = identity_of(entry)
        return next((found for found in rules.entries() if identity_of(found) == identity), None)


def pattern_of(entry: Entry) -> Pattern:
    return entry.resource_type, entry.pattern_type, entry.resource_name


def identity_of(entry: Entry) -> tuple[Any, ...]:
    """Return the fields by which two ACLs are equal: all but the id."""
    return (entry.resource_type, entry.pattern_type, entry.resource_name, entry.principal, entry.host, entry.operation,
            entry.permission_type)


def size_of(entry: Entry) -> int:
    """Return about how many bytes of memory an entry takes."""
    return ENTRY_BYTES + 2 * (len(entry.resource_name) + len(entry.principal) + len(entry.host))


def _discard(table: dict[Any, dict[bytes, Entry]], key: Any, entry_id: bytes) -> bool:
    """Remove an entry from a table of tables. Return whether its table was left empty, and is removed."""
    entries = table[key]
    del entries[entry_id]
    if entries:
        return False
    del table[key]
    return True
