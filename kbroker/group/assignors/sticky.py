"""The assignor `sticky` of streams groups: members keep the tasks that they have, unless they would have too many.

The load of a process is the number of its active and standby tasks, divided by the number of its members. Each active
task is assigned to one member. A task with state also has standby tasks, which are assigned to processes that do not
have the task yet.
"""
from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from enum import StrEnum
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count, pairwise

from kbroker.base.lean_dataclasses import dataclass, field
from kbroker.base.long_work import Pace

NAME = 'sticky'


class Role(StrEnum):
    ACTIVE = 'active'
    STANDBY = 'standby'
    WARMUP = 'warmup'


IS_STANDBY, HAS_REPORTED = range(2)
"""The ranks of a task's former standby owners: the member has the task as a standby task, or has only reported its
offset."""

Key = tuple[Role, str]
"""The role of tasks and the id of their subtopology. `reconcile` uses the same key."""
Tasks = dict[Key, frozenset[int]]
Steps = Generator[None, None, dict[str, Tasks]]
_Task = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TaskMember:
    """The fields of a streams group's member that the assignor reads."""

    member_id: str
    process_id: str
    assigned: Mapping[Key, Collection[int]] = field(default_factory=dict)
    """The tasks that the member has, as its last response listed them. As in Kafka from 4.4, tasks of an earlier target
    that the member does not have yet do not count."""
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """The offsets that the member has reported for tasks whose state it has on the disk, by subtopology id and task
    number."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    members: list[TaskMember]
    tasks: Mapping[str, int]
    """Maps each subtopology id to its number of tasks."""
    stateful: frozenset[str]
    """The ids of the subtopologies with state. Only their tasks have standby tasks."""
    standby_replicas: int


def assign(spec: TaskSpec) -> Steps:
    """Return {member id: tasks}. Every member has an entry."""
    if not spec.members:
        return {}
    assigning = _Assigning(spec)
    yield from assigning.remember()
    yield from assigning.assign_active()
    yield from assigning.assign_standby()
    return (yield from assigning.result())


class _Member:
    """A member, with the tasks that this assignment has given it so far."""

    def __init__(self, member_id: str, process: _Process):
        self.member_id = member_id
        self.process = process
        self.size = 0
        self.tasks: dict[Key, set[int]] = {}


class _Process:
    """A process of the application, with the tasks of its members so far. The members of a process share its state on
    the disk."""

    def __init__(self, process_id: str):
        self.process_id = process_id
        self.members: list[_Member] = []
        """The members of the process, sorted by id."""
        self.tasks: set[_Task] = set()
        self._by_size: list[tuple[int, int, _Member]] | None = None
        self._turn = count()

    def load(self) -> float:
        return len(self.tasks) / len(self.members)

    def next_member(self) -> _Member:
        """Return the member with the fewest tasks; of members with equally few, the one that was returned least
        recently.

        At first, and after `forget_turns`, choose the lowest member id among equals. The caller must give the returned
        member a task.
        """
        if self._by_size is None:
            self._by_size = [(member.size, next(self._turn), member) for member in self.members]
            heapify(self._by_size)
        size, _, member = self._by_size[0]
        heapreplace(self._by_size, (size + 1, next(self._turn), member))
        return member

    def forget_turns(self) -> None:
        """Forget when members were returned, because a member got a task that `next_member` does not know of."""
        self._by_size = None


class _Quota:
    """The largest number of tasks that a member may have when it gets its previous tasks back. It is the number of
    tasks that full members do not have, divided by the number of members that are not full.
    """

    def __init__(self, tasks: int, members: int):
        self._tasks = tasks
        self._members = members
        self._most = self._share()

    def _share(self) -> int:
        return -(-self._tasks // self._members) if self._members else 0

    def has_room(self, member: _Member) -> bool:
        return member.size < self._most

    def count(self, member: _Member) -> None:
        """Recompute the quota of the other members if `member` is full with the task that it has just got."""
        if member.size == self._most:
            self._tasks -= member.size
            self._members -= 1
            self._most = self._share()


class _Assigning:
    """One assignment."""

    def __init__(self, spec: TaskSpec):
        self._spec = spec
        self._pace = Pace()
        self._processes: dict[str, _Process] = {}
        """The processes by id, in the order of their members' lowest ids."""
        self._members: dict[str, _Member] = {}
        for member in sorted(spec.members, key=lambda member: member.member_id):
            process = self._processes.setdefault(member.process_id, _Process(member.process_id))
            self._members[member.member_id] = found = _Member(member.member_id, process)
            process.members.append(found)
        self._had_active: dict[_Task, _Member] = {}
        self._had_standby: dict[_Task, list[_Member]] = {}
        """Maps each task to its former standby owners: the members with a standby task, then those that have only
        reported an offset, each by descending offset."""
        active = sum(spec.tasks.values())
        standby = spec.standby_replicas * sum(spec.tasks[name] for name in spec.tasks if name in spec.stateful)
        self._active_quota = _Quota(active, len(self._members))
        self._quota = _Quota(active + standby, len(self._members))

    def remember(self) -> Generator[None, None, None]:
        """Build indexes from each task to the members that have it, or have reported an offset of it."""
        has_offsets = any([member.offsets for member in self._spec.members])
        former: dict[_Task, list[tuple[int, int, _Member]]] = {}
        for member in sorted(self._spec.members, key=lambda member: member.member_id):
            found = self._members[member.member_id]
            for (role, subtopology), tasks in member.assigned.items():
                for task in tasks if role is not Role.WARMUP else ():
                    if role is Role.ACTIVE:
                        self._had_active[subtopology, task] = found
                    elif has_offsets:
                        offset = member.offsets.get(subtopology, {}).get(task, 0)
                        former.setdefault((subtopology, task), []).append((IS_STANDBY, -offset, found))
                    else:
                        self._had_standby.setdefault((subtopology, task), []).append(found)
                    if self._pace.spend():
                        yield
            for subtopology, offsets in member.offsets.items():
                standby = member.assigned.get((Role.STANDBY, subtopology), ())
                for task, offset in offsets.items():
                    if task not in standby:
                        former.setdefault((subtopology, task), []).append((HAS_REPORTED, -offset, found))
                    if self._pace.spend():
                        yield
        for each, candidates in former.items():
            self._had_standby[each] = [found for *_, found in sorted(candidates, key=lambda one: one[:2])]
            if self._pace.spend(len(candidates)):
                yield

    def assign_active(self) -> Generator[None, None, None]:
        """Give active tasks back to their previous owners, then to members that had them as standby tasks. Spread the
        remaining tasks evenly."""
        waiting: Iterable[_Task] = _by_number(self._spec.tasks)
        left: dict[_Task, int] = {}
        for previous in self._had_active.get, self._standby_owner:
            left = {}
            for task in waiting:
                member = previous(task)
                if member is not None and self._active_quota.has_room(member):
                    self._give_back(task, member, Role.ACTIVE)
                    self._active_quota.count(member)
                else:
                    left[task] = 1
                if self._pace.spend():
                    yield
            waiting = left
        yield from self._spread(_by_subtopology(self._spec.tasks), left, Role.ACTIVE)

    def assign_standby(self) -> Generator[None, None, None]:
        """Give standby tasks to members that previously had the same tasks. Spread the remaining standby tasks
        evenly."""
        replicas = self._spec.standby_replicas
        stateful = {name: count for name, count in self._spec.tasks.items() if name in self._spec.stateful and replicas}
        left: dict[_Task, int] = {}
        for task in _by_number(stateful, reverse=True):
            wanted = replicas
            while wanted and (member := self._next_standby(task)) is not None:
                self._give_back(task, member, Role.STANDBY)
                wanted -= 1
            if wanted:
                left[task] = wanted
            if self._pace.spend():
                yield
        yield from self._spread(_by_subtopology(stateful, reverse=True), left, Role.STANDBY)

    def _next_standby(self, task: _Task) -> _Member | None:
        """Return a previous active or standby owner of the task, to which a standby task can be assigned. Return None
        if no previous owner can take it.

        The owner must have room for a task, and its process must not have the task yet.
        """
        owner = self._had_active.get(task)
        if owner is None or task in owner.process.tasks or not self._quota.has_room(owner):
            owner = self._standby_owner(task, lacking=True)
        return owner if owner is not None and self._quota.has_room(owner) else None

    def _standby_owner(self, task: _Task, lacking: bool = False) -> _Member | None:
        """Return the previous standby owner with the least load; None if there is none.

        As in Kafka, the owners are compared in turn. An owner replaces the best owner so far if its process has a lower
        load and the owner itself has fewer tasks. With `lacking`, owners whose process has the task are skipped.
        """
        best = None
        for owner in self._had_standby.get(task, ()):
            if not (lacking and task in owner.process.tasks) and (best is None or (
                    owner.process.load() < best.process.load() and owner.size < best.size)):
                best = owner
        return best

    def _spread(self, tasks: Iterable[_Task], left: Mapping[_Task, int], role: Role) -> Generator[None, None, None]:
        """Assign each task to the least loaded processes that do not have it yet. `left` maps the task to the number of
        processes.

        Of equally loaded processes, the one that got a task least recently is next. At first, it is the last one in the
        order of the lowest ids of their members. Of a process's members, the one with the lowest id is first. Kafka
        fills a priority queue in the order of a hash table. With two processes in one place of the table, Kafka chooses
        the same process. Otherwise its choice is undefined.
        """
        turn = count()
        processes = [(process.load(), next(turn), process_id)
                     for process_id, process in reversed(self._processes.items())]
        heapify(processes)
        for task in tasks:
            wanted, passed = left.get(task, 0), []
            while wanted and processes:
                *_, process_id = heappop(processes)
                process = self._processes[process_id]
                if task not in process.tasks:
                    self._assign(task, process.next_member(), role)
                    wanted -= 1
                passed.append((process.load(), next(turn), process_id))
                if self._pace.spend(2):
                    yield
            for entry in passed:
                heappush(processes, entry)
            if self._pace.spend():
                yield

    def result(self) -> Steps:
        """Return {member id: tasks}. The tasks are one frozenset of task numbers for each role and subtopology."""
        found: dict[str, Tasks] = {}
        for member in self._members.values():
            shares = found[member.member_id] = {}
            for key, tasks in member.tasks.items():
                shares[key] = frozenset(tasks)
                if self._pace.spend(len(tasks) // 8 + 1):
                    yield
            if self._pace.spend():
                yield
        return found

    def _give_back(self, task: _Task, member: _Member, role: Role) -> None:
        self._assign(task, member, role)
        member.process.forget_turns()

    def _assign(self, task: _Task, member: _Member, role: Role) -> None:
        subtopology, number = task
        member.tasks.setdefault((role, subtopology), set()).add(number)
        member.size += 1
        member.process.tasks.add(task)
        self._quota.count(member)


def _by_number(counts: Mapping[str, int], reverse: bool = False) -> Iterator[_Task]:
    """Yield all tasks of the subtopologies, sorted by task number, then by subtopology id."""
    ranges = list(pairwise(sorted({0, *counts.values()})))
    for first, end in reversed(ranges) if reverse else ranges:
        names = sorted((name for name, count in counts.items() if count >= end), reverse=reverse)
        for number in _ordered(range(first, end), reverse):
            for name in names:
                yield name, number


def _by_subtopology(counts: Mapping[str, int], reverse: bool = False) -> Iterator[_Task]:
    """Yield all tasks of the subtopologies, sorted by subtopology id, then by task number."""
    for name in sorted(counts, reverse=reverse):
        for number in _ordered(range(counts[name]), reverse):
            yield name, number


def _ordered(numbers: range, reverse: bool) -> Iterable[int]:
    return reversed(numbers) if reverse else numbers
