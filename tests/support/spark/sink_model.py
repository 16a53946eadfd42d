"""A coordinator and a ledger in memory for the protocol of the Spark sink, and processes that use them in turns. A
process makes one call in each turn, so another process can act between any two calls. A process is a thread that runs
only while the schedule waits for it, so a seed always produces the same schedule.
"""
from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker_tools.spark.sink.values import (
    NO_TIMEOUT_MS,
    BrokerFacts,
    Decision,
    Handle,
    OpenTransaction,
    SinkError,
    Staged,
    Unit,
    Visible,
)

LIMIT_S = 60


class Death(BaseException):
    """Raised to end a process. No `except Exception` of the protocol catches it."""


@dataclass
class TaskTransaction:
    pair: ProducerIdAndEpoch
    timeout_ms: int
    began_ms: int
    rows: list[bytes] = field(default_factory=list)
    state: str = 'Ongoing'


@dataclass
class Written:
    """A transaction that a driver wrote and has not decided."""

    staged: Sequence[Staged]
    decision: Decision


class Coordinator:
    """A model of the broker. Its clock advances by a millisecond with each turn."""

    def __init__(self, transaction_version: int = 2, has_two_phase: bool = True):
        self.facts = BrokerFacts('cluster', transaction_version, has_two_phase)
        self.now_ms = 0
        self.drivers_pair = ProducerIdAndEpoch(7, 0)
        self.open_decision: Written | None = None
        self.tasks: dict[str, TaskTransaction] = {}
        self.visible: Counter[bytes] = Counter()
        self.ledger: dict[bytes, bytes] = {}
        self.decided: dict[Unit, list[bytes]] = {}
        """The rows of each decided unit, including those of lost transactions."""
        self.is_decided_twice = False
        self.handles: dict[Handle, list[bytes]] = {}
        """The rows of each decided transaction of a task."""

    def tick(self) -> None:
        self.now_ms += 1
        for task in self.tasks.values():
            if task.state == 'Ongoing' and self.now_ms - task.began_ms > task.timeout_ms:
                task.state = 'CompleteAbort'

    def raise_epoch(self) -> None:
        self.open_decision = None
        self.drivers_pair = self.drivers_pair._replace(producer_epoch=self.drivers_pair.producer_epoch + 1)

    def begin(self, transactional_id: str, timeout_ms: int) -> Handle:
        assert transactional_id not in self.tasks, 'the id of an attempt is used twice'
        pair = ProducerIdAndEpoch(1000 + len(self.tasks), 0)
        self.tasks[transactional_id] = TaskTransaction(pair, timeout_ms, self.now_ms)
        return Handle(transactional_id, pair)

    def produce(self, handle: Handle, row: bytes) -> None:
        task = self.tasks[handle.transactional_id]
        if task.state != 'Ongoing':
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, 'the transaction has ended')
        task.rows.append(row)

    def end(self, handle: Handle, commit: bool) -> bool:
        """End the transaction. Return whether its outcome is the requested one."""
        task = self.tasks.get(handle.transactional_id)
        if task is None or task.pair != handle.pair:
            return False
        wanted = 'CompleteCommit' if commit else 'CompleteAbort'
        if task.state == 'Ongoing':
            task.state = wanted
            if commit:
                self.visible.update(task.rows)
        return task.state == wanted

    def decide(self) -> None:
        """Commit the open transaction of the drivers."""
        assert self.open_decision is not None
        staged, decision = self.open_decision.staged, self.open_decision.decision
        rows = [row for message in staged for row in message.chunks]
        self.visible.update(rows)
        self.handles = {handle: list(self.tasks[handle.transactional_id].rows) for handle in decision.handles}
        for written in self.handles.values():
            rows += written
        if staged:      # the ledger of an accepted loss has no rows of its own
            self.is_decided_twice |= decision.unit in self.decided and decision.unit.is_repeatable
            self.decided[decision.unit] = self.decided.get(decision.unit, []) + rows
        self.ledger.pop(decision.key(), None)
        self.ledger[decision.key()] = decision.value()
        self.raise_epoch()


class MemoryStore:
    """The protocol's store.

    It calls `turn` before each effect. `loses_answer` returns whether the answer to the next decision is lost.
    `lacks_one` returns whether the next list lacks a transaction, as a list may while a coordinator moves.
    """

    def __init__(self, coordinator: Coordinator, turn: Callable[[], None] = lambda: None,
                 loses_answer: Callable[[], bool] = lambda: False, lacks_one: Callable[[], bool] = lambda: False):
        self.coordinator = coordinator
        self._turn = turn
        self._loses_answer = loses_answer
        self._lacks_one = lacks_one

    def check_topic(self) -> None:
        """Do nothing: a store in memory has all topics."""

    def broker(self, prefix: str) -> BrokerFacts:
        self._turn()
        return self.coordinator.facts

    def fence(self, prefix: str, is_urgent: bool = False) -> ProducerIdAndEpoch:
        self._turn()
        self.coordinator.raise_epoch()
        return self.coordinator.drivers_pair

    def withdraw(self, prefix: str, pair: ProducerIdAndEpoch) -> None:
        self._turn()
        if self.coordinator.drivers_pair == pair:
            self.coordinator.raise_epoch()

    def pair(self, prefix: str) -> ProducerIdAndEpoch:
        self._turn()
        return self.coordinator.drivers_pair

    def decisions(self, prefix: str) -> list[Decision]:
        self._turn()
        return [Decision.read(key, value) for key, value in self.coordinator.ledger.items()]

    def visible_decisions(self, prefix: str) -> Visible:
        return Visible(self.decisions(prefix), False)

    def expiry_interval_ms(self, prefix: str) -> int | None:
        """Return None: there is no interval, because `tick` ends transactions as soon as they expire."""

    def write(self, staged: Sequence[Staged], decision: Decision, check: Callable[[], None]) -> None:
        self._turn()
        self._check_fence(decision)
        mine = self.coordinator.open_decision = Written(staged, decision)
        check()
        self._turn()
        self._check_fence(decision)
        assert self.coordinator.open_decision is mine
        self.coordinator.decide()
        if self._loses_answer():
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, 'the answer was lost')

    def _check_fence(self, decision: Decision) -> None:
        if decision.pair != self.coordinator.drivers_pair:
            raise SinkError('fenced')

    def open_transactions(self, beginning: str, longer_than_ms: int = -1,
                          also: Collection[Handle] = ()) -> list[OpenTransaction]:
        self._turn()
        found = {Handle(name, task.pair): task for name, task in self.coordinator.tasks.items()
                 if task.state == 'Ongoing'}
        return [OpenTransaction(handle, task.timeout_ms) for handle, task in found.items()
                if handle in also or (
                    handle.transactional_id.startswith(beginning)
                    and self.coordinator.now_ms - task.began_ms > longer_than_ms and not self._lacks_one())]

    def end(self, handles: Collection[Handle], commit: bool) -> list[Handle]:
        refused = []
        for handle in handles:
            self._turn()
            if not self.coordinator.end(handle, commit):
                refused.append(handle)
        return refused

    def aborted(self, handles: Collection[Handle]) -> list[Handle]:
        self._turn()
        return [handle for handle in handles
                if self.coordinator.tasks[handle.transactional_id].state == 'CompleteAbort']

    def write_rows(self, transactional_id: str, rows: Sequence[bytes], timeout_ms: int = NO_TIMEOUT_MS) -> Handle:
        """Write the rows of a task attempt, and leave its transaction open."""
        self._turn()
        handle = self.coordinator.begin(transactional_id, timeout_ms)
        for row in rows:
            self._turn()
            self.coordinator.produce(handle, row)
        return handle


class Process:
    """A thread that runs only while `run_turn` waits for it. It runs up to its next call of `turn`."""

    def __init__(self, work: Callable[[Process], None]):
        self.is_over = False
        self.has_succeeded = False
        self.error: BaseException | None = None
        self._dies = False
        self._work = work
        self._may_run = threading.Semaphore(0)
        self._has_run = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def turn(self) -> None:
        """End the turn, and wait until the schedule starts the next one. The thread of the process calls this method.
        """
        self._has_run.release()
        assert self._may_run.acquire(timeout=LIMIT_S)
        if self._dies:
            raise Death

    def run_turn(self) -> None:
        """Let the process run to its next turn."""
        self._may_run.release()
        assert self._has_run.acquire(timeout=LIMIT_S)

    def kill(self) -> None:
        """End the process at its current turn."""
        if not self.is_over:
            self._dies = True
            self.run_turn()
            assert self.is_over
        self._thread.join(LIMIT_S)

    def _run(self) -> None:
        assert self._may_run.acquire(timeout=LIMIT_S)
        try:
            if not self._dies:
                self._work(self)
                self.has_succeeded = True
        except Death:
            pass
        except BaseException as error:
            self.error = error
        self.is_over = True
        self._has_run.release()
