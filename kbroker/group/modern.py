"""The state that groups of all kinds but the classic one have in common: epochs, members, targets, subscriptions.

A member is a frozen value. A group changes by rows only. `copy` costs a few dictionaries, whatever the rows change.
"""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from sys import getsizeof
from typing import Any, ClassVar, Generic, Self, TypeVar

from kbroker.group.group import Group
from kbroker.lean_dataclasses import dataclass

FIRST_EPOCH = 1
"""The epochs of a group that has no rows of its epochs yet."""
NO_ASSIGNMENT_EPOCH = -1
"""The assignment epoch after the tombstone of its row."""
NEVER_LOOKED = -2**62
MEMBER_BYTES = 1_500
"""The memory of a member with its deadline and an empty assignment, as measured on CPython 3.11 with 64 bits."""
NAME_BYTES = 200
"""The memory of one topic in a subscription besides its name."""
PARTITION_BYTES = 250
"""The memory of one partition that a member has: in its target, its assignment and the index of owners."""
TOPIC_BYTES = 500
"""The memory of one topic of which a member has partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernMember:
    """The fields of a member that every kind has."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ''
    client_host: str = ''
    names: frozenset[str] = frozenset()
    """The topics that it names."""

    @property
    def epoch(self) -> int:
        raise NotImplementedError

    @property
    def held_bytes(self) -> int:
        """The memory of the member without its topic names, which members share."""
        return MEMBER_BYTES + sum(map(getsizeof, (self.member_id, self.instance_id, self.rack_id, self.client_id,
                                                  self.client_host)))


M = TypeVar('M', bound=ModernMember)
T = TypeVar('T')
"""The target of a member."""

Result = TypeVar('Result')
Steps = Generator[Any, None, Result]
"""Work in small parts, as `LongWork` runs it."""

Row = tuple[Any, Any]
"""The key of a row and its value, None in a tombstone, as messages."""

RowHandler = Callable[[Any, Any, Any], Group | None]


class ModernGroup(Group, Generic[M, T]):
    """A group whose members heartbeat to the coordinator, which decides about their assignments.

    A kind declares `row_handlers`: the function for each of its rows, by the name of the key's class. It gets the
    group, the key and the value, and returns the group, or None if that ends it.
    """

    row_handlers: ClassVar[Mapping[str, RowHandler]]
    gives_way_to_classic: ClassVar[bool] = True
    """Without members, the group becomes a classic one when a classic member joins."""

    def __init__(self, group_id: str):
        super().__init__(group_id, self.group_type)
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assigned_at_ms = 0
        """The wall time of the target assignment; 0 if it is not known."""
        self.members: dict[str, M] = {}
        self.targets: dict[str, T] = {}
        self.instances: dict[str, str] = {}
        """The member ids of static members, by their group.instance.id."""
        self.subscriptions: dict[frozenset[str], int] = {}
        """The number of members that name exactly these topics."""
        self.names: dict[str, int] = {}
        """The number of different subscriptions that contain a topic, without those that contain none."""
        self.metadata_version = NEVER_LOOKED
        """The version of the TopicChanges up to which the topics were looked at. No row keeps it."""
        self._state_name: str | None = None

    def copy(self) -> Self:
        twin = type(self)(self.group_id)
        twin.epoch = self.epoch
        twin.metadata_hash = self.metadata_hash
        twin.assignment_epoch = self.assignment_epoch
        twin.assigned_at_ms = self.assigned_at_ms
        twin.members = self.members.copy()
        twin.targets = self.targets.copy()
        twin.instances = self.instances.copy()
        twin.subscriptions = self.subscriptions.copy()
        twin.names = self.names.copy()
        twin.metadata_version = self.metadata_version
        twin.hold(self.held_bytes - twin.held_bytes)
        return twin

    # Questions

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state_name(self) -> str:
        if self._state_name is None:
            self._state_name = self.derive_state()
        return self._state_name

    @abstractmethod
    def derive_state(self) -> str:
        """Return the state, which no row keeps."""

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.names

    def kept_since_ms(self, committed: Any) -> int | None:
        """Offsets of topics without a subscriber expire, even while the group has members."""
        kept_since_ms: int = committed.commit_timestamp_ms
        return kept_since_ms

    # Changes, by rows only

    def apply(self, key: Any, value: Any) -> Group | None:
        """Apply a row. Return the group, or None if that ends it."""
        self._state_name = None
        return self.row_handlers[type(key).__name__](self, key, value)

    def apply_epoch(self, _key: Any, value: Any) -> Group | None:
        if value is None:
            return None
        self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
        return self

    def apply_assignment_epoch(self, _key: Any, value: Any) -> Group | None:
        if value is None:
            self.assignment_epoch, self.assigned_at_ms = NO_ASSIGNMENT_EPOCH, 0
        else:
            self.assignment_epoch, self.assigned_at_ms = value.assignment_epoch, value.assignment_timestamp
        return self

    def apply_target(self, key: Any, value: Any) -> Group | None:
        if value is None:
            self.targets.pop(key.member_id, None)
        else:
            self.targets[key.member_id] = self.read_target(value)
        return self

    @abstractmethod
    def read_target(self, value: Any) -> T:
        """Return the target that a row states."""

    def put_member(self, member_id: str, member: M | None) -> None:
        """Set a member; None removes it. All indexes of the members follow."""
        before = self.members.get(member_id)
        if member is before:
            return
        if before is not None and before.instance_id is not None and (
                self.instances.get(before.instance_id) == member_id):
            del self.instances[before.instance_id]
        if member is None:
            self.members.pop(member_id)
        else:
            self.members[member_id] = member
            if member.instance_id is not None:
                self.instances[member.instance_id] = member_id
        names_before = None if before is None else before.names
        names_after = None if member is None else member.names
        if names_before is None or names_after is None or names_before != names_after:
            if names_after is not None:
                self._count_subscription(names_after, 1)
            if names_before is not None:
                self._count_subscription(names_before, -1)
        self.hold((0 if member is None else member.held_bytes) - (0 if before is None else before.held_bytes))

    def _count_subscription(self, names: frozenset[str], sign: int) -> None:
        count = self.subscriptions.get(names, 0)
        if count + sign:
            self.subscriptions[names] = count + sign
        else:
            del self.subscriptions[names]
        if not count or not count + sign:
            self.count_names(names, sign)
            self.hold(sign * subscription_bytes(names))

    def count_names(self, names: Collection[str], sign: int) -> None:
        """Count one subscription to these topics, or count it out."""
        known = self.names
        if sign == 1 and known.keys().isdisjoint(names):
            known.update(dict.fromkeys(names, 1))
            return
        for name in names:
            count = known.get(name, 0) + sign
            if count:
                known[name] = count
            else:
                del known[name]

    def names_with(self, before: M | None, after: M | None) -> Iterable[str]:
        """Yield the topics with a subscription once `after` stands for `before`; None: there is no such member."""
        dropped = before is not None and self.subscriptions[before.names] == 1
        for name, count in self.names.items():
            if count > 1 or not dropped or before is None or name not in before.names or (
                    after is not None and name in after.names):
                yield name
        for name in () if after is None else after.names:
            if name not in self.names:
                yield name


def subscription_bytes(names: frozenset[str]) -> int:
    """Return the memory of a subscription, which the members that name the same topics share."""
    return sum(map(len, names)) + NAME_BYTES * len(names)
