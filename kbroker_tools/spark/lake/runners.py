"""The places where the tasks of a run work: processes of this machine, or a Spark cluster."""
from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from kbroker.base.parent_process import end_with_parent
from kbroker_tools.spark.lake.rows import TableWork, Written
from kbroker_tools.spark.ledger import IngestError

if TYPE_CHECKING:
    from pyspark import SparkContext

MOST_WRITE_THREADS = 2
"""The threads of a process that write files. To write rows takes up to three times as long as to read them."""
TRIES = 4
"""The attempts at a task whose process dies, as many as Spark makes."""

Advance = Callable[[int, int], None]
"""A function that is called with (tasks that have ended, all tasks)."""


class Runner(Protocol):
    workers: int
    """The number of tasks that work at the same time."""
    write_threads: int
    """The threads of each task that write files, as TableWork has them."""

    def run(self, work: TableWork, bundles: Sequence[list[Any]], advance: Advance) -> list[Written]:
        """Run every bundle, and return the result of one attempt at each. Raise what a task raises."""

    def stop(self) -> bool:
        """End the tasks that are at work, and the workers. Return True if none of them can write a file any more."""


class ProcessRunner:
    """Processes of this machine. They start with the first run that has several tasks, and stay for the next runs.

    A run with one task works in this process: to start another one takes 0.6 s of processor time for an Iceberg table
    and 0.3 s for a Delta table, mostly for imports, which is more than a run of `--follow` with few records takes.
    """

    def __init__(self, workers: int | None = None, write_threads: int | None = None):
        """Without `workers`, start a process for each core. Without `write_threads`, no core is idle."""
        self.workers = workers or cores()
        self.write_threads = _threads_for_idle_cores(self.workers) if write_threads is None else write_threads
        self._pool: ProcessPoolExecutor | None = None

    def run(self, work: TableWork, bundles: Sequence[list[Any]], advance: Advance) -> list[Written]:
        if len(bundles) == 1:
            return [work.run(bundles[0], uuid4().hex)]
        found: dict[int, Written] = {}
        for _ in range(TRIES):
            left = [number for number in range(len(bundles)) if number not in found]
            try:
                self._run(work, bundles, left, found, advance)
                return [found[number] for number in range(len(bundles))]
            except BrokenProcessPool:  # the kernel may have killed a process for its memory
                self.stop()
        raise IngestError(f'a process that writes files was killed, {TRIES} times; if its memory is the reason, give '
                          'fewer --workers or a smaller --target-file-size')

    def _run(self, work: TableWork, bundles: Sequence[list[Any]], left: Sequence[int], found: dict[int, Written],
             advance: Advance) -> None:
        """Run the bundles with the numbers `left`. A limited number of them is in the pool, because a pool keeps the
        pickled work of all."""
        pool, waiting = self._opened(), list(reversed(left))
        running: dict[Future[Written], int] = {}
        while waiting or running:
            while waiting and len(running) <= self.workers:
                number = waiting.pop()
                running[pool.submit(work.run, bundles[number], uuid4().hex)] = number
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                found[running.pop(done)] = done.result()
                advance(len(found), len(bundles))

    def _opened(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # The parent has threads of its libraries, which a fork would not copy.
            self._pool = ProcessPoolExecutor(self.workers, get_context('spawn'), _begin_worker, (os.getpid(),))
        return self._pool

    def stop(self) -> bool:
        if self._pool is not None:
            for process in list((self._pool._processes or {}).values()):
                process.kill()  # an attempt without a result is the same as none
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        return True


def cores() -> int:
    """Return the number of cores that this process may use. Only Linux knows that; others tell those of the machine."""
    return len(os.sched_getaffinity(0)) if sys.platform == 'linux' else os.cpu_count() or 1


def _threads_for_idle_cores(workers: int) -> int:
    return min(cores() // workers, MOST_WRITE_THREADS) if workers < cores() else 0


def _begin_worker(parent: int) -> None:
    """Prepare a process: Ctrl-C is the business of its parent, and it ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)


class SparkRunner:
    """The executors of a Spark cluster. No row passes through Java."""

    write_threads = 0       # Spark gives each task one core

    def __init__(self, context: SparkContext):
        self._context = context
        self.workers = context.defaultParallelism

    def run(self, work: TableWork, bundles: Sequence[list[Any]], advance: Advance) -> list[Written]:
        def run(tasks: Any) -> Any:
            from pyspark import TaskContext
            task: Any = TaskContext.get()
            for each in tasks:
                # Spark gives each attempt at a task, also a speculative one, a number of its own.
                yield work.run(each, f'{task.taskAttemptId():020d}')

        return list(self._context.parallelize(bundles, len(bundles)).mapPartitions(run).collect())

    def stop(self) -> bool:
        """Return False: Spark cannot tell when an attempt on another machine has ended. The owner of the session stops
        it."""
        return False
