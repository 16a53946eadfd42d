"""Reconciliation of streams groups: the functions that move a member from its tasks towards its target tasks.

`modern/reconcile` has the principle: a member first gives up tasks, then gets new ones. In streams groups, a task may
also change its role at the same member, as in Kafka from 4.4:

* An active task becomes a standby task at once. The member still has to confirm that it no longer runs the task.
* A standby task becomes a warm-up task at once, and the reverse.
* A standby or warm-up task that is to become active keeps its role until the member gets the active task.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping

from kbroker.base.long_work import Pace
from kbroker.group.assignors.sticky import Key, Role
from kbroker.group.kinds import Steps
from kbroker.group.modern.reconcile import Assigned, Sets, State, check_known, owns, without_empty

Tasks = dict[Key, dict[int, int]]
"""Tasks of one member: maps (role, subtopology) to task numbers and their assignment epochs."""

OTHER_COPY = {Role.STANDBY: Role.WARMUP, Role.WARMUP: Role.STANDBY}
"""Maps each role of a copy of a task's state to the other one."""


def reconcile_tasks(member: Assigned[Key], target_epoch: int, target: Sets[Key],
                    is_unreleased: Callable[[Key, int], bool], owned: Sets[Key] | None) -> Steps[Assigned[Key]]:
    """Return the next assignment of a member of a streams group.

    `is_unreleased` returns whether the member has to wait for a new task until another member has given it up. Raise
    FENCED_MEMBER_EPOCH if the member's state is UNKNOWN and the member may still own a task.
    """
    if member.is_reconciled_to(target_epoch):
        return member
    epoch = member.epoch
    if member.state is State.UNREVOKED:
        if (yield from owns(owned, member.pending)):
            return member
        epoch += 1
    check_known(member, owned)
    changes = _Changes(member.assigned, target)
    yield from changes.compare(target_epoch, is_unreleased)
    yield from changes.change_copies()
    promoted = yield from changes.promote()
    revoked = without_empty(changes.revoked)
    is_unrevoked = bool(revoked) and (yield from owns(owned, revoked))
    yield from changes.keep_promoted(promoted, is_unrevoked)
    if is_unrevoked:
        return Assigned(State.UNREVOKED, epoch, member.epoch, without_empty(changes.kept), revoked)
    yield from changes.grant()
    state = State.UNRELEASED if changes.waits else State.STABLE
    return Assigned(state, target_epoch, member.epoch, without_empty(changes.kept), {})


class _Changes:
    """The difference between the tasks that a member has and its target. Each step corrects it for one kind of change
    of roles."""

    def __init__(self, assigned: Mapping[Key, Mapping[int, int]], target: Sets[Key]):
        self._assigned = assigned
        self._target = target
        self._pace = Pace()
        self.kept: Tasks = {}
        """The tasks that the member keeps while it gives others up."""
        self.revoked: Tasks = {}
        self.granted: Tasks = {}
        """The tasks that the member gets as soon as it has nothing to give up."""
        self.waits = False
        """True if a task of the target is not released yet."""

    def compare(self, target_epoch: int, is_unreleased: Callable[[Key, int], bool]) -> Steps[None]:
        for key in dict.fromkeys([*self._assigned, *self._target]):
            has, wants = self._assigned.get(key, {}), self._target.get(key, frozenset())
            self.kept[key] = {number: since for number, since in has.items() if number in wants}
            self.revoked[key] = {number: since for number, since in has.items() if number not in wants}
            granted = self.granted[key] = {}
            for number in sorted(wants.difference(has)):
                if is_unreleased(key, number):
                    self.waits = True
                else:
                    granted[number] = target_epoch
                if self._pace.spend():
                    yield
            if self._pace.spend(len(has) // 8 + 1):
                yield

    def change_copies(self) -> Steps[None]:
        """Grant standby tasks that the member has as active tasks at once, and change warm-up to standby tasks and the
        reverse without a revocation."""
        for (role, subtopology), numbers in self._assigned.items():
            to = role, subtopology
            copy = OTHER_COPY.get(role, Role.STANDBY), subtopology
            granted = self.granted.get(copy, {})
            for number in numbers.keys() & granted.keys():
                self.kept[copy][number] = granted.pop(number)
                if role is not Role.ACTIVE:
                    self.revoked[to].pop(number, None)
                if self._pace.spend():
                    yield
            if self._pace.spend():
                yield

    def promote(self) -> Steps[Tasks]:
        """Return the standby and warm-up tasks of the member that are to become active. They are not revoked."""
        promoted: Tasks = {}
        for (role, subtopology), numbers in self._assigned.items():
            if role is Role.ACTIVE:
                continue
            active = self._target.get((Role.ACTIVE, subtopology), frozenset())
            found = promoted[role, subtopology] = {
                number: since for number, since in numbers.items() if number in active}
            for number in found:
                self.revoked[role, subtopology].pop(number, None)
            if self._pace.spend(len(numbers) // 8 + 1):
                yield
        return promoted

    def keep_promoted(self, promoted: Tasks, is_unrevoked: bool) -> Steps[None]:
        """Keep the tasks that are to become active in their roles, if the member does not get the active tasks now."""
        for (role, subtopology), numbers in promoted.items():
            granted = {} if is_unrevoked else self.granted.get((Role.ACTIVE, subtopology), {})
            self.kept[role, subtopology].update(
                {number: since for number, since in numbers.items() if number not in granted})
            if self._pace.spend(len(numbers) // 8 + 1):
                yield

    def grant(self) -> Steps[None]:
        for key, numbers in self.granted.items():
            self.kept[key].update(numbers)
            if self._pace.spend(len(numbers) // 8 + 1):
                yield
