"""The state that consumer, share and streams groups have in common: epochs, members, targets and subscriptions.

A member is an immutable value. Only rows change a group. Copying a group therefore costs only copies of a few
dictionaries, however many members are changed in the copy.
"""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from kbroker.base.errors import CorruptLogError
from kbroker.base.lean_dataclasses import dataclass, field, replace
from kbroker.base.object_memory import memory_of
from kbroker.group.group import Group
from kbroker.group.kinds import Row
from kbroker.group.modern.reconcile import Assigned, Key

FIRST_EPOCH = 1
"""The group epoch and the assignment epoch of a group that has no row with these epochs yet."""
NO_ASSIGNMENT_EPOCH = -1
"""The assignment epoch after a tombstone has deleted the row of the assignment epoch."""
GONE_EPOCH = -1
"""The epoch of a member after a tombstone has deleted the row of its assignment."""
LEAVE_FOR_A_WHILE_EPOCH = -2
"""The epoch of a static member that has left temporarily, and the member epoch in the request with which it leaves."""
NEVER_LOOKED = -2**62
MEMBER_BYTES = 1_500
"""The memory in bytes of a member with its deadline and an empty assignment, measured on CPython 3.11 with 64 bits."""
NAME_BYTES = 200
"""The memory of one topic in a subscription, without the topic's name, in bytes."""
PARTITION_BYTES = 250
"""The memory in bytes of one partition of a member: in the member's target, in its assignment and in the index of
owners."""
TOPIC_BYTES = 500
"""The memory of one topic of which a member has partitions, without these partitions, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernMember(Generic[Key]):
    """A member of a modern group: the fields that are the same for every kind of group."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ''
    client_host: str = ''
    names: frozenset[str] = frozenset()
    """The names of the topics that the member subscribes to, without the topics of a regular expression."""
    held: Assigned[Key] = field(default_factory=Assigned)

    @property
    def epoch(self) -> int:
        return self.held.epoch

    @property
    def held_bytes(self) -> int:
        """The memory of the member in bytes, without the names of its topics, which members share."""
        held_bytes = MEMBER_BYTES + sum(map(memory_of, (self.member_id, self.instance_id, self.rack_id, self.client_id,
                                                        self.client_host)))
        for numbers in (self.held.assigned, self.held.pending):
            held_bytes += sum([TOPIC_BYTES + PARTITION_BYTES * len(epochs) for epochs in numbers.values()])
        return held_bytes

    @property
    def may_be_succeeded(self) -> bool:
        """True if another member id that joins with the member's instance id replaces the member."""
        return self.epoch == LEAVE_FOR_A_WHILE_EPOCH

    @property
    def own_session_timeout_ms(self) -> int | None:
        """The session timeout that the member has chosen, in ms. None if the group's timeout applies."""
        return None

    @property
    def revocation_timeout_ms(self) -> int | None:
        """The time in ms within which the member must confirm that it has given up partitions or tasks. None if it need
        not confirm."""
        return None


M = TypeVar('M', bound=ModernMember[Any])
T = TypeVar('T')
"""The type of a member's target: the partitions or tasks that the member should have."""

RowHandler = Callable[[Any, Any, Any], Group | None]


class RowModule(Protocol):
    """The module of one kind of group that makes and reads its rows. Groups and heartbeats of the kind call these
    functions."""

    def member_row(self, group_id: str, member: Any, /) -> Row: ...
    def current_row(self, group_id: str, member_id: str, held: Assigned[Any], /) -> Row: ...
    def target_row(self, group_id: str, member_id: str, target: Any, /) -> Row: ...
    def assignment_epoch_row(self, group_id: str, epoch: int, at_ms: int, /) -> Row: ...
    def member_tombstones(self, group_id: str, member_id: str, /) -> list[Row]: ...

    def read_member(self, member: Any, value: Any, /) -> Any: ...
    def read_current(self, value: Any, /) -> Assigned[Any]: ...
    def read_target(self, value: Any, /) -> Any: ...
    def current_tombstone(self, group_id: str, member_id: str, /) -> Row: ...
    def target_tombstone(self, group_id: str, member_id: str, /) -> Row: ...
    def member_tombstone(self, group_id: str, member_id: str, /) -> Row: ...
    def assignment_epoch_tombstone(self, group_id: str, /) -> Row: ...


class ModernGroup(Group, Generic[M, T]):
    """A group whose members heartbeat to the coordinator, which computes their assignments.

    A subclass declares the class of its members, the module of its rows, and `row_handlers`, which maps the class name
    of a row's key to the function that applies the row. This function is called with the group, the key and the value.
    It returns the group, or None if the row ends the group.
    """

    member_class: ClassVar[type[ModernMember[Any]]]
    rows: ClassVar[RowModule]
    row_handlers: ClassVar[Mapping[str, RowHandler]]
    gives_way_to_classic: ClassVar[bool] = True
    """True if a group without members becomes a classic group when a classic member joins it."""

    def __init__(self, group_id: str):
        super().__init__(group_id, self.group_type)
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assigned_at_ms = 0
        """The wall time in ms at which the targets were computed; 0 if it is not known."""
        self.members: dict[str, M] = {}
        self.targets: dict[str, T] = {}
        self.instances: dict[str, str] = {}
        """Maps the group.instance.id of each static member to its member id."""
        self.subscriptions: dict[frozenset[str], int] = {}
        """Maps each set of topics to the number of members that subscribe to exactly these topics."""
        self.names: dict[str, int] = {}
        """Maps each subscribed topic to the number of different subscriptions that contain it."""
        self.metadata_version = NEVER_LOOKED
        """The version of TopicChanges up to which the group's topics were checked for changes. No row stores it."""
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

    # State

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
        """Return the name of the group's state. It is computed from the group and its members, because no row stores
        it."""

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.names

    def kept_since_ms(self, committed: Any) -> int | None:
        """Return the time of the commit, from which the retention time of the offset counts. The offsets of a topic
        without a subscriber therefore expire even if the group has members."""
        kept_since_ms: int = committed.commit_timestamp_ms
        return kept_since_ms

    # Changes by rows

    @classmethod
    def apply_row(cls, group: Group | None, key: Any, value: Any) -> Group | None:
        """Apply a row of this kind of group, as `kinds.ApplyRow` describes. If the group does not exist or is of
        another kind, a tombstone changes nothing. Raise CorruptLogError if the group is of another kind and the row is
        not a tombstone.
        """
        if isinstance(group, cls):
            return group.apply(key, value)
        if value is None:
            return group
        if group is not None and group.protocol_type is not None:
            raise CorruptLogError(f'found a row of type {key.row_type} of group {key.group_id!r}, which is of type '
                                  f'{group.group_type}')
        return cls(key.group_id).apply(key, value)

    def apply(self, key: Any, value: Any) -> Group | None:
        """Apply a row. Return the group, or None if the row ends the group."""
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
            self.targets[key.member_id] = self.rows.read_target(value)
        return self

    def apply_member(self, key: Any, value: Any) -> Group | None:
        if value is not None:
            self.put_member(key.member_id, self.rows.read_member(self._known(key.member_id), value))
        elif key.member_id in self.members:
            self.put_member(key.member_id, None)
        return self

    def apply_current(self, key: Any, value: Any) -> Group | None:
        if value is not None:
            self.put_member(key.member_id, replace(self._known(key.member_id), held=self.rows.read_current(value)))
        elif key.member_id in self.members:
            held: Assigned[Any] = Assigned(epoch=GONE_EPOCH, previous_epoch=GONE_EPOCH)
            self.put_member(key.member_id, replace(self.members[key.member_id], held=held))
        return self

    def _known(self, member_id: str) -> Any:
        """Return the member with this id, or a new member. The first row of a new member may be of any type."""
        return self.members.get(member_id) or self.member_class(member_id=member_id)

    def tombstones(self) -> list[Row]:
        return list(self.each_tombstone())

    def each_tombstone(self) -> Iterator[Row]:
        """Yield the tombstones of all rows of the group one by one, because a group with members has many rows."""
        for member_id in self.members:
            yield self.rows.current_tombstone(self.group_id, member_id)
        for member_id in self.members:
            yield self.rows.target_tombstone(self.group_id, member_id)
        for member_id in self.targets:
            if member_id not in self.members:
                yield self.rows.target_tombstone(self.group_id, member_id)
        yield self.rows.assignment_epoch_tombstone(self.group_id)
        for member_id in self.members:
            yield self.rows.member_tombstone(self.group_id, member_id)
        yield from self.group_tombstones()

    @abstractmethod
    def group_tombstones(self) -> Iterator[Row]:
        """Yield the tombstones of the group's rows, except the rows of members and of the assignment epoch."""

    def put_member(self, member_id: str, member: M | None) -> None:
        """Add or replace the member with this id, or remove it if `member` is None. Update all indexes of members."""
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
        self.index_member(before, member)

    def index_member(self, before: M | None, after: M | None) -> None:
        """Update the indexes that only this kind of group has, because the member `after` has replaced `before`. If
        `before` is None, the member is new; if `after` is None, it is removed."""

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
        """Count one more subscription to these topics (`sign` is 1) or one less (`sign` is -1)."""
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

    @abstractmethod
    def epoch_rows(self, epoch: int, metadata_hash: int) -> list[Row]:
        """Return the rows that store a new group epoch. `metadata_hash` is the hash of the subscribed topics."""

    def subscription_tombstones(self, gone: list[M]) -> list[Row]:
        """Return the tombstones of the rows that belong only to subscriptions of the members in `gone`."""
        return []

    def names_with(self, before: M | None, after: M | None) -> Iterable[str]:
        """Yield the topics that have a subscriber when the member `after` replaces `before`. If `before` is None, the
        member is new; if `after` is None, it is removed."""
        dropped = before is not None and self.subscriptions[before.names] == 1
        for name, count in self.names.items():
            if count > 1 or not dropped or before is None or name not in before.names or (
                    after is not None and name in after.names):
                yield name
        for name in () if after is None else after.names:
            if name not in self.names:
                yield name


def subscription_bytes(names: Collection[str]) -> int:
    """Return the memory of a subscription to these topics, in bytes. Members that subscribe to the same topics share
    it."""
    return sum(map(memory_of, names)) + NAME_BYTES * len(names)
