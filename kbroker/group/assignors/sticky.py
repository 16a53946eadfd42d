"""The assignor `sticky` of streams groups: tasks go back to the members that had them, as far as the load allows.

The load of a process is its tasks, active and standby, per member. Each active task goes to one member. Tasks with
state have standby tasks as well, on processes that do not have the task already.
"""
from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from enum import StrEnum
from heapq import heapify, heappop, heappush

from kbroker.lean_dataclasses import dataclass, field
from kbroker.long_work import Pace

NAME = 'sticky'


class Role(StrEnum):
    ACTIVE = 'active'
    STANDBY = 'standby'
    WARMUP = 'warmup'


Key = tuple[Role, str]
"""A role and the id of a subtopology, as in `reconcile`."""
Tasks = dict[Key, frozenset[int]]
Steps = Generator[None, None, dict[str, Tasks]]
_Task = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TaskMember:
    """A member as the assignor sees it."""

    member_id: str
    process_id: str
    target: Mapping[Key, frozenset[int]] = field(default_factory=dict)
    """The tasks that the member was meant to have before."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    members: list[TaskMember]
    tasks: Mapping[str, int]
    """The number of tasks of each subtopology."""
    stateful: frozenset[str]
    """The subtopologies with state, which alone have standby tasks."""
    standby_replicas: int


def assign(spec: TaskSpec) -> Steps:
    """Return {member id: its tasks} with every member."""
    if not spec.members:
        return {}
    assigning = _Assigning(spec)
    yield from assigning.remember()
    yield from assigning.assign_active()
    yield from assigning.assign_standby()
    return (yield from assigning.result())


class _Member:
    """A member while tasks are assigned."""

    def __init__(self, member_id: str, process: _Process):
        self.member_id = member_id
        self.process = process
        self.size = 0
        self.active: set[_Task] = set()
        self.standby: set[_Task] = set()


class _Process:
    """A process, whose members share its state on the disk."""

    def __init__(self, process_id: str):
        self.process_id = process_id
        self.members: list[_Member] = []
        self.tasks: set[_Task] = set()

    def load(self) -> float:
        return len(self.tasks) / len(self.members)

    def least_loaded_member(self) -> _Member:
        return min(self.members, key=lambda member: (member.size, member.member_id))


class _Quota:
    """The tasks that a member may get back: those that are left, shared by the members that have room."""

    def __init__(self, tasks: int, members: int):
        self._tasks = tasks
        self._members = members

    @property
    def most(self) -> int:
        return -(-self._tasks // self._members) if self._members else 0

    def has_room(self, member: _Member) -> bool:
        return member.size < self.most

    def count(self, member: _Member) -> None:
        """Count the task that was assigned to `member` last."""
        if member.size == self.most:
            self._tasks -= member.size
            self._members -= 1


class _Assigning:
    """One run of the assignor."""

    def __init__(self, spec: TaskSpec):
        self._spec = spec
        self._pace = Pace()
        self._processes: dict[str, _Process] = {}
        self._members: dict[str, _Member] = {}
        for member in sorted(spec.members, key=lambda member: member.member_id):
            process = self._processes.setdefault(member.process_id, _Process(member.process_id))
            self._members[member.member_id] = found = _Member(member.member_id, process)
            process.members.append(found)
        self._had_active: dict[_Task, list[_Member]] = {}
        self._had_standby: dict[_Task, list[_Member]] = {}
        self._tasks = [(subtopology, task) for subtopology, count in sorted(spec.tasks.items())
                       for task in range(count)]

    def remember(self) -> Generator[None, None, None]:
        """Index the members by the tasks that they had."""
        for member in self._spec.members:
            for (role, subtopology), tasks in member.target.items():
                had = self._had_active if role is Role.ACTIVE else self._had_standby
                if role is not Role.WARMUP:
                    for task in tasks:
                        had.setdefault((subtopology, task), []).append(self._members[member.member_id])
                if self._pace.spend(len(tasks) + 1):
                    yield

    def assign_active(self) -> Generator[None, None, None]:
        quota = _Quota(len(self._tasks), len(self._members))
        left = sorted(self._tasks, key=lambda task: (task[1], task[0]))
        for had in self._had_active, self._had_standby:
            waiting, left = left, []
            for task in waiting:
                member = self._least_loaded(had.get(task, ()))
                if member is not None and quota.has_room(member):
                    self._assign(task, member, member.active)
                    quota.count(member)
                else:
                    left.append(task)
                if self._pace.spend():
                    yield
        yield from self._spread([(task, 1) for task in sorted(left)], Role.ACTIVE)

    def assign_standby(self) -> Generator[None, None, None]:
        replicas = self._spec.standby_replicas
        tasks = [task for task in self._tasks if task[0] in self._spec.stateful] if replicas else []
        quota = _Quota(len(self._tasks) + replicas * len(tasks), len(self._members))
        left = []
        for task in tasks:
            wanted = replicas
            for had in self._had_active, self._had_standby:
                for member in sorted(had.get(task, ()), key=_load):
                    if wanted and task not in member.process.tasks and quota.has_room(member):
                        self._assign(task, member, member.standby)
                        wanted -= 1
            if wanted:
                left.append((task, wanted))
            if self._pace.spend():
                yield
        yield from self._spread(sorted(left, key=lambda one: -one[1]), Role.STANDBY)

    def _spread(self, tasks: list[tuple[_Task, int]], role: Role) -> Generator[None, None, None]:
        """Assign each task so many times, to the least loaded processes that do not have it."""
        processes = [(process.load(), process.process_id) for process in self._processes.values()]
        heapify(processes)
        for task, wanted in tasks:
            passed = []
            while wanted and processes:
                _, process_id = heappop(processes)
                process = self._processes[process_id]
                if task not in process.tasks:
                    member = process.least_loaded_member()
                    self._assign(task, member, member.active if role is Role.ACTIVE else member.standby)
                    wanted -= 1
                passed.append((process.load(), process_id))
                if self._pace.spend(len(process.members) // 8 + 1):
                    yield
            for entry in passed:
                heappush(processes, entry)

    def result(self) -> Steps:
        found: dict[str, Tasks] = {}
        for member in self._members.values():
            shares: dict[Key, set[int]] = {}
            for role, tasks in (Role.ACTIVE, member.active), (Role.STANDBY, member.standby):
                for subtopology, task in tasks:
                    shares.setdefault((role, subtopology), set()).add(task)
            found[member.member_id] = {key: frozenset(share) for key, share in shares.items()}
            if self._pace.spend(member.size + 1):
                yield
        return found

    def _assign(self, task: _Task, member: _Member, place: set[_Task]) -> None:
        place.add(task)
        member.size += 1
        member.process.tasks.add(task)

    def _least_loaded(self, members: Iterable[_Member]) -> _Member | None:
        return min(members, key=_load, default=None)


def _load(member: _Member) -> tuple[float, int, str]:
    return member.process.load(), member.size, member.member_id
