"""The steps of a heartbeat to a modern group. They are the same for every kind of group.

A heartbeat is an operation of a turn (`turns`). It works on a `Draft`: the group, one changed member, and the rows that
make this change. `Heartbeats.beat` calls the steps in their order. A `Kind` is the table of the functions that differ
between consumer, share and streams groups. The steps call these functions, which never call a step.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from kbroker.base.clock import Clock, is_over
from kbroker.base.completion import Callback, Completion, complete
from kbroker.base.completion import Steps as ReachedSteps
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass, field, replace
from kbroker.base.long_work import LongWork, Pace, result_of
from kbroker.group.config import GroupConfig, Timing
from kbroker.group.deadlines import DELAY, REBALANCE, SESSION, Deadlines
from kbroker.group.group import Group
from kbroker.group.kinds import Row, Steps
from kbroker.group.modern.group import (
    LEAVE_FOR_A_WHILE_EPOCH,
    ModernGroup,
    ModernMember,
    RowModule,
    subscription_bytes,
)
from kbroker.group.modern.idle_members import next_interval_ms
from kbroker.group.modern.reconcile import State
from kbroker.group.modern.topic_changes import TopicChanges
from kbroker.group.shard import Shard
from kbroker.group.turns import Outcome, Turns
from kbroker.settings.config import Config

log = logging.getLogger(__name__)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
"""The member epochs in requests of a member that joins, and of a member that leaves."""

NO_TIME = 0
"""The assignment time in the row of the assignment epoch of a group whose targets no assignor has computed."""
MEMBERS_A_PART = 64
"""The number of members that a loop handles between two yields."""

G = TypeVar('G', bound=ModernGroup[Any, Any])
M = TypeVar('M', bound=ModernMember[Any])
AnyGroup = ModernGroup[Any, Any]
AnyMember = ModernMember[Any]


class Call(NamedTuple):
    """A heartbeat request, with facts about its client.

    * `names`: the topics in the request; None if the request has no list of topics, because they have not changed.
    * `may_describe`: the function that returns whether the client may describe a topic.
    * `classic`: the session timeout and the assignors of a consumer that speaks the classic protocol; None for any
      other member.
    * `version`: the version of the request.
    """

    request: Any
    names: frozenset[str] | None
    client_id: str
    client_host: str
    may_describe: Callable[[str], bool]
    classic: Any = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """The parts of the group coordinator that the heartbeats of one shard use."""

    shard: Shard
    turns: Turns
    deadlines: Deadlines
    changes: TopicChanges
    clock: Clock
    long_work: LongWork
    config: Config
    group_config: Callable[[str], GroupConfig]
    steps: ReachedSteps | None
    """The object that holds rebalances at their point, if a test controls the broker."""


@dataclass(slots=True)
class Draft(Generic[G, M]):
    """A group with one changed member, while an operation works on it.

    * `before`: the member as the group has it; None for a new member.
    * `origin`: the member without the request's changes to its fields. It is `before`, or `before` under a new id if
      the request replaces a static member, or an empty new member.
    * `member`: the member after the operation.
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
    """Maps each member id to the new target, if new targets were computed. None if the stored targets remain valid."""
    has_replaced_other: bool = False
    """True if the group has replaced a group of another kind."""

    def target(self) -> Any:
        """Return the target of the changed member; None if it has no target."""
        if self.targets is not None:
            return self.targets.get(self.member.member_id)
        return self.group.targets.get(self.stored_id)

    @property
    def has_other_assignment(self) -> bool:
        """True if the changed member is new, or if the operation has changed its assignment."""
        return self.before is None or self.member.held.assigned != self.before.held.assigned

    @property
    def stored_id(self) -> str:
        """The id under which the group has the changed member before the operation."""
        return self.member.member_id if self.before is None else self.before.member_id

    def members(self) -> Iterable[M]:
        """Yield all members that the group has after the operation.

        A static member may return under a member id that another member has. The operation then removes the other
        member.
        """
        for member_id, member in self.group.members.items():
            if member_id == self.stored_id:
                yield self.member
            elif member_id != self.member.member_id:
                yield member
        if self.before is None:
            yield self.member

    def names(self) -> Iterable[str]:
        """Return the topics that the group's members subscribe to after the operation."""
        return self.group.names_with(self.before, self.member)

    def epoch_rows(self) -> list[Row]:
        """Return the rows that store the draft's new group epoch."""
        return self.group.epoch_rows(self.epoch, self.metadata_hash)

    def stored_target(self, member_id: str) -> Any:
        """Return the stored target of the member that has this id after the operation; None if it has no stored
        target."""
        return self.group.targets.get(self.stored_id if member_id == self.member.member_id else member_id)

    def has_target(self, member_id: str, target: Any) -> bool:
        """Return whether a row already stores this target of the member. For a member that returns under a new id, the
        operation has a row with its former target already."""
        return target == self.stored_target(member_id)  # type: ignore[no-any-return]


AnyDraft = Draft[Any, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """The table of one kind of group: the classes of the kind, and the functions that differ between the kinds.

    A heartbeat calls the functions from `subscribe` to `reply` at most once, in the order in which they are listed
    here.
    """

    group_class: type[AnyGroup]
    draft_class: type[AnyDraft]
    max_size: Callable[[Config], int]
    """Return the largest number of members that a group may have."""
    find: Callable[[Any, Call], Any]
    """Return the member that sent the request; None for a new member. Raise UNKNOWN_MEMBER_ID if the group does not
    have the member. For a static member, also raise FENCED_INSTANCE_ID or UNRELEASED_INSTANCE_ID.
    """
    fields: Callable[[Call], dict[str, Any]]
    """Return the fields of the member that the request sets, by name."""
    owned: Callable[[Any], Mapping[Any, Iterable[int]] | None]
    """Return the partitions or tasks that the member reports as its own, by topic id or by role and subtopology. Return
    None if the request does not list them."""
    subscribe: Callable[[Any, Call], Steps[bool]]
    """Add the rows of a changed subscription to the draft. Return whether the group needs a new epoch."""
    targets: Callable[[Any], Steps[dict[str, Any]]]
    """Return {member id: target} with new targets of all members that the group has after the operation."""
    reconcile: Callable[[Any, Call], Steps[None]]
    """Move the changed member towards its target. Add the rows of this change to the draft."""
    reply: Callable[[Any, Call, int], Any]
    """Return the response. The last argument is the time until the member's next heartbeat in ms."""
    farewell: Callable[[Any], Any]
    """Return the response to a member that leaves."""
    is_idle: Callable[[Any, Any], bool]
    """Return whether the next heartbeat of a member that has its whole target changes nothing in the group. The
    function checks only the conditions of this kind; `IdleMembers` checks the conditions that are the same for every
    kind.
    """
    replace_other: Callable[[Group], Steps[tuple[Any, list[Row]]]]
    """Make a group of this kind from a group of another kind when a member joins. Return the new group and its rows.

    Raise GROUP_ID_NOT_FOUND if the group of the other kind must not be replaced.
    """
    downgrade: Callable[[Any, list[Any], object], Steps[Outcome | None]] | None = None
    """Replace the group by a classic group, if that is necessary when members are removed. Return None if the group
    keeps its kind."""
    after: Callable[[Any, Call], None] | None = None
    """Called when the rows of a heartbeat have been applied. Must not raise."""
    before_leave: Callable[[Any, Call], None] | None = None
    """Called with the group before the member that leaves is looked up. Must not raise."""
    successor: Callable[[Any, Any], Any] | None = None
    """Return the found member as it continues after the request: a static member that has left may return under a new
    id. Return any other member unchanged.
    """
    after_failed_join: Callable[[str], None] | None = None
    """Called with the group id when a heartbeat with which a member joins has failed. Must not raise."""

    @property
    def rows(self) -> RowModule:
        """The module that makes and reads the rows of the kind."""
        return self.group_class.rows


class Heartbeats:
    """The heartbeats to all groups of one kind in a shard. A method is either an operation of a turn or a step of such
    an operation."""

    def __init__(self, place: Place, kind: Kind):
        self.place = place
        self.kind = kind

    def submit(self, call: Call, done: Completion) -> None:
        """Serve a heartbeat in the next turn of its group. `done` completes with the reply or with an error."""
        group_id = call.request.group_id
        if call.request.member_epoch == JOIN_EPOCH and self.kind.after_failed_join is not None:
            done = Callback(partial(self._end_join, group_id, done))
        self.place.turns.submit(group_id, partial(self.serve, call), done)

    def _end_join(self, group_id: str, done: Completion, error: KafkaError | None, reply: object) -> None:
        if error is not None and self.kind.after_failed_join is not None:
            self.kind.after_failed_join(group_id)
        complete(done, error, reply)

    def serve(self, call: Call, group: Group | None) -> Steps[Outcome] | Outcome:
        """Serve a heartbeat, as an operation of a turn. Call `leave` if the member leaves, else `beat`."""
        if call.request.member_epoch in (LEAVE_EPOCH, LEAVE_FOR_A_WHILE_EPOCH):
            return self.leave(call, group)
        return self.beat(call, group)

    def beat(self, call: Call, found: Group | None) -> Steps[Outcome]:
        """Serve the heartbeat of a member that joins or stays, as an operation of a turn.

        Raise GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED, FENCED_MEMBER_EPOCH, COORDINATOR_LOAD_IN_PROGRESS (no memory
        is left), or the errors of the kind's functions.
        """
        kind, request = self.kind, call.request
        group, rows = yield from self.find_group(request, found)
        now_ms = self.place.clock.wall_ms()
        self.check_size(group, request)
        before = kind.find(group, call)
        origin = self.origin_of(before, request)
        member = with_fields(origin, kind.fields(call))
        if before is not None:
            self.check_epoch(before, request)
        draft = kind.draft_class(group, before, origin, member, group.epoch, group.assignment_epoch,
                                 group.metadata_hash, now_ms, rows,
                                 has_replaced_other=found is not None and group is not found)
        if before is not None and origin is not before:
            self.replace_member(draft)
        if member is not origin:
            self.check_memory(draft)
            rows.append(kind.rows.member_row(group.group_id, member))
        version = self.place.changes.version
        needs_epoch = yield from kind.subscribe(draft, call)
        if needs_epoch or self.is_due(group):
            yield from self.bump(draft, needs_epoch)
        if draft.assignment_epoch < draft.epoch and self.may_assign(group, now_ms):
            yield from assign(draft, kind)
        yield from kind.reconcile(draft, call)
        reply = kind.reply(draft, call, self.interval_ms(draft))
        return Outcome(rows, reply, partial(self.after_beat, draft, call, version))

    # The steps of `beat`, in their order

    def find_group(self, request: Any, found: Group | None) -> Steps[tuple[Any, list[Row]]]:
        """Return the group, and the rows that end the group of another kind that it replaces, if any.

        If there is no group, create it for a member that joins, and raise GROUP_ID_NOT_FOUND for any other member.
        """
        if isinstance(found, self.kind.group_class):
            return found, []
        if request.member_epoch != JOIN_EPOCH:
            raise not_found(request.group_id)
        if found is None:
            return self.kind.group_class(request.group_id), []
        return (yield from self.kind.replace_other(found))

    def check_size(self, group: AnyGroup, request: Any) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if the request is from a new member and the group is full."""
        if len(group.members) >= self.kind.max_size(self.place.config) and (
                request.member_id not in group.members
                and getattr(request, 'instance_id', None) not in group.instances):
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED,
                             f'group {group.group_id} has {len(group.members)} members')

    def origin_of(self, before: AnyMember | None, request: Any) -> Any:
        """Return the member whose fields the request is about to set: the found member, its successor (a static member
        under a new id), or a new member."""
        if before is None:
            return self.kind.group_class.member_class(member_id=request.member_id)
        return before if self.kind.successor is None else self.kind.successor(before, request)

    def check_epoch(self, member: AnyMember, request: Any) -> None:
        """Raise FENCED_MEMBER_EPOCH unless the member joins or sends its current epoch.

        Also accept the previous epoch, from a member that did not get the last reply, if the member owns only
        partitions or tasks that are assigned to it.
        """
        epoch, held = request.member_epoch, member.held
        if epoch in (JOIN_EPOCH, held.epoch):
            return
        if epoch == held.previous_epoch and epoch < held.epoch:
            owned = self.kind.owned(request)
            if owned is not None and all([number in held.assigned.get(key, ())
                                          for key, numbers in owned.items() for number in numbers]):
                return
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, f'found member epoch {epoch}, expected {held.epoch}')

    def replace_member(self, draft: AnyDraft) -> None:
        """Add the rows that replace the static member `before` by `origin`, which has a new id, to the draft."""
        assert draft.before is not None
        group_id, origin, rows = draft.group.group_id, draft.origin, self.kind.rows
        draft.rows += rows.member_tombstones(group_id, draft.before.member_id)
        draft.rows.append(rows.member_row(group_id, origin))
        draft.rows.append(rows.target_row(
            group_id, origin.member_id, draft.group.targets.get(draft.before.member_id, {})))
        draft.rows.append(rows.current_row(group_id, origin.member_id, origin.held))

    def check_memory(self, draft: AnyDraft) -> None:
        """Raise COORDINATOR_LOAD_IN_PROGRESS if there is not enough memory for the fields and the subscription that the
        request adds."""
        more_bytes = draft.member.held_bytes - (0 if draft.before is None else draft.before.held_bytes)
        if draft.member.names not in draft.group.subscriptions:
            more_bytes += subscription_bytes(draft.member.names)
        if not draft.group.members:
            more_bytes += draft.group.held_bytes
        if more_bytes > 0:
            self.place.shard.memory.check(more_bytes)

    def is_due(self, group: AnyGroup) -> bool:
        """Return whether a topic of the group may have changed since the last heartbeat that checked the group's
        topics."""
        return self.place.changes.concern(group.names, group.metadata_version)

    def bump(self, draft: AnyDraft, needs_epoch: bool) -> Steps[None]:
        """Compute the hash of the subscribed topics. Begin a new group epoch if the hash has changed, or if
        `needs_epoch` is true."""
        draft.metadata_hash = yield from self.place.changes.hash_of(draft.names())
        if needs_epoch or draft.metadata_hash != draft.group.metadata_hash:
            if self.place.steps is not None:
                yield from self.pass_point(self.place.steps, draft.group.group_id)
            draft.epoch += 1
            draft.rows += draft.epoch_rows()

    def pass_point(self, steps: ReachedSteps, group_id: str) -> Steps[None]:
        """Wait while the rebalance is held. All operations on the group wait, too."""
        def reach(proceed: Callable[[], object]) -> None:
            if not steps.reach('group.rebalance', {'group': group_id}, proceed):
                proceed()

        yield from result_of(reach)

    def may_assign(self, group: AnyGroup, now_ms: int) -> bool:
        """Return whether new targets may be computed now: the initial delay of a new group and the assignment interval
        must have passed."""
        if self.place.deadlines.is_armed(DELAY, group.group_id, ''):
            return False
        interval_ms = self.timing(group.group_id).assignment_interval_ms
        return not group.assigned_at_ms or not interval_ms or is_over(interval_ms, group.assigned_at_ms, now_ms)

    def interval_ms(self, draft: AnyDraft) -> int:
        """Return the time until the member's next heartbeat in ms."""
        assigned_at_ms = draft.group.assigned_at_ms if draft.targets is None else draft.now_ms
        is_settled = draft.assignment_epoch == draft.epoch and draft.member.held.is_reconciled_to(draft.epoch)
        return next_interval_ms(self.timing(draft.group.group_id).heartbeat_interval_ms, is_settled,
                                draft.now_ms - assigned_at_ms, len(draft.group.members))

    def timing(self, group_id: str) -> Timing:
        return self.place.group_config(group_id).timing[self.kind.group_class.group_type]

    def after_beat(self, draft: AnyDraft, call: Call, version: int) -> None:
        """Arm the member's deadlines, because the rows of the heartbeat have been applied. `version` is the version of
        TopicChanges up to which the topics were checked."""
        group_id, member = draft.group.group_id, draft.member
        group = self.place.shard.groups.get(group_id)
        if isinstance(group, self.kind.group_class):
            group.metadata_version = version
        if draft.before is not None and draft.before.member_id != member.member_id:
            self.place.deadlines.cancel_member(group_id, draft.before.member_id)
        self.arm_session(group_id, member)
        if member.held is not draft.origin.held:
            self.follow_revocation(group_id, member)
        if draft.has_replaced_other:
            self.place.long_work.start(self.arm_sessions(group_id, list(draft.group.members.values())))
        if self.kind.after is not None:
            self.kind.after(draft, call)

    # Removal of members that leave or are fenced

    def leave(self, call: Call, found: Group | None) -> Steps[Outcome] | Outcome:
        """Serve the heartbeat of a member that leaves, as an operation of a turn.

        Raise GROUP_ID_NOT_FOUND if the group does not exist, or UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID if it does not
        have the member.
        """
        request = call.request
        if not isinstance(found, self.kind.group_class):
            raise not_found(request.group_id)
        if self.kind.before_leave is not None:
            self.kind.before_leave(found, call)
        member, reply = self.kind.find(found, call), self.kind.farewell(request)
        if request.member_epoch != LEAVE_FOR_A_WHILE_EPOCH:
            return self.fence(found, [member], reply)
        held = replace(member.held, epoch=LEAVE_FOR_A_WHILE_EPOCH, pending={}, assigned={
            key: dict.fromkeys(numbers, 0) for key, numbers in member.held.assigned.items()})
        return Outcome([self.kind.rows.current_row(found.group_id, member.member_id, held)], reply)

    def fence(self, group: AnyGroup, members: Iterable[Any], reply: object) -> Steps[Outcome]:
        """Remove members, and begin a new group epoch. The next heartbeat of a remaining member then computes new
        targets."""
        gone = list(members)
        if self.kind.downgrade is not None:
            outcome = yield from self.kind.downgrade(group, gone, reply)
            if outcome is not None:
                return outcome
        if self.place.steps is not None:
            yield from self.pass_point(self.place.steps, group.group_id)
        rows: list[Row] = []
        for member in gone:
            rows += self.kind.rows.member_tombstones(group.group_id, member.member_id)
        rows += group.subscription_tombstones(gone)
        names = yield from self.names_without(group, gone)
        rows += group.epoch_rows(group.epoch + 1, (yield from self.place.changes.hash_of(names)))
        if len(gone) == len(group.members):     # as in Kafka from 4.4: the next member to join is assigned at once
            rows.append(self.kind.rows.assignment_epoch_row(group.group_id, group.epoch + 1, NO_TIME))

        def after() -> None:
            for member in gone:
                self.place.deadlines.cancel_member(group.group_id, member.member_id)

        return Outcome(rows, reply, after)

    def names_without(self, group: AnyGroup, gone: list[Any]) -> Steps[Iterable[str]]:
        """Return the topics that the group's members subscribe to, without the members in `gone`."""
        if len(gone) == 1:
            return group.names_with(gone[0], None)
        left = group.copy()
        for number, member in enumerate(gone):
            if number % MEMBERS_A_PART == MEMBERS_A_PART - 1:
                yield
            for key, value in (*self.kind.rows.member_tombstones(group.group_id, member.member_id),
                               *left.subscription_tombstones([member])):
                left.apply(key, value)
        return left.names

    # Deadlines

    def arm_session(self, group_id: str, member: AnyMember) -> None:
        """Arm the deadline that fences the member unless it heartbeats within its session timeout."""
        timeout_ms = member.own_session_timeout_ms
        self.place.deadlines.arm(
            SESSION, group_id, member.member_id,
            self.timing(group_id).session_timeout_ms if timeout_ms is None else timeout_ms,
            partial(self.submit_fence, group_id, member.member_id, None))

    def arm_sessions(self, group_id: str, members: list[Any]) -> Steps[None]:
        """Arm the session deadlines of the given members. Skip members that have left the group or have already sent a
        heartbeat."""
        for number, member in enumerate(members):
            if number % MEMBERS_A_PART == MEMBERS_A_PART - 1:
                yield
            group = self.place.shard.groups.get(group_id)
            if isinstance(group, self.kind.group_class) and member.member_id in group.members and (
                    not self.place.deadlines.is_armed(SESSION, group_id, member.member_id)):
                self.arm_session(group_id, member)

    def follow_revocation(self, group_id: str, member: AnyMember) -> None:
        """If the member has to give up partitions or tasks, arm the deadline that fences it unless it confirms within
        its rebalance timeout. Otherwise, cancel this deadline."""
        timeout_ms = member.revocation_timeout_ms
        if member.held.state is State.UNREVOKED and timeout_ms is not None:
            self.place.deadlines.arm(REBALANCE, group_id, member.member_id, timeout_ms,
                                     partial(self.submit_fence, group_id, member.member_id, member.epoch))
        else:
            self.place.deadlines.cancel(REBALANCE, group_id, member.member_id)

    def submit_fence(self, group_id: str, member_id: str, epoch: int | None) -> None:
        """Fence a member that has missed a deadline, in the group's next turn. If `epoch` is not None, do nothing if
        the member has another epoch in this turn."""
        self.place.turns.submit(group_id, partial(self._fence_if_there, member_id, epoch), Callback(log_failure))

    def _fence_if_there(self, member_id: str, epoch: int | None, group: Group | None) -> Steps[Outcome] | Outcome:
        if not isinstance(group, self.kind.group_class):
            return Outcome()
        member = group.members.get(member_id)
        if member is None or (epoch is not None and member.epoch != epoch):
            return Outcome()
        return self.fence(group, [member], None)

    def start_deadlines(self, group: AnyGroup) -> None:
        """Arm the deadlines of all members of a group that was loaded from the log. Each deadline gets its full
        timeout."""
        for member in group.members.values():
            self.arm_session(group.group_id, member)
            self.follow_revocation(group.group_id, member)


def assign(draft: AnyDraft, kind: Kind) -> Steps[None]:
    """Compute the targets for the draft's group epoch, and add the rows of changed targets to the draft."""
    group_id = draft.group.group_id
    targets = draft.targets = yield from kind.targets(draft)
    pace = Pace()
    for member_id, target in targets.items():
        if not draft.has_target(member_id, target):
            draft.rows.append(kind.rows.target_row(group_id, member_id, target))
        if pace.spend(1 + len(target) // 8):
            yield
    draft.assignment_epoch = draft.epoch
    draft.rows.append(kind.rows.assignment_epoch_row(group_id, draft.epoch, draft.now_ms))


def find_dynamic(group: AnyGroup, call: Call) -> Any:
    """Return the member that sent a request without an instance id; None for a new member. Raise UNKNOWN_MEMBER_ID if
    the group does not have the member and the request does not join."""
    member = group.members.get(call.request.member_id)
    if member is None and call.request.member_epoch != JOIN_EPOCH:
        raise unknown_member(group, call.request.member_id)
    return member


def partitions_reply(response_class: Any, draft: AnyDraft, interval_ms: int, is_asked: bool) -> Any:
    """Return the response to the heartbeat of a member of a consumer or share group.

    The response has the member's partitions if the request asks for them (`is_asked`), or if they have changed.
    """
    held, assignment = draft.member.held, None
    if is_asked or draft.has_other_assignment:
        assignment = response_class.Assignment(topic_partitions=[
            response_class.TopicPartitions(topic_id=topic_id, partitions=list(partitions))
            for topic_id, partitions in held.assigned.items()])
    return response_class(member_id=draft.member.member_id, member_epoch=held.epoch, heartbeat_interval_ms=interval_ms,
                          assignment=assignment)


def with_fields(member: M, fields: Mapping[str, Any]) -> M:
    """Return a copy of the member with these fields. Return the same object if its fields already have these values."""
    changed = {name: value for name, value in fields.items() if getattr(member, name) != value}
    return replace(member, **changed) if changed else member


def not_found(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f'found no group {group_id!r} of this type')


def unknown_member(group: AnyGroup, member_id: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f'group {group.group_id} has no member {member_id!r}')


def log_failure(error: KafkaError | None, _result: object) -> None:
    """Log the error if a member that missed its deadline stays in its group, because the rows that remove it were not
    stored."""
    if error is not None and error.code is not ErrorCode.NOT_COORDINATOR:
        log.error('a member that missed its deadline was not removed: %s', error)
