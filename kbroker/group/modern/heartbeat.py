"""The heartbeat of a member of a modern group: the same steps for every kind, which a kind fills in.

A heartbeat is an operation of a turn (`turns`). It works on a `Draft`: the group as it is, the one member as it will
be, and the rows that lead there.
"""
from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from kbroker.base.clock import Clock, is_over
from kbroker.base.completion import Callback, Completion
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass, field
from kbroker.base.long_work import Pace
from kbroker.group.deadlines import Deadlines
from kbroker.group.group import Group
from kbroker.group.modern.group import ModernGroup, ModernMember, Row, Steps, subscription_bytes
from kbroker.group.modern.idle_members import SESSION, IdleMembers, next_interval_ms
from kbroker.group.modern.reconcile import State
from kbroker.group.modern.topic_changes import TopicChanges
from kbroker.group.shard import Shard
from kbroker.group.turns import Outcome, Turns

log = logging.getLogger(__name__)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_A_WHILE_EPOCH = -2
"""The epochs with which a member joins, leaves, and leaves to come back (a static member)."""

REBALANCE = 'rebalance'
"""The kind of the deadline that a member has to give something up."""

G = TypeVar('G', bound=ModernGroup[Any, Any])
M = TypeVar('M', bound=ModernMember[Any])


class Call(NamedTuple):
    """A heartbeat as it arrived: the message, the topics that it names (None: as before), and the client.

    `may_describe` asks for the client's right to a topic. `classic` has the assignors of a consumer that speaks the
    classic protocol, else None.
    """

    request: Any
    names: frozenset[str] | None
    client_id: str
    client_host: str
    may_describe: Callable[[str], bool]
    classic: Any = None


class Place(NamedTuple):
    """The parts of a coordinator that the heartbeats of a shard work with."""

    shard: Shard
    turns: Turns
    deadlines: Deadlines
    changes: TopicChanges
    clock: Clock
    config: Any
    group_config: Callable[[str], Any]
    """Returns the GroupConfig of a group."""


@dataclass(slots=True)
class Draft(Generic[G, M]):
    """A group with one member changed, while the operation works on it.

    `before` is the member as the group has it, None if it is new. `origin` is the same, unless `member` replaces a
    static member: then it is that member under its new id. `member` is the member as it will be.
    """

    group: G
    before: M | None
    origin: M
    member: M
    epoch: int
    assignment_epoch: int
    metadata_hash: int
    now_ms: int
    rows: list[Row] = field(default_factory=list)
    targets: dict[str, Any] | None = None
    """The new target of every member; None while the stored ones count."""

    def target(self) -> Any:
        """Return the target of the member, None if it has none."""
        if self.targets is not None:
            return self.targets.get(self.member.member_id)
        return self.group.targets.get(self.stored_id)

    @property
    def stored_id(self) -> str:
        """The id under which the group has the member."""
        return self.member.member_id if self.before is None else self.before.member_id

    def members(self) -> Iterable[M]:
        """Return all members as they will be. A static member may come back under the id of another, which ends."""
        for member_id, member in self.group.members.items():
            if member_id == self.stored_id:
                yield self.member
            elif member_id != self.member.member_id:
                yield member
        if self.before is None:
            yield self.member

    def stored_target(self, member_id: str) -> Any:
        """Return the stored target of a member, by the id that it will have; None if it has none."""
        return self.group.targets.get(self.stored_id if member_id == self.member.member_id else member_id)

    def has_target(self, member_id: str, target: Any) -> bool:
        """Return whether the row of this target is stored. Under a new id, no member has one yet, as in Kafka."""
        return target == self.stored_target(member_id) == self.group.targets.get(member_id)  # type: ignore[no-any-return]


class Heartbeats(ABC, Generic[G, M]):
    """The heartbeats of one kind of group in a shard: `beat` has the steps. A kind fills in the abstract methods.

    `rows` has the functions that make the kind's rows: `member_row`, `current_row`, `target_row`,
    `assignment_epoch_row` and `member_tombstones`.
    """

    group_class: ClassVar[type[ModernGroup[Any, Any]]]
    draft_class: ClassVar[Any] = Draft
    rows: ClassVar[Any]

    def __init__(self, place: Place):
        self.place = place
        self.idle_members = IdleMembers(self)

    def is_idle(self, group: G, member: M) -> bool:
        """Return whether a bare heartbeat of a member with its whole target changes nothing.

        `IdleMembers` has checked what all kinds have in common.
        """
        return False

    def heartbeat(self, call: Call, done: Completion) -> None:
        """Serve a heartbeat of any epoch. `done` completes with the response."""
        self.place.turns.submit(call.request.group_id, partial(self.serve, call), done)

    def serve(self, call: Call, group: Group | None) -> Steps[Outcome] | Outcome:
        epoch = call.request.member_epoch
        if epoch in (LEAVE_EPOCH, LEAVE_FOR_A_WHILE_EPOCH):
            return self.leave(call, group)
        return self.beat(call, group)

    # The heartbeat, step by step

    def beat(self, call: Call, found: Group | None) -> Steps[Outcome]:
        """Serve a member that joins or lives: an operation."""
        request, now_ms = call.request, self.place.clock.wall_ms()
        group, rows = self.find_group(request, found)
        self.check_size(group, request)
        before = self.find_member(group, call)
        if before is not None:
            self.check_epoch(before, request)
        origin = self.origin_of(before, call)
        draft = self.draft_class(group, before, origin, self.updated(origin, call), group.epoch,
                                 group.assignment_epoch, group.metadata_hash, now_ms, rows)
        if before is not None and origin is not before:
            self.replace_member(draft)
        if draft.member is not origin:
            self.check_memory(draft)
            rows.append(self.rows.member_row(group.group_id, draft.member))
        version = self.place.changes.version
        subscription_bumps = yield from self.change_subscription(draft, call)
        if subscription_bumps or self.is_due(group):
            yield from self.bump(draft, subscription_bumps)
        if draft.assignment_epoch < draft.epoch and self.may_assign(group, now_ms):
            yield from self.assign(draft)
        yield from self.reconcile(draft, call)
        yield from self.finish(draft)
        return Outcome(rows, self.reply(draft, call), partial(self.after_beat, draft, call, version))

    def find_group(self, request: Any, found: Group | None) -> tuple[G, list[Row]]:
        """Return the group and the rows that make room for it. GROUP_ID_NOT_FOUND.

        A member that joins creates the group, also in place of a classic one without members.
        """
        rows: list[Row] = []
        if isinstance(found, self.group_class):
            return found, rows      # type: ignore[return-value]
        if request.member_epoch != JOIN_EPOCH or not (found is None or self.may_replace(found)):
            raise not_found(request.group_id)
        if found is not None:
            rows += found.tombstones()
        return self.group_class(request.group_id), rows     # type: ignore[return-value]

    def may_replace(self, found: Group) -> bool:
        """Return whether a group of another kind gives way to one of this kind."""
        return False

    def check_size(self, group: G, request: Any) -> None:
        """Raise GROUP_MAX_SIZE_REACHED for a member that a full group does not know."""
        if len(group.members) >= self.max_size() and request.member_id not in group.members and (
                getattr(request, 'instance_id', None) not in group.instances):
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED,
                             f'group {group.group_id} has {len(group.members)} members')

    @abstractmethod
    def max_size(self) -> int:
        """Return the most members of a group."""

    def find_member(self, group: G, call: Call) -> M | None:
        """Return the member of the request, None for a new one. UNKNOWN_MEMBER_ID, and errors of static members."""
        member = group.members.get(call.request.member_id)
        if member is None and call.request.member_epoch != JOIN_EPOCH:
            raise unknown_member(group, call.request.member_id)
        return member

    @abstractmethod
    def check_epoch(self, member: M, request: Any) -> None:
        """Raise FENCED_MEMBER_EPOCH unless the member may come with the epoch of its request."""

    @abstractmethod
    def origin_of(self, before: M | None, call: Call) -> M:
        """Return the member under the id of the request: `before`, its successor, or a new one."""

    @abstractmethod
    def updated(self, origin: M, call: Call) -> M:
        """Return the member with the fields of the request; `origin` itself if nothing changes."""

    def replace_member(self, draft: Draft[G, M]) -> None:
        """Add the rows that put `origin` in the place of `before`."""
        group_id, origin = draft.group.group_id, draft.origin
        assert draft.before is not None
        draft.rows += self.rows.member_tombstones(group_id, draft.before.member_id)
        draft.rows.append(self.rows.member_row(group_id, origin))
        draft.rows.append(self.rows.target_row(
            group_id, origin.member_id, draft.group.targets.get(draft.before.member_id, {})))
        draft.rows.append(self.rows.current_row(group_id, origin.member_id, origin.held))

    def check_memory(self, draft: Draft[G, M]) -> None:
        """Raise COORDINATOR_LOAD_IN_PROGRESS if there is no memory for the member as it will be."""
        more_bytes = draft.member.held_bytes - (0 if draft.before is None else draft.before.held_bytes)
        if draft.member.names not in draft.group.subscriptions:
            more_bytes += subscription_bytes(draft.member.names)
        if not draft.group.members:
            more_bytes += draft.group.held_bytes
        if more_bytes > 0:
            self.place.shard.memory.check(more_bytes)

    @abstractmethod
    def change_subscription(self, draft: Draft[G, M], call: Call) -> Steps[bool]:
        """Add the rows of a changed subscription. Return whether it demands a new group epoch."""

    def is_due(self, group: G) -> bool:
        """Return whether the metadata of the group's topics may have changed since they were looked at."""
        return self.place.changes.concern(group.names, group.metadata_version)

    def bump(self, draft: Draft[G, M], demanded: bool) -> Steps[None]:
        """Compute the hash of the topics. A new one, or a changed subscription, makes a new group epoch."""
        names = draft.group.names_with(draft.before, draft.member)
        draft.metadata_hash = yield from self.hash_of(names)
        if demanded or draft.metadata_hash != draft.group.metadata_hash:
            draft.epoch += 1
            draft.rows += self.epoch_rows(draft.group, draft.epoch, draft.metadata_hash)

    def hash_of(self, names: Iterable[str]) -> Steps[int]:
        return (yield from self.place.changes.hash_of(names))

    @abstractmethod
    def epoch_rows(self, group: G, epoch: int, new_hash: int) -> list[Row]:
        """Return the rows of a new group epoch."""

    def may_assign(self, group: G, now_ms: int) -> bool:
        """Return whether the interval between two target assignments is over."""
        interval_ms = self.timing(group.group_id).assignment_interval_ms
        return not group.assigned_at_ms or not interval_ms or is_over(interval_ms, group.assigned_at_ms, now_ms)

    def interval_ms(self, draft: Draft[G, M]) -> int:
        """Return the time until the member's next heartbeat."""
        assigned_at_ms = draft.group.assigned_at_ms if draft.targets is None else draft.now_ms
        return next_interval_ms(
            self.timing(draft.group.group_id).heartbeat_interval_ms,
            draft.assignment_epoch == draft.epoch and self.is_settled(draft), draft.now_ms - assigned_at_ms,
            len(draft.group.members))

    @abstractmethod
    def is_settled(self, draft: Draft[G, M]) -> bool:
        """Return whether the member has all that its target gives it."""

    def timing(self, group_id: str) -> Any:
        """Return the Timing of the group."""
        return self.place.group_config(group_id).timing[self.group_class.group_type]

    def assign(self, draft: Draft[G, M]) -> Steps[None]:
        """Compute the target assignment for the new epoch, and add its rows."""
        group_id = draft.group.group_id
        targets = draft.targets = yield from self.compute_targets(draft)
        pace = Pace()
        for member_id, target in targets.items():
            if not draft.has_target(member_id, target):
                draft.rows.append(self.rows.target_row(group_id, member_id, target))
            if pace.spend(1 + len(target) // 8):
                yield
        draft.assignment_epoch = draft.epoch
        draft.rows.append(self.rows.assignment_epoch_row(group_id, draft.epoch, draft.now_ms))

    @abstractmethod
    def compute_targets(self, draft: Draft[G, M]) -> Steps[dict[str, Any]]:
        """Return the target of every member."""

    @abstractmethod
    def reconcile(self, draft: Draft[G, M], call: Call) -> Steps[None]:
        """Move the member towards its target, and add the row of its assignment if that changes."""

    def finish(self, draft: Draft[G, M]) -> Steps[None]:
        """Add rows that come last. This may wait for the disk."""
        yield from ()

    @abstractmethod
    def reply(self, draft: Draft[G, M], call: Call) -> Any:
        """Return the response."""

    def after_beat(self, draft: Draft[G, M], call: Call, version: int) -> None:
        """The rows are adopted: note up to which version the topics were looked at, and arm the deadlines."""
        group = self.place.shard.groups.get(draft.group.group_id)
        if isinstance(group, self.group_class):
            group.metadata_version = version
        if draft.before is not None and draft.before.member_id != draft.member.member_id:
            self.disarm(draft.group.group_id, draft.before.member_id)
        self.arm_session(draft.group.group_id, draft.member)

    # Leaving

    @abstractmethod
    def leave(self, call: Call, found: Group | None) -> Steps[Outcome] | Outcome:
        """Serve a member that leaves: an operation."""

    def fence(self, group: G, members: Iterable[M], reply: object) -> Steps[Outcome]:
        """Remove members. The next heartbeat of another member computes the targets again."""
        gone = list(members)
        rows: list[Row] = []
        for member in gone:
            rows += self.rows.member_tombstones(group.group_id, member.member_id)
        rows += self.rows_of_dropped_subscriptions(group, gone)
        names = yield from self.names_without(group, gone)
        rows += self.epoch_rows(group, group.epoch + 1, (yield from self.hash_of(names)))

        def after() -> None:
            for member in gone:
                self.disarm(group.group_id, member.member_id)

        return Outcome(rows, reply, after)

    def rows_of_dropped_subscriptions(self, group: G, gone: list[M]) -> list[Row]:
        """Return the rows for what only the members that leave subscribed to."""
        return []

    def names_without(self, group: G, gone: list[M]) -> Steps[Iterable[str]]:
        """Return the topics that the other members subscribe to."""
        if len(gone) == 1:
            return group.names_with(gone[0], None)
        left = group.copy()
        for number, member in enumerate(gone):
            if number % 64 == 63:
                yield
            for key, value in (*self.rows.member_tombstones(group.group_id, member.member_id),
                               *self.rows_of_dropped_subscriptions(left, [member])):
                left.apply(key, value)
        return left.names

    # Deadlines

    def session_timeout_ms(self, group_id: str, member: M) -> int:
        timeout_ms: int = self.timing(group_id).session_timeout_ms
        return timeout_ms

    def arm_session(self, group_id: str, member: M) -> None:
        """Expect the next heartbeat of the member in time."""
        self.place.deadlines.arm(
            SESSION, group_id, member.member_id, self.session_timeout_ms(group_id, member),
            partial(self.submit_fence, group_id, member.member_id, None))

    def follow_revocation(self, group_id: str, member: Any) -> None:
        """Expect a member that has to give something up to do so in time."""
        if member.held.state is State.UNREVOKED:
            self.place.deadlines.arm(
                REBALANCE, group_id, member.member_id, member.rebalance_timeout_ms,
                partial(self.submit_fence, group_id, member.member_id, member.epoch))
        else:
            self.place.deadlines.cancel(REBALANCE, group_id, member.member_id)

    def disarm(self, group_id: str, member_id: str) -> None:
        for kind in (SESSION, REBALANCE):
            self.place.deadlines.cancel(kind, group_id, member_id)

    def submit_fence(self, group_id: str, member_id: str, epoch: int | None) -> None:
        """Fence a member that missed a deadline; with an epoch only if it still has that one."""
        self.place.turns.submit(group_id, partial(self._fence_if_there, member_id, epoch), Callback(log_failure))

    def _fence_if_there(self, member_id: str, epoch: int | None, group: Group | None) -> Steps[Outcome] | Outcome:
        if not isinstance(group, self.group_class):
            return Outcome()
        member = group.members.get(member_id)
        if member is None or (epoch is not None and member.epoch != epoch):
            return Outcome()
        return self.fence(group, [member], None)    # type: ignore[arg-type]

    def start_deadlines(self, group: G) -> None:
        """Arm the deadlines of a group that was loaded, at their full length."""
        for member in group.members.values():
            self.arm_session(group.group_id, member)


def not_found(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f'found no group {group_id!r} of this type')


def unknown_member(group: ModernGroup[Any, Any], member_id: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f'group {group.group_id} has no member {member_id!r}')


def log_failure(error: KafkaError | None, _result: object) -> None:
    """Log that a fenced member stays: its rows were not stored."""
    if error is not None and error.code is not ErrorCode.NOT_COORDINATOR:
        log.error('a member that missed its deadline was not removed: %s', error)
