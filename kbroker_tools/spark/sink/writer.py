"""The writers that PySpark calls. They run the protocol of the sink with rows from Spark.

In a process of the driver, Spark pickles the writer for the tasks, and the plan is made at this moment. The commit of a
micro-batch runs in another process. Its writer was not pickled and has no plan, so it finds the plan in the results of
the tasks.
"""
from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pickle import PickleError
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kbroker.base.errors import KafkaError
from kbroker.client.errors import ClientError
from kbroker_tools.base.render import words_for_time
from kbroker_tools.spark.messages import EXPLAINED, message_first
from kbroker_tools.spark.sink import protocol
from kbroker_tools.spark.sink.id_counts import warn_of_many_ids
from kbroker_tools.spark.sink.options import SinkOptions
from kbroker_tools.spark.sink.protocol import Bounds, Stopped, Wanted
from kbroker_tools.spark.sink.rows import RowChecks, check_schema
from kbroker_tools.spark.sink.settling import in_words
from kbroker_tools.spark.sink.store import BrokerStore
from kbroker_tools.spark.sink.task import Attempt, RowsToTopics, Task, largest_record_bytes
from kbroker_tools.spark.sink.values import (
    JOB,
    QUERY,
    Commit,
    Decision,
    LateError,
    LostRowsError,
    Plan,
    SinkError,
    Staged,
    Unit,
)
from kbroker_tools.spark.tasks import freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

BATCH_ID, QUERY_ID = 'streaming.sql.batchId', 'sql.streaming.queryId'

Messages = list[WriterCommitMessage | None]


@dataclass
class TaskResult(WriterCommitMessage):
    """The result of a task attempt. Spark passes it to the commit."""

    staged: Staged


class PlanError(PickleError):
    """A plan has failed. It is a PickleError because PySpark raises a PickleError unchanged. For any other error during
    pickling, PySpark prints a traceback."""


@contextmanager
def _planning() -> Iterator[None]:
    """Raise the explained errors of a plan as PlanError."""
    with message_first(PlanError):
        try:
            yield
        except EXPLAINED as error:
            raise PlanError(f'{type(error).__name__}: {error}') from error


class _Writer:
    """A writer for rows with columns that the sink accepts."""

    def __init__(self, options: SinkOptions, schema: StructType):
        check_schema(schema, options.topic)
        self.options = options


class _Planned(_Writer, ABC):
    """The common part of the two writers with delivery=exactly_once. The plan is made when Spark pickles the writer."""

    plan: Plan | None = None

    @abstractmethod
    def is_owner(self, owner: str) -> bool:
        """Return whether the tasks need to know the last decision of this owner."""

    def __getstate__(self) -> dict[str, Any]:
        if self.plan is None:
            with _planning():
                self.plan = self._make_plan()
        freeze_imports()
        return self.__dict__

    def _make_plan(self) -> Plan:
        with closing(BrokerStore(self.options)) as store:
            made = protocol.plan(store, self.options.prefix, self.is_owner,
                                 Wanted(self.options.commit, self.options.two_phase, self.options.decision_margin_ms))
            warn_of_many_ids(store, made)
            return made

    @message_first()
    def run_task(self, unit: Unit, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        """Stage or write the rows of a task. If the unit is already decided or the task is late, only read the rows."""
        if self.plan is None:
            raise AssertionError('the task has a writer without a plan')
        freeze_imports()
        if self.plan.is_decided(unit):
            return self._without_rows(Staged(self.plan, unit), batches)
        context = TaskContext.get()
        if context is None:
            raise SinkError('found no context of a task, expected one of Spark')
        attempt = Attempt(context.partitionId(), context.taskAttemptId())
        try:
            with Task(self.options, self.plan, attempt) as task:
                for batch in batches:
                    task.add(batch)
                return TaskResult(task.result(unit))
        except LateError as error:
            for failure in getattr(error, '__notes__', ()):
                logger.warning('task %d (attempt %d) of %s came too late: %s. If its transaction is open, the next '
                               'plan of the prefix %r ends it', *attempt, unit, failure, self.plan.prefix)
            return self._without_rows(Staged(self.plan, unit, late=str(error)), batches)

    @staticmethod
    def _without_rows(staged: Staged, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        """Read the rows of a task without writing them, because Spark expects that all rows are read. Return the result
        of the task."""
        for _ in batches:
            pass
        return TaskResult(staged)

    @message_first()
    def decide(self, messages: Messages) -> None:
        """Write the staged rows and the decision in one transaction. Then end the transactions of the tasks."""
        bounds = Bounds(self.options.max_driver_bytes, self.options.decision_margin_ms)
        with closing(BrokerStore(self.options)) as store:
            if protocol.commit(store, _staged(messages), bounds) is None:
                unit = next(staged.unit for staged in _staged(messages) if staged is not None)
                logger.warning('%s', self.skipped(unit, store.visible_decisions(self.options.prefix).decisions))
        freeze_imports()

    def skipped(self, unit: Unit, decisions: Sequence[Decision]) -> str:
        """Return a sentence which says that the unit was already written."""
        again = '' if unit.owner.startswith(QUERY) else '. For another job, give another idempotencyKey'
        return f'{written_before(unit, self.options.prefix, decisions)}, so nothing was written now{again}'

    def withdraw(self, messages: Messages) -> None:
        """End the transactions of the tasks, if possible. The next plan ends the remaining transactions.

        Errors are logged and not raised. If this method raised an error, Spark would report only that the job has
        failed, and not the original error of the commit.
        """
        if self.options.commit is Commit.DRIVER:
            return      # no connection is needed: `protocol.abort` would do nothing
        results = [staged for staged in _staged(messages) if staged is not None]
        plan = results[0].plan if results else self.plan
        what = f'{results[0].unit if results else "the last micro-batch or job"} of prefix {self.options.prefix!r}'
        try:
            with closing(BrokerStore(self.options)) as store:
                if plan is not None:
                    stopped = protocol.abort(store, plan)
                else:
                    stopped = protocol.abort_last(store, self.options.prefix)
        except LostRowsError as error:
            logger.warning('%s was stopped: %s', what, error)
        except (KafkaError, ClientError) as error:
            logger.warning('%s was stopped, and could not be withdrawn: %s. The next plan of the prefix ends its '
                           'transactions, and so does `kbroker-transactions finish-spark --prefix %s`', what, error,
                           self.options.prefix)
        else:
            if stopped is not None:
                logger.warning('%s was stopped: %s', what, _withdrawn(stopped))


def written_before(unit: Unit, prefix: str, decisions: Sequence[Decision]) -> str:
    """Return the beginning of a sentence which says when the unit was written, if the ledger still has it."""
    words = f'{unit} with the prefix {prefix!r} was written before'
    for decision in decisions:
        if decision.unit == unit and decision.time_ms is not None:
            words += f' ({decision.rows:,} rows, {words_for_time(decision.time_ms)})'
    return words


def _withdrawn(stopped: Stopped) -> str:
    """Return a sentence about the result of the withdrawal. If the unit was decided, the withdrawal has completed its
    commit."""
    ended = stopped.ended
    if ended.committed:
        return f'it was decided, and {len(ended.committed)} transactions of its tasks were committed: ' \
               f'{in_words(ended.committed)}'
    if stopped.is_decided:
        return 'it was decided before, and none of its transactions was left to commit'
    if ended.aborted:
        return f'it was withdrawn, and {len(ended.aborted)} transactions of its tasks were aborted: ' \
               f'{in_words(ended.aborted)}'
    return 'its driver can no longer commit it, and no transaction of its tasks was open'


def _staged(messages: Messages) -> list[Staged | None]:
    return [message.staged if isinstance(message, TaskResult) else None for message in messages]


class JobWriter(_Planned, DataSourceArrowWriter):
    """The writer of `df.write` with delivery=exactly_once. The unit is the job."""

    def __init__(self, options: SinkOptions, schema: StructType):
        super().__init__(options, schema)
        self.unit = Unit(JOB + (options.idempotency_key or ''))

    def is_owner(self, owner: str) -> bool:
        return self.unit.is_repeatable and owner == self.unit.owner

    def _make_plan(self) -> Plan:
        made = super()._make_plan()
        if self.options.refuses_repetition and made.is_decided(self.unit):
            with closing(BrokerStore(self.options)) as store:
                decisions = store.visible_decisions(made.prefix).decisions
            raise SinkError(f'{written_before(self.unit, made.prefix, decisions)}, and ifWritten=error. For another '
                            'job, give another idempotencyKey')
        return made

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.run_task(self.unit, iterator)

    def commit(self, messages: Messages) -> None:
        self.decide(messages)

    def abort(self, messages: Messages) -> None:
        self.withdraw(messages)


class StreamWriter(_Planned, DataSourceStreamArrowWriter):
    """The writer of `df.writeStream` with delivery=exactly_once. The unit is the micro-batch."""

    def is_owner(self, owner: str) -> bool:
        return owner.startswith(QUERY)  # when a micro-batch is planned, its query is not known

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        batch = context and context.getLocalProperty(BATCH_ID)
        query = context and context.getLocalProperty(QUERY_ID)
        if not batch or not query:
            raise SinkError(f'found a task without {BATCH_ID} and {QUERY_ID}, expected one of a micro-batch')
        return self.run_task(Unit(QUERY + query, int(batch)), iterator)

    def commit(self, messages: Messages, batchId: int) -> None:
        self.decide(messages)

    def abort(self, messages: Messages, batchId: int) -> None:
        self.withdraw(messages)


class _Direct(_Writer):
    """The common part of the two writers with delivery=at_least_once. Tasks write without transactions.

    Only a driver that creates topics connects to the broker before the tasks.
    """

    is_checked = False

    def __getstate__(self) -> dict[str, Any]:
        if self.options.new_topics is not None and not self.is_checked:
            with _planning(), closing(BrokerStore(self.options)) as store:
                store.check_topic()
                self.is_checked = True
        return self.__dict__

    @message_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        freeze_imports()
        checks = RowChecks(self.options.topic, largest_record_bytes(self.options))
        with closing(RowsToTopics(self.options)) as target, target.producer:
            for batch in iterator:
                target.send([checks.checked(batch)], checks)
        return WriterCommitMessage()

    def commit(self, messages: Messages, batchId: int = 0) -> None:
        """Do nothing, because the tasks have already written the rows."""

    def abort(self, messages: Messages, batchId: int = 0) -> None:
        """Do nothing, because rows that were written cannot be removed."""


class DirectJobWriter(_Direct, DataSourceArrowWriter):
    """The writer of `df.write` with delivery=at_least_once."""


class DirectStreamWriter(_Direct, DataSourceStreamArrowWriter):
    """The writer of `df.writeStream` with delivery=at_least_once."""
