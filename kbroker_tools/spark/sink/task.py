"""One task attempt. It stages its rows for the commit, or writes them in a transaction that it leaves open.

    commit=driver      the rows are staged
    commit=prepared    the rows are written
    commit=auto        up to maxStagedBytes, the rows are staged; if there are more, all rows of the task are written
"""
from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from kbroker.client.stream_settings import ProducerSettings
from kbroker_tools.spark.sink.options import SinkOptions
from kbroker_tools.spark.sink.protocol import check_current
from kbroker_tools.spark.sink.rows import RowChecks, Stage, send_rows, staged_batches
from kbroker_tools.spark.sink.store import BrokerStore, initialize, is_stale
from kbroker_tools.spark.sink.values import TOO_LARGE, Commit, Handle, Plan, SinkError, Staged, Unit, tasks_of

if TYPE_CHECKING:
    import pyarrow as pa


class Attempt(NamedTuple):
    """The numbers with which Spark identifies a task attempt."""

    partition: int
    task_attempt: int


class RowsToTopics:
    """The rows of one task attempt, which one producer sends to their topics. A topic is checked before rows are sent
    to it."""

    def __init__(self, options: SinkOptions, transactional_id: str | None = None, timeout_ms: int | None = None):
        self._topic = options.topic
        self._checked: dict[str, int] = {}
        self._store = BrokerStore(options)
        try:
            self.producer = self._store.producer(transactional_id, timeout_ms)
        except BaseException:
            self._store.close()
            raise

    def check_cluster(self, planned: str | None) -> None:
        """Raise SinkError unless this cluster has the id that the plan names."""
        self._store.check_cluster(planned)

    def check_current(self, plan: Plan) -> None:
        """Raise LateError if the plan can no longer decide."""
        check_current(self._store, plan)

    def send(self, batches: Iterable[pa.RecordBatch], checks: RowChecks) -> None:
        """Queue rows that `checks` has checked. Raise SinkError if their topic or partition does not exist."""
        if checks.highest_partitions != self._checked:
            self._store.check_partitions(checks.highest_partitions)
            self._checked = dict(checks.highest_partitions)
        for batch in batches:
            send_rows(self.producer, batch, self._topic)

    def close(self) -> None:
        """Close the connections. A transaction that is open stays open."""
        self._store.close()


class Task:
    """The work of a task attempt under a plan.

    As a context manager, it aborts its transaction after an exception. If another process has ended the transaction
    because the plan can no longer decide, LateError replaces the original exception.
    """

    def __init__(self, options: SinkOptions, plan: Plan, attempt: Attempt):
        self._options = options
        self._plan = plan
        self._attempt = attempt
        self._checks = RowChecks(options.topic, largest_record_bytes(options))
        self._stage = Stage()
        self._target: RowsToTopics | None = None
        self._transactional_id = f'{tasks_of(plan.prefix, plan.pair)}{attempt.partition}.{attempt.task_attempt}'

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if self._target is None:
            return
        try:
            if error is not None:
                self._target.producer.__exit__(kind, error, traceback)
                if is_stale(error):
                    self._target.check_current(self._plan)
        finally:
            self._target.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Stage or send the rows of a batch. Raise SinkError if a row cannot be written."""
        batch = self._checks.checked(batch)
        if not batch.num_rows:
            return
        if self._target is not None:
            self._target.send([batch], self._checks)
        elif self._plan.commit is Commit.PREPARED:
            self._begin().send([batch], self._checks)
        else:
            self._stage.add(batch)
            self._check_stage()

    def _check_stage(self) -> None:
        size, limit = self._stage.size_bytes, self._options.max_driver_bytes
        if self._plan.commit is Commit.AUTO and size > min(self._options.max_staged_bytes, limit):
            self._begin().send(staged_batches(self._stage.chunks), self._checks)
            self._stage = Stage()
        elif size > limit:
            raise SinkError(f'a task has staged {size:,} bytes, maxDriverBytes is {limit:,}: '
                            f'{TOO_LARGE[self._plan.commit]}')

    def _begin(self) -> RowsToTopics:
        """Begin the transaction of the attempt."""
        if self._attempt.partition >= self._options.max_prepared:
            raise SinkError(f'found rows in task {self._attempt.partition}, but maxPrepared is '
                            f'{self._options.max_prepared}: the tasks are numbered from 0, and one of a higher number '
                            'may not open a transaction. Raise it, or use `repartition` for fewer tasks')
        timeout_ms = None if self._plan.is_two_phase else self._options.task_timeout_ms
        target = self._target = RowsToTopics(self._options, self._transactional_id, timeout_ms)
        target.check_cluster(self._plan.cluster_id)
        target.check_current(self._plan)
        initialize(target.producer)
        target.producer.begin_transaction()
        return target

    def result(self, unit: Unit) -> Staged:
        """Wait until all rows are written. Return the staged rows or the open transaction. Raise LateError if no plan
        would end the transaction."""
        handle = None
        if self._target is not None:
            self._target.producer.flush()
            self._target.check_current(self._plan)
            handle = Handle(self._transactional_id, self._target.producer.transactions.producer)
        partitions = () if handle is not None else tuple(sorted(self._checks.highest_partitions.items()))
        return Staged(self._plan, unit, self._checks.rows, tuple(self._stage.chunks), partitions, handle)


def largest_record_bytes(options: SinkOptions) -> int:
    return ProducerSettings.from_properties(options.kafka).max_request_size_bytes
