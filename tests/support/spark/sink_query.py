"""A streaming query that writes to the sink and ends by itself, and faults that the query's own processes cause. The
module imports no other package of the tests, so that a driver in a separate process can run it.
"""
from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from kbroker_tools.spark import KafkaLogDataSource
from kbroker_tools.spark.sink.writer import BATCH_ID

ROWS = 40
"""The number of rows of a micro-batch."""
TASKS = 3
END = 'the source has come to its end'
THE_END = f'[USER_RAISED_EXCEPTION] {END}'
"""The text with which an error begins when the query has ended. To search an error for `END` would not be enough: the
text of every error contains the plan, and the plan contains `END`.
"""
FAULTY = 'kbroker-faulty'
TASK_WAITS, TASK_RAISES, TASK_EXITS, COMMIT_RAISES_BEFORE, COMMIT_RAISES_AFTER = (
    'task waits', 'task raises', 'task exits', 'commit raises before', 'commit raises after')
AT_BATCH = 1
"""The number of the micro-batch in which the fault occurs."""


class FaultError(RuntimeError):
    """Raised as the fault that a test has chosen."""


class _Faults:
    """A writer that causes a fault. A task fails in its first attempt, and a commit fails until the flag file exists.
    For a task that waits, the flag is an address at which the test listens. The task sends its process id to the
    address.
    """

    def __init__(self, writer: Any, fault: str, flag: str):
        self.writer, self.fault, self.flag = writer, fault, flag

    def run_task(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        is_here = (context.getLocalProperty(BATCH_ID) in (None, str(AT_BATCH)) and context.partitionId() == 1
                   and context.attemptNumber() == 0)
        if is_here and self.fault == TASK_WAITS:
            host, _, port = self.flag.rpartition(':')
            with socket.create_connection((host, int(port))) as test:
                test.sendall(f'{os.getpid()}\n'.encode())
                test.recv(1)
        message: WriterCommitMessage = self.writer.write(iterator)
        if is_here and self.fault == TASK_EXITS:
            os._exit(3)
        if is_here and self.fault == TASK_RAISES:
            raise FaultError(TASK_RAISES)
        return message

    def run_commit(self, messages: list[WriterCommitMessage | None], *batch: int) -> None:
        is_here = batch in ((), (AT_BATCH,)) and not os.path.exists(self.flag)
        if is_here and self.fault == COMMIT_RAISES_BEFORE:
            self._strike()
        self.writer.commit(messages, *batch)
        if is_here and self.fault == COMMIT_RAISES_AFTER:
            self._strike()

    def _strike(self) -> None:
        with open(self.flag, 'x'):
            raise FaultError(self.fault)


class FaultyJobWriter(DataSourceArrowWriter):
    def __init__(self, faults: _Faults):
        self.faults = faults

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.faults.run_task(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.faults.run_commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.faults.writer.abort(messages)


class FaultyStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, faults: _Faults):
        self.faults = faults

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.faults.run_task(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.faults.run_commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.faults.writer.abort(messages, batchId)


class FaultySource(KafkaLogDataSource):
    """The source `kbroker` with two more options: `fault` is the fault of one task or commit, and `flag` the file that
    shows that it has occurred.
    """

    @classmethod
    def name(cls) -> str:
        return FAULTY

    def __init__(self, options: dict[str, str]):
        given = dict(options)
        self._fault, self._flag = given.pop('fault'), given.pop('flag')
        super().__init__(given)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return FaultyJobWriter(_Faults(super().writer(schema, overwrite), self._fault, self._flag))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return FaultyStreamWriter(_Faults(super().streamWriter(schema, overwrite), self._fault, self._flag))


def start_query(session: SparkSession, options: dict[str, str], checkpoint: str, batches: int) -> StreamingQuery:
    """Start a query whose source ends after `batches` micro-batches.

    The tasks of the next micro-batch fail before their first row.
    """
    if 'fault' in options:
        session.dataSource.register(FaultySource)
    frame = (session.readStream.format('rate-micro-batch').option('rowsPerBatch', ROWS)
             .option('numPartitions', TASKS).load()
             .selectExpr(f"IF(value < {ROWS * batches}, CAST(value AS STRING), raise_error('{END}')) AS value"))
    return (frame.writeStream.format(FAULTY if 'fault' in options else 'kbroker').options(**options)
            .option('checkpointLocation', checkpoint).start())


def error_of(query: StreamingQuery) -> str:
    """Wait until the query fails. It fails at the end of its source at the latest. Return the error's text."""
    try:
        query.awaitTermination()
    except Exception as error:
        return str(error)
    raise AssertionError('the query ended without an error')


def run_job(session: SparkSession, options: dict[str, str], rows: int) -> str | None:
    """Run a job that writes the numbers below `rows`. Return the text of its error, or None if it succeeded."""
    if 'fault' in options:
        session.dataSource.register(FaultySource)
    frame = session.range(0, rows, numPartitions=TASKS).selectExpr('CAST(id AS STRING) AS value')
    try:
        (frame.write.format(FAULTY if 'fault' in options else 'kbroker').options(**options).mode('append').save())
    except Exception as error:
        return str(error)
    return None
