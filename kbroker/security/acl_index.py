"""The ACLs, indexed so that the time of a decision does not grow with the number of ACLs.

An ACL has a pattern of resources, a principal and a host. A decision about a resource first finds the patterns that
cover it: its literal name, the literal `*`, and the stored prefixes of its name, which a tree finds. Then it looks up
four pairs in each pattern: the principal or `User:*`, with the host or any host. Each range in use that contains the
host adds two pairs.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.base.object_memory import memory_of
from kbroker.security.acl_codes import WILDCARD, AclFilter, PatternType, Permission, ResourceType
from kbroker.security.hosts import host_key

if TYPE_CHECKING:
    from kbroker.security.acl_patterns import AclsOfPattern, PrefixTree
    from kbroker.security.networks import NetworkSet

EVERY_USER = 'User:*'
RESOURCE_TYPES = tuple(int(kind) for kind in ResourceType if kind > ResourceType.ANY)
ENTRY_BYTES = 1_500
"""The bytes of memory of an ACL, in the index and in the metadata image together, without its strings.

Measured on 64-bit CPython 3.11 with ACLs that all have different patterns and principals.
"""
PREFIX_BYTES = 400
"""The bytes of memory of a stored prefix in the tree, which has at most two nodes per prefix."""
RANGE_BYTES = 300
"""The bytes of memory of a host that is a range, without its text. Measured as ENTRY_BYTES, with different ranges: 205
bytes.
"""

_LITERAL, _PREFIXED = int(PatternType.LITERAL), int(PatternType.PREFIXED)

Entry = Any
"""An AccessControlEntryRecord."""
Pattern = tuple[int, int, str]
"""A pattern of resources: (resource type, pattern type, name)."""

MOST_ACL_BYTES = 256 * 1024 * 1024
"""The largest number of bytes that all ACLs together may use. It suffices for some 150,000 ACLs."""


class Decision(NamedTuple):
    """A decision about an operation. `rule` is its reason: an ACL, or the name of a rule such as SuperUser."""

    allowed: bool
    rule: Entry | str


class AclIndex:
    """All ACLs."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.held_bytes = 0
        self._patterns: dict[Pattern, AclsOfPattern] = {}
        self._owned: dict[tuple[int, str, str], dict[bytes, Entry]] = {}
        """Maps (resource type, principal, host) to {id: entry}."""
        self._prefixes: dict[int, PrefixTree] = {}
        """Maps each resource type to the tree of its patterns of type PREFIXED."""
        self._networks: NetworkSet | None = None
        """The ranges of the hosts, None if no host is a range."""

    def __len__(self) -> int:
        return len(self.entries)

    # -- changes

    def put(self, entry: Entry) -> None:
        """Add an entry. It replaces an entry with the same id."""
        from kbroker.security.acl_patterns import AclsOfPattern, PrefixTree  # no broker without ACLs needs it

        self.remove(entry.id)
        self.entries[entry.id] = entry
        self.held_bytes += size_of(entry)
        pattern, owner = pattern_of(entry), owner_of(entry)
        acls = self._patterns.get(pattern)
        if acls is None:
            acls = self._patterns[pattern] = AclsOfPattern(pattern)
            if entry.pattern_type == PatternType.PREFIXED:
                self._prefixes.setdefault(entry.resource_type, PrefixTree()).put(entry.resource_name, acls)
        acls.put(Decision(entry.permission_type == Permission.ALLOW, entry), owner)
        self._owned.setdefault((entry.resource_type, *owner), {})[entry.id] = entry
        if '/' in entry.host:
            self._add_network(entry.host, owner[1])

    def remove(self, entry_id: bytes) -> None:
        """Remove the entry with this id, if it exists."""
        entry = self.entries.pop(entry_id, None)
        if entry is None:
            return
        self.held_bytes -= size_of(entry)
        pattern, owner = pattern_of(entry), owner_of(entry)
        if self._patterns[pattern].remove(entry, owner):
            del self._patterns[pattern]
            if entry.pattern_type == PatternType.PREFIXED:
                self._prefixes[entry.resource_type].remove(entry.resource_name)
        owned = self._owned[entry.resource_type, *owner]
        del owned[entry_id]
        if not owned:
            del self._owned[entry.resource_type, *owner]
        if '/' in entry.host:
            self._discard_network(entry.host)

    def _add_network(self, host: str, normal_form: str) -> None:
        """Add a host with a slash. If it is not a range, no client is at this host, as in Kafka."""
        from kbroker.security.networks import NetworkSet, find_network  # no broker without ranges needs it
        network = find_network(host)
        if network is not None:
            if self._networks is None:
                self._networks = NetworkSet()
            self._networks.add(network, normal_form)

    def _discard_network(self, host: str) -> None:
        from kbroker.security.networks import find_network
        network = find_network(host)
        if network is not None and self._networks is not None:
            self._networks.discard(network)
            if not self._networks:
                self._networks = None

    # -- lookups

    @property
    def ranges_count(self) -> int:
        """The number of different ranges of hosts."""
        return 0 if self._networks is None else len(self._networks)

    def patterns_of(self, resource_type: int, name: str) -> list[AclsOfPattern]:
        """Return the ACLs of each pattern that covers a resource. An empty name is covered only by `*`."""
        found = [self._patterns.get((resource_type, _LITERAL, name))]
        if name != WILDCARD:
            found.append(self._patterns.get((resource_type, _LITERAL, WILDCARD)))
        covering = [acls for acls in found if acls is not None]
        prefixes = self._prefixes.get(resource_type)
        return covering if prefixes is None else covering + prefixes.covering(name)

    def owners_of(self, principal: str, host: str) -> tuple[tuple[str, str], ...]:
        """Return the (principal, host) pairs whose ACLs apply to a principal at a host, a result of `host_key`."""
        if self._networks is None:
            return (principal, host), (principal, WILDCARD), (EVERY_USER, host), (EVERY_USER, WILDCARD)
        hosts = (host, *self._networks.containing(host), WILDCARD)
        return tuple((who, where) for who in (principal, EVERY_USER) for where in hosts)

    def owned_by(self, resource_type: int, principal: str, host: str) -> Iterator[Entry]:
        """Yield the entries for a resource type that apply to a principal at a host. `host` is a result of
        `host_key`.
        """
        for owner in self.owners_of(principal, host):
            yield from self._owned.get((resource_type, *owner), {}).values()

    def candidates(self, wanted: AclFilter) -> Iterator[Entry]:
        """Yield all entries that match a filter, and possibly entries that do not.

        If the filter names a resource and a principal, only few entries are yielded.
        """
        if wanted.resource_name is None:
            yield from self.entries.values()
            return
        resource_types = RESOURCE_TYPES if wanted.resource_type == ResourceType.ANY else (wanted.resource_type,)
        for resource_type in resource_types:
            for acls in self._patterns_for(wanted, resource_type, wanted.resource_name):
                if wanted.principal is None or wanted.host is None:
                    yield from acls.entries()
                else:
                    yield from acls.entries_of((wanted.principal, host_key(wanted.host)))

    def _patterns_for(self, wanted: AclFilter, resource_type: int, name: str) -> list[AclsOfPattern]:
        if wanted.pattern_type == PatternType.MATCH:
            return self.patterns_of(resource_type, name)
        pattern_types = ((PatternType.LITERAL, PatternType.PREFIXED) if wanted.pattern_type == PatternType.ANY
                         else (wanted.pattern_type,))
        return [acls for pattern_type in pattern_types
                if (acls := self._patterns.get((resource_type, pattern_type, name))) is not None]

    def find_equal(self, entry: Entry) -> Entry | None:
        """Return the stored entry that differs from `entry` only by its id, or None."""
        acls = self._patterns.get(pattern_of(entry))
        if acls is None:
            return None
        identity = identity_of(entry)
        return next((found for found in acls.entries_of(owner_of(entry)) if identity_of(found) == identity), None)


def pattern_of(entry: Entry) -> Pattern:
    return entry.resource_type, entry.pattern_type, entry.resource_name


def owner_of(entry: Entry) -> tuple[str, str]:
    """Return (principal, host) of an entry. The host is converted by `host_key`, so that lookups find it."""
    return entry.principal, host_key(entry.host)


def identity_of(entry: Entry) -> tuple[Any, ...]:
    """Return all fields of an ACL except its id. Two ACLs are equal if these fields are equal."""
    return (entry.resource_type, entry.pattern_type, entry.resource_name, entry.principal, entry.host, entry.operation,
            entry.permission_type)


def size_of(entry: Entry) -> int:
    """Return the approximate memory of an entry in bytes."""
    held_bytes = ENTRY_BYTES + memory_of(entry.resource_name) + memory_of(entry.principal) + memory_of(entry.host)
    if entry.pattern_type == PatternType.PREFIXED:
        held_bytes += PREFIX_BYTES
    return held_bytes + RANGE_BYTES if '/' in entry.host else held_bytes
