"""A random schedule of Spark queries that write with the sink. It includes concurrent drivers and attempts of tasks,
commits, aborts, and deaths of processes.
"""
from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

from support.spark.sink_model import Coordinator, MemoryStore, Process

from kbroker.base.errors import KafkaError
from kbroker_tools.spark.sink.protocol import Bounds, Wanted, abort, abort_last, check_current, commit, finish, plan
from kbroker_tools.spark.sink.values import (
    NO_TIMEOUT_MS,
    QUERY,
    Commit,
    LateError,
    LostRowsError,
    Plan,
    Staged,
    Unit,
    tasks_of,
)

PREFIX = 'p'
TASKS = 3
TIMEOUT_MS, MARGIN_MS = 300, 150
MOST_TURNS = 20_000


class Query:
    """A query and its checkpoint. Both outlive its drivers."""

    def __init__(self, name: str):
        self.owner = QUERY + name
        self.next_batch = 0


class Schedule:
    """Runs queries that share one prefix until each has completed its batches, with faults at random turns.

    If `is_mortal` is false, no process dies, all lists of transactions are complete, and many attempts of tasks are
    late copies.
    """

    def __init__(self, seed: int, wanted: Commit, is_two_phase: bool, queries: int = 1, batches: int = 5,
                 is_mortal: bool = True):
        self.rng = random.Random(f'{seed}.{wanted}.{is_two_phase}.{queries}')
        self.coordinator = Coordinator(has_two_phase=is_two_phase)
        self.wanted = Wanted(wanted)
        self.queries = [Query(str(number)) for number in range(queries)]
        self.batches = batches
        self.is_mortal = is_mortal
        self.copies = 0.01 if is_mortal else 0.1
        """The chance that the driver starts a further attempt of an unfinished task, for each of its turns."""
        self.processes: list[Process] = []
        self.drivers: dict[Query, list[Process]] = {query: [] for query in self.queries}
        self.losses: list[LostRowsError] = []
        self.attempt_numbers = count()

    # ---- the schedule

    def run(self) -> None:
        """Run until each query has completed its batches, or until a query has lost rows. Then settle the open
        transactions of the prefix.
        """
        turns = 0
        try:
            while self._has_work() and not self.losses:
                turns += 1
                assert turns < MOST_TURNS, 'no progress'
                self._one_turn()
        finally:
            for process in self.processes:
                process.kill()
        if self.is_mortal:
            finish(MemoryStore(self.coordinator), PREFIX, accept_loss=True)

    def _has_work(self) -> bool:
        return any(query.next_batch < self.batches for query in self.queries) or (
            not self.is_mortal and not all(process.is_over for process in self.processes))

    def _one_turn(self) -> None:
        rng = self.rng
        for query in self.queries:
            drivers = [each for each in self.drivers[query] if not each.is_over]
            if query.next_batch < self.batches and (not drivers or rng.random() < 0.002):
                self._start_driver(query)
        alive = [process for process in self.processes if not process.is_over]
        process = alive[-1] if rng.random() < 0.5 else rng.choice(alive)
        if self.is_mortal and rng.random() < 0.005:
            process.kill()
        else:
            process.run_turn()
        self.coordinator.tick()
        if process.error is not None and not isinstance(process.error, KafkaError):
            raise process.error
        if isinstance(process.error, LostRowsError):
            self.losses.append(process.error)

    def _spawn(self, work: Callable[[Process], None]) -> Process:
        process = Process(work)
        self.processes.append(process)
        return process

    def _store(self, process: Process) -> MemoryStore:
        return MemoryStore(self.coordinator, process.turn, lambda: self.rng.random() < 0.05,
                           lambda: self.is_mortal and self.rng.random() < 0.02)

    # ---- the processes

    def _start_driver(self, query: Query) -> None:
        self.drivers[query].append(self._spawn(lambda process: self._drive(process, query)))

    def _drive(self, process: Process, query: Query) -> None:
        """Run micro-batches, as Spark's driver does. If a micro-batch fails, abort it and raise the error."""
        while query.next_batch < self.batches:
            batch = query.next_batch
            found = plan(self._store(process), PREFIX, query.owner.__eq__, self.wanted)
            unit = Unit(query.owner, batch)
            messages = self._run_tasks(process, found, unit)
            self._finish_batch(process, found, messages)
            query.next_batch = max(query.next_batch, batch + 1)

    def _finish_batch(self, process: Process, found: Plan, messages: list[Staged | None]) -> None:
        """Commit the batch in a new process. A stopped query aborts the batch although its commit may still run."""
        bounds = Bounds(10**9, MARGIN_MS)
        committing = self._spawn(lambda other: commit(self._store(other), messages, bounds) and None)
        is_stopped = self.rng.random() < 0.05
        while not committing.is_over:
            process.turn()
            if is_stopped and self.rng.random() < 0.2:
                break
        if committing.has_succeeded:
            return
        self._abort(process, messages)
        raise KafkaError(0, 'the query has failed')     # type: ignore[arg-type]

    def _abort(self, process: Process, messages: list[Staged | None]) -> None:
        """Abort the batch in a new process, which knows the plan only from the results of tasks."""
        known = next((message for message in messages if message is not None), None)
        if known is None:
            aborting = self._spawn(lambda other: abort_last(self._store(other), PREFIX) and None)
        else:
            aborting = self._spawn(lambda other: abort(self._store(other), known.plan) and None)
        while not aborting.is_over:
            process.turn()

    def _run_tasks(self, process: Process, found: Plan, unit: Unit) -> list[Staged | None]:
        results: list[Staged | None] = [None] * TASKS
        attempts: dict[int, list[Process]] = {task: [] for task in range(TASKS)}
        while None in results:
            if self.rng.random() < 0.002:
                self._abort(process, results)
                raise KafkaError(0, 'the query was stopped')        # type: ignore[arg-type]
            for task, result in enumerate(results):
                running = [each for each in attempts[task] if not each.is_over]
                if result is None and (not running or self.rng.random() < self.copies):
                    attempts[task].append(self._start_attempt(found, unit, task, results))
            process.turn()
        return results

    def _start_attempt(self, found: Plan, unit: Unit, task: int, results: list[Staged | None]) -> Process:
        number = next(self.attempt_numbers)

        def run(process: Process) -> None:
            rows = tuple(f'{unit.owner}.{unit.batch}.{task}.{number}.{index}'.encode() for index in range(2))
            message = self._attempt(process, found, unit, (task, number), rows)
            process.turn()
            if results[task] is None:
                results[task] = message
        return self._spawn(run)

    def _attempt(self, process: Process, found: Plan, unit: Unit, attempt: tuple[int, int],
                 rows: tuple[bytes, ...]) -> Staged:
        task, number = attempt
        is_staged = found.commit is Commit.DRIVER or (found.commit is Commit.AUTO and self.rng.random() < 0.5)
        if found.is_decided(unit) or self.rng.random() < 0.1:
            return Staged(found, unit)      # skipped, or without rows
        if is_staged:
            return Staged(found, unit, len(rows), rows)
        timeout_ms = NO_TIMEOUT_MS if found.is_two_phase else TIMEOUT_MS
        store, handle = self._store(process), None
        try:
            check_current(store, found)
            handle = store.write_rows(f'{tasks_of(PREFIX, found.pair)}{task}.{number}', rows, timeout_ms)
            check_current(store, found)
        except LateError as error:
            if handle is not None:
                store.end([handle], commit=False)
            return Staged(found, unit, late=str(error))
        return Staged(found, unit, len(rows), handle=handle)

    # ---- the result

    def check(self) -> None:
        """Assert that each unit was decided once, and that each of its rows is visible once and no other row is
        visible.
        """
        coordinator = self.coordinator
        assert not coordinator.is_decided_twice
        assert [name for name, task in coordinator.tasks.items() if task.state == 'Ongoing'] == []
        assert set(coordinator.visible.values()) <= {1}
        decided = {row for rows in coordinator.decided.values() for row in rows}
        lost = decided - set(coordinator.visible)
        assert set(coordinator.visible) <= decided
        if lost:
            assert self.losses, 'rows are lost, and no process has said so'
            assert lost <= {row for rows in coordinator.handles.values() for row in rows}
        for query in self.queries:
            for batch in range(query.next_batch):
                assert Unit(query.owner, batch) in coordinator.decided
