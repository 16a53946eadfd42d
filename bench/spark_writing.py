"""Writing from Spark: Spark's own Kafka sink compared with the sink of `format("kbroker")`, with the same settings.

Spark makes the rows in memory. A job with the sink `noop` shows the time for making them. A job with `noop, Python`
also transfers the rows to Python, where they are discarded: no sink in Python can take less time. The overhead of a
sink in a micro-batch is the time of a stream of few rows with the sink, minus the time of the same stream with `noop`.
"""
from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from spark_bench import Bench, Measurement

from kbroker.client import Admin
from kbroker.client.admin import NewTopic

PARTITIONS = 8
TASKS = 4
KEY_BYTES = 16
FEW_ROWS = 8
FLOOR = 'noop'
CROSSING = 'noop, Python'
CONNECTOR = 'connector'
SINKS: dict[str, dict[str, str]] = {
    FLOOR: {},
    CROSSING: {},
    CONNECTOR: {},
    'ours, driver': {'commit': 'driver'},
    'ours, prepared': {'commit': 'prepared'},
}
TARGETS = {'ours, driver': 0.7, 'ours, prepared': 1.0}
"""Maps each kind of kbroker's sink to its goal: the least rows/s, as a multiple of the connector's rows/s."""
MOST_OVERHEAD_MS = 50
_names = itertools.count(1)


@dataclass(frozen=True)
class Job:
    """A job: rows of one size, and the producer settings that all sinks get."""

    record_bytes: int
    rows: int
    has_keys: bool = False
    codec: str = 'none'
    batch_bytes: int | None = 16_384
    """The batch.size of all sinks in bytes. If None, each sink has its default."""

    @property
    def name(self) -> str:
        keys = f', keys of {KEY_BYTES} B' if self.has_keys else ''
        batches = 'default batches' if self.batch_bytes is None else f'batches of {self.batch_bytes // 1024} KiB'
        return f'{self.record_bytes} B{keys}, {self.codec}, {batches}'

    def producer(self) -> dict[str, str]:
        batches = {} if self.batch_bytes is None else {'kafka.batch.size': str(self.batch_bytes)}
        return {'kafka.acks': 'all', 'kafka.compression.type': self.codec, **batches}


@dataclass
class Written:
    """The measured runs of a job, by sink."""

    job: Job
    runs: dict[str, list[Measurement]] = field(default_factory=dict)

    def median(self, sink: str, what: str) -> float:
        return statistics.median(getattr(run, what) for run in self.runs[sink])

    def rates(self, sink: str) -> list[float]:
        return [self.job.rows / run.seconds / 1e6 for run in self.runs[sink]]


def jobs(small_rows: int, large_rows: int) -> list[Job]:
    found = []
    for record_bytes, rows in ((100, small_rows), (1024, large_rows)):
        found += [Job(record_bytes, rows, batch_bytes=None), Job(record_bytes, rows, has_keys=True, batch_bytes=None),
                  Job(record_bytes, rows), Job(record_bytes, rows, has_keys=True),
                  Job(record_bytes, rows, codec='lz4', batch_bytes=131_072)]
    return found


class Writing:
    """Measures jobs and streams on the session and the brokers of a bench."""

    def __init__(self, bench: Bench):
        self._bench = bench
        self._sinks = list(SINKS)

    def measure(self, wanted: list[Job], rounds: int, say: Callable[[Written], None]) -> None:
        """Measure in rounds. Each round measures all sinks one after the other. An additional first round is the
        warm-up."""
        for job in wanted:
            written = Written(job, {sink: [] for sink in self._sinks})
            for number in range(-1, rounds):
                for sink in self._sinks[number % len(self._sinks):] + self._sinks[:number % len(self._sinks)]:
                    run = self._run(job, sink)
                    if number >= 0:
                        written.runs[sink].append(run)
            say(written)

    def _run(self, job: Job, sink: str) -> Measurement:
        with Admin(self._bench.kbroker.address) as admin:
            topic = _create(admin)
            write = _rows(self._bench.spark, job).write.mode('append')
            found = self._bench.measured(_to(write, sink, self._bench.kbroker.address, topic, job.producer()).save)
            self._check(job, sink, topic)
            assert admin.delete_topics([topic]) == {topic: None}
        return found

    def _check(self, job: Job, sink: str, topic: str) -> None:
        """Check that a query with read_committed finds all rows of the job."""
        if sink in (FLOOR, CROSSING):
            return
        found = self._bench.spark.read.format('kbroker').options(**{
            'kafka.bootstrap.servers': self._bench.kbroker.address, 'subscribe': topic}).load().count()
        assert found == job.rows, f'{sink}, {job.name}: found {found} rows, expected {job.rows}'

    def micro_batches(self, batches: int) -> dict[str, list[int]]:
        """Run a stream of few rows with each sink. Return the milliseconds of its micro-batches by sink, without the
        first ones."""
        found: dict[str, list[int]] = {}
        for sink in self._sinks:
            with Admin(self._bench.kbroker.address) as admin:
                topic = _create(admin)
                found[sink] = self._stream(sink, topic, batches)
                assert admin.delete_topics([topic]) == {topic: None}
        return found

    def _stream(self, sink: str, topic: str, batches: int) -> list[int]:
        frame = (self._bench.spark.readStream.format('rate-micro-batch').option('rowsPerBatch', FEW_ROWS)
                 .option('numPartitions', 1).load().selectExpr('CAST(CAST(value AS STRING) AS BINARY) AS value'))
        checkpoint = self._bench.work / f'checkpoint-{topic}'
        first = batches // 3
        write = frame.writeStream.option('checkpointLocation', str(checkpoint))
        query = _to(write, sink, self._bench.kbroker.address, topic, {}).start()
        try:
            while query.isActive and (query.lastProgress is None or query.lastProgress['batchId'] < first + batches):
                query.awaitTermination(0.1)
            if not query.isActive:
                raise query.exception()
            return [progress['durationMs']['triggerExecution'] for progress in query.recentProgress][first:]
        finally:
            query.stop()


def discarding_source() -> type:
    """Return the class of a sink that discards its rows. It is created in a function so that it is pickled by value."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
        WriterCommitMessage,
    )

    class JobWriter(DataSourceArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class StreamWriter(DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Discarding(DataSource):
        @classmethod
        def name(cls) -> str:
            return 'discarding'

        def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
            return JobWriter()

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
            return StreamWriter()

    return Discarding


def _create(admin: Admin) -> str:
    topic = f'written-{next(_names)}'
    assert admin.create_topics([NewTopic(topic, PARTITIONS)]) == {topic: None}
    return topic


def _rows(spark: Any, job: Job) -> Any:
    text = 'the quick brown fox jumps over it '
    columns = [f"CAST(rpad(CAST(id * 2654435761 AS STRING), {job.record_bytes}, '{text}') AS BINARY) AS value"]
    if job.has_keys:
        columns.append(f"CAST(lpad(CAST(id AS STRING), {KEY_BYTES}, '0') AS BINARY) AS key")
    return spark.range(0, job.rows, numPartitions=TASKS).selectExpr(*columns)


def _to(write: Any, sink: str, address: str, topic: str, settings: dict[str, str]) -> Any:
    """Return the writer of a job or a stream with the options of the sink."""
    if sink in (FLOOR, CROSSING):
        return write.format('noop' if sink == FLOOR else 'discarding')
    where = {'kafka.bootstrap.servers': address, 'topic': topic, **settings}
    if sink == CONNECTOR:
        return write.format('kafka').options(**where)
    return write.format('kbroker').options(**where, **SINKS[sink], transactionalIdPrefix=topic)


# ---- reporting

def ratios(results: list[Written]) -> Iterator[str]:
    targets = {sink: least for sink, least in TARGETS.items() if all(sink in each.runs for each in results)}
    yield '| rows written | ' + ' | '.join(f'{sink} / {CONNECTOR} (at least {least:g})'
                                   for sink, least in targets.items()) + ' |'
    yield '|---' * (len(targets) + 1) + '|'
    for each in results:
        found = [(statistics.median(each.rates(sink)) / statistics.median(each.rates(CONNECTOR)), least)
                 for sink, least in targets.items()]
        yield f'| {each.job.name} | ' + ' | '.join(
            f'{ratio:.2f}' + ('' if ratio >= least else ' **short**') for ratio, least in found) + ' |'


def rates(results: list[Written], spread: Callable[[list[float], str], str]) -> Iterator[str]:
    yield '| rows written | sink | Mrow/s | CPU s, JVM + Python | of the broker | others |'
    yield '|---|---|---|---|---|---|'
    for each in results:
        for sink in each.runs:
            jvm, python, broker, others = (each.median(sink, what) for what in (
                'jvm_cpu_s', 'python_cpu_s', 'brokers_cpu_s', 'others_share'))
            yield (f'| {each.job.name} | {sink} | {spread(each.rates(sink), ".2f")} | {jvm:.2f} + {python:.2f} | '
                   f'{broker:.2f} | {others:.0%} |')


def overheads(found: dict[str, list[int]], spread: Callable[[list[float], str], str]) -> Iterator[str]:
    yield f'| micro-batches of {FEW_ROWS} rows | ms | more than {FLOOR} (at most {MOST_OVERHEAD_MS}) |'
    yield '|---|---|---|'
    floor = statistics.median(found[FLOOR])
    for sink, times in found.items():
        more = statistics.median(times) - floor
        short = ' **short**' if sink in TARGETS and more > MOST_OVERHEAD_MS else ''
        yield f'| {sink} | {spread([float(time) for time in times], ".0f")} | {more:.0f}{short} |'

