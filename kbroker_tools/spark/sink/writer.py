"""The writers that PySpark calls. They run the protocol with rows from Spark.

Spark pickles the writer for the tasks, in a process of the driver. That is the moment of the plan. The commit of a
micro-batch runs in another process, on a writer that was not pickled and has no plan: the results of the tasks have it.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kbroker.client.stream_settings import ProducerSettings
from kbroker_tools.spark.sink import protocol
from kbroker_tools.spark.sink.ledger import BrokerStore
from kbroker_tools.spark.sink.options import SinkOptions
from kbroker_tools.spark.sink.protocol import JOB, QUERY, Plan, SinkError, Staged, Unit
from kbroker_tools.spark.sink.rows import RowChecks, Stage, check_schema
from kbroker_tools.spark.tasks import freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BATCH_ID, QUERY_ID = 'streaming.sql.batchId', 'sql.streaming.queryId'


@dataclass
class TaskResult(WriterCommitMessage):
    """The result of a task attempt, as Spark carries it to the commit."""

    staged: Staged


class _Planned:
    """The common part of both writers: the plan is made when Spark pickles the writer for the tasks."""

    options: SinkOptions
    owners: str
    """The tasks need the decisions of the owners whose names begin so."""
    plan: Plan | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self.plan is None:
            with closing(BrokerStore(self.options)) as store:
                self.plan = protocol.plan(store, self.options.prefix, self.owners)
        return self.__dict__

    def stage(self, unit: Unit, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        """Stage the rows of a task. A decided unit is skipped, and its rows are only consumed."""
        if self.plan is None:
            raise AssertionError('the task has a writer without a plan')
        freeze_imports()
        checks = RowChecks(self.options.topic, self._largest_record_bytes())
        stage = Stage(checks, self.options.max_driver_bytes)
        skips = self.plan.is_decided(unit)
        for batch in batches:
            if not skips:
                stage.add(batch)
        return TaskResult(Staged(self.plan, unit, checks.rows, tuple(stage.chunks),
                                 tuple(sorted(checks.highest_partitions.items()))))

    def _largest_record_bytes(self) -> int:
        return ProducerSettings.from_properties(self.options.kafka).max_request_size_bytes

    def decide(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the staged rows and the decision in one transaction."""
        staged = [message.staged if isinstance(message, TaskResult) else None for message in messages]
        with closing(BrokerStore(self.options)) as store:
            protocol.commit(store, staged, self.options.max_driver_bytes)


class JobWriter(_Planned, DataSourceArrowWriter):
    """The writer of `df.write`. The unit is the job."""

    def __init__(self, options: SinkOptions, schema: StructType):
        check_schema(schema, options.topic)
        self.options = options
        self.owners = JOB + (options.idempotency_key or '')

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.stage(Unit(self.owners), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.decide(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave everything as it is: a failed commit has aborted its transaction, and tasks write nothing."""


class StreamWriter(_Planned, DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`. The unit is the micro-batch."""

    def __init__(self, options: SinkOptions, schema: StructType):
        check_schema(schema, options.topic)
        self.options = options
        self.owners = QUERY

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        batch = context and context.getLocalProperty(BATCH_ID)
        query = context and context.getLocalProperty(QUERY_ID)
        if not batch or not query:
            raise SinkError(f'found a task without {BATCH_ID} and {QUERY_ID}, expected one of a micro-batch')
        return self.stage(Unit(QUERY + query, int(batch)), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.decide(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave everything as it is: a failed commit has aborted its transaction, and tasks write nothing.

        After a commit without an answer, the next plan settles the transaction, or its timeout ends it.
        """
