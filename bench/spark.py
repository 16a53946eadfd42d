"""Reading into Spark and writing from Spark: Spark's own connector compared with `format("kbroker")`.

    python bench/spark.py [--what reading|writing] [--quick] [--rounds N] [--cells PATTERN] [--markdown FILE]

`bench/spark_writing.py` describes how writing is measured. To measure reading, one Spark on two cores reads the same
records from these sources:

  connector, Kafka     Spark's own connector, from Apache Kafka
  connector, kbroker   Spark's own connector, from kbroker
  ours, broker         format("kbroker"), from kbroker, over the protocol
  ours, files          format("kbroker"), from the broker's log directory
  transport            a source that repeatedly yields one prebuilt Arrow batch: the most that Spark takes from Python

Each round reads all sources, one after the other. The table has medians over the rounds with minimum and maximum. Rates
count the records that a read_committed consumer gets, over the whole job. The fixed cost of a job is measured
separately, with a topic of few records. All sources get the same number of tasks. No source in Python is faster than
`transport`. If the rate of `transport` is below the target's multiple of the connector's rate, the table shows
**bound**. CPU is that of the JVM and of the Python processes; `others` is the share of the machine used by unrelated
processes. Python's processes and Spark communicate over Unix sockets.

Only one topic exists at a time, so that all of it stays in memory. Each round measures the cells of this topic. Needs
Java and Maven. With --quick everything runs once with few records, and the figures are meaningless.
"""
from __future__ import annotations

import os
import pathlib
import platform
import random
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import click

ROOT = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tests'), str(ROOT / 'bench')]

import spark_writing  # noqa: E402
from spark_bench import CORES, Bench, Measurement, connector_jars  # noqa: E402
from spark_topics import KEY_BYTES, Filler, Topic, value_of  # noqa: E402

from kbroker.record.compression import Compression  # noqa: E402

TRANSPORT_ROWS = 10_000
TRANSPORT_BYTES = 1024 * 1024
"""The size of an Arrow batch of `transport` in bytes of values. This and TRANSPORT_ROWS are the sizes of
format("kbroker")."""
ACTIONS = ('count', 'noop', 'parquet')
SOURCES = ('connector, Kafka', 'connector, kbroker', 'ours, broker', 'ours, files', 'transport')
TARGETS = (('ours, files', 'connector, Kafka', 3.0), ('ours, files', 'transport', 0.8),
           ('ours, broker', 'connector, Kafka', 1.5))
FEW_RECORDS = Topic(10_000, partitions=CORES * 2, records=1)  # the smallest fill of a topic
FIXED_ROUNDS = 7


@dataclass(frozen=True)
class Cell:
    """A measurement of all sources: one row of the table."""

    topic: Topic
    action: str

    @property
    def name(self) -> str:
        aborted = f', {self.topic.aborted_percent}% aborted' if self.topic.aborted_percent else ''
        single = ', one partition' if self.topic.partitions == 1 else ''
        return f'{self.topic.record_bytes} B, {self.topic.codec.name.lower()}{aborted}{single}: {self.action}'


@dataclass
class Result:
    cell: Cell
    runs: dict[str, list[Measurement]] = field(default_factory=dict)

    def rate(self, source: str) -> float:
        return self.cell.topic.visible_records / self.median(source, 'seconds')

    def median(self, source: str, what: str) -> float:
        return statistics.median(getattr(run, what) for run in self.runs[source])


def cells(small_records: int, large_records: int) -> list[Cell]:
    """Return all cells. Some read plain topics; the others vary the action, the codec or the share of aborted
    transactions."""
    found = []
    for record_bytes, records in ((100, small_records), (1024, large_records)):
        plain = Topic(record_bytes, records=records)
        found += [Cell(plain, action) for action in ACTIONS]
        found += [Cell(replace(plain, codec=codec), 'noop') for codec in (Compression.LZ4, Compression.ZSTD)]
        found += [Cell(replace(plain, aborted_percent=percent), 'noop') for percent in (10, 50)]
    return [*found, Cell(Topic(100, partitions=1, records=small_records), 'noop')]


# ---- sources

def transport_source() -> type:
    """Return the class of the source `transport`. It is created in a function so that it is pickled by value."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class TransportReader(DataSourceReader):
        def __init__(self, options: dict[str, str]):
            self.rows, self.tasks = int(options['rows']), int(options['tasks'])
            self.record_bytes = int(options['recordbytes'])

        def partitions(self) -> list[Any]:
            return [InputPartition(self.rows * (number + 1) // self.tasks - self.rows * number // self.tasks)
                    for number in range(self.tasks)]

        def read(self, partition: Any) -> Iterator[Any]:
            import pyarrow as pa
            chance = random.Random(1)
            count = min(TRANSPORT_ROWS, TRANSPORT_BYTES // self.record_bytes // 100 * 100)
            values = [value_of(chance, self.record_bytes) for _ in range(100)] * (count // 100)
            batch = pa.RecordBatch.from_arrays([
                pa.array([b'k' * KEY_BYTES] * count, pa.binary()), pa.array(values, pa.binary()),
                pa.array(['topic'] * count), pa.array([0] * count, pa.int32()), pa.array(range(count), pa.int64()),
                pa.array([0] * count, pa.timestamp('us', 'UTC')), pa.array([0] * count, pa.int32())],
                names=['key', 'value', 'topic', 'partition', 'offset', 'timestamp', 'timestampType'])
            left = partition.value
            while left > 0:
                yield batch.slice(0, min(left, count))
                left -= count

    class Transport(DataSource):
        @classmethod
        def name(cls) -> str:
            return 'transport'

        def schema(self) -> str:
            return ('key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, '
                    'timestampType int')

        def reader(self, schema: Any) -> Any:
            return TransportReader(dict(self.options))  # Spark passes option names in lower case

    return Transport


class Reading(Bench):
    """Measures reads from the brokers and from their files."""

    @contextmanager
    def filled(self, topic: Topic) -> Iterator[None]:
        """Create the topic in both brokers and fill it."""
        fillers = [Filler(broker.address) for broker in self.brokers]
        for filler in fillers:
            filler.fill(topic)
        os.sync()
        yield
        for filler in fillers:
            filler.remove(topic)

    def frame(self, source: str, topic: Topic) -> Any:
        read = self.spark.read
        if source == 'transport':
            return read.format('transport').options(rows=topic.visible_records, recordBytes=topic.record_bytes,
                                                    tasks=CORES * 2).load()
        if source.startswith('connector'):
            address = self.kafka.address if source.endswith('Kafka') else self.kbroker.address
            return read.format('kafka').options(**{
                'kafka.bootstrap.servers': address, 'subscribe': topic.name, 'minPartitions': CORES * 2,
                'kafka.isolation.level': 'read_committed'}).load()
        where = {'kafka.bootstrap.servers': self.kbroker.address} if source == 'ours, broker' else {
            'path': str(self.kbroker.directory)}
        return read.format('kbroker').options(subscribe=topic.name, minPartitions=CORES * 2, **where).load()

    def run(self, source: str, cell: Cell) -> int | None:
        frame = self.frame(source, cell.topic)
        if cell.action == 'count':
            return int(frame.count())
        writer = frame.write.mode('overwrite')
        if cell.action == 'noop':
            writer.format('noop').save()
        else:
            writer.parquet(str(self.work / 'parquet'))
        return None

    def check(self, topic: Topic) -> None:
        """Check that all sources return the expected number of rows."""
        for source in SOURCES:
            found = self.run(source, Cell(topic, 'count'))
            assert found == topic.visible_records, f'{source}, {topic.name}: {found}, not {topic.visible_records}'

    def measure(self, source: str, cell: Cell) -> Measurement:
        return self.measured(lambda: self.run(source, cell))

# ---- running and reporting

def measure_all(bench: Reading, wanted: list[Cell], rounds: int, say: Callable[[Result], None]) -> None:
    """Measure all cells in rounds. Each round measures the sources of a cell one after the other. Call `say` with the
    result of each cell."""
    for topic in dict.fromkeys(cell.topic for cell in wanted):
        with bench.filled(topic):
            bench.check(topic)  # a warm-up too
            results = [Result(cell, {source: [] for source in SOURCES}) for cell in wanted if cell.topic == topic]
            for number in range(rounds):
                for result in results:
                    order = SOURCES[number % len(SOURCES):] + SOURCES[:number % len(SOURCES)]
                    for source in order:
                        result.runs[source].append(bench.measure(source, result.cell))
        for result in results:
            say(result)


def spread(values: list[float], form: str) -> str:
    return f'{statistics.median(values):{form}} [{min(values):{form}}-{max(values):{form}}]'


def table(results: list[Result]) -> Iterator[str]:
    yield '| cell | source | Mrow/s | s | CPU s, JVM + Python | of it JVM | others |'
    yield '|---|---|---|---|---|---|---|'
    for result in results:
        for source, runs in result.runs.items():
            rates = [result.cell.topic.visible_records / run.seconds / 1e6 for run in runs]
            seconds, jvm, python, others = (result.median(source, what) for what in (
                'seconds', 'jvm_cpu_s', 'python_cpu_s', 'others_share'))
            yield (f'| {result.cell.name} | {source} | {spread(rates, ".2f")} | {seconds:.2f} | '
                   f'{jvm:.2f} + {python:.2f} | {jvm / max(0.01, jvm + python):.0%} | {others:.0%} |')


def fixed_costs(result: Result) -> Iterator[str]:
    """Yield the table of a job that reads only a few records."""
    yield f'| {result.cell.topic.visible_records} records | ms a job | CPU ms, JVM + Python |'
    yield '|---|---|---|'
    for source, runs in result.runs.items():
        jvm, python = (1000 * statistics.fmean(getattr(run, what) for run in runs)
                       for what in ('jvm_cpu_s', 'python_cpu_s'))
        yield f'| {source} | {spread([1000 * run.seconds for run in runs], ".0f")} | {jvm:.0f} + {python:.0f} |'


def verdicts(results: list[Result]) -> Iterator[str]:
    yield ('| cell | ' + ' | '.join(f'{ours} / {other} (at least {least:g})' for ours, other, least in TARGETS)
           + ' | transport / connector, Kafka |')
    yield '|---' * (len(TARGETS) + 2) + '|'
    for result in results:
        bound = result.rate('transport') / result.rate('connector, Kafka')
        yield f'| {result.cell.name} | ' + ' | '.join(
            verdict(result.rate(ours) / result.rate(other), least, bound if other.startswith('connector') else least)
            for ours, other, least in TARGETS) + f' | {bound:.2f} |'


def verdict(ratio: float, least: float, bound: float) -> str:
    """Return a ratio as text with its verdict. `bound` is the largest ratio that a source in Python can reach."""
    return f'{ratio:.2f}' + ('' if ratio >= least else ' **short**' if bound >= least else ' **bound**')


def machine() -> str:
    import pyarrow
    import pyspark
    with open('/proc/cpuinfo') as file:
        model = next((line.partition(':')[2].strip() for line in file if line.startswith('model name')), 'unknown')
    jars = ', '.join(pathlib.Path(jar).stem for jar in connector_jars())
    return (f'{time.strftime("%Y-%m-%d %H:%M", time.gmtime())} UTC, {os.cpu_count()} processors ({model}), Spark '
            f'{pyspark.__version__} local[{CORES}], pyarrow {pyarrow.__version__}, Python '
            f'{platform.python_version()}; {jars}; Apache Kafka 4.3.1')


@dataclass
class Report:
    """The lines of the report so far. It writes them to the file `path`, if given, after each result."""

    path: pathlib.Path | None
    began: float = field(default_factory=time.monotonic)
    parts: dict[str, list[str]] = field(default_factory=dict)

    def put(self, part: str, lines: list[str], said: str) -> None:
        """Replace a part of the report, and print `said` to stderr."""
        self.parts[part] = lines
        click.echo(f'{time.monotonic() - self.began:.0f} s: {said}', err=True)
        if self.path is not None:
            self.path.write_text(self.text() + '\n')

    def text(self) -> str:
        return '\n\n'.join('\n'.join(lines) for lines in self.parts.values())


def read_all(bench: Reading, wanted: list[Cell], rounds: int, fixed_rounds: int, head: list[str],
             report: Report) -> None:
    fixed: list[Result] = []
    measure_all(bench, [Cell(FEW_RECORDS, 'noop')], fixed_rounds, fixed.append)
    results: list[Result] = []
    memory_mb: list[float] = []

    def say(result: Result) -> None:
        results.append(result)
        memory_mb.append(bench.most_memory_mb())
        report.put('reading', [*head, '', *verdicts(results), '', *fixed_costs(fixed[0]), '', *table(results), '',
                               f'A Python worker took {max(memory_mb):.0f} MB at most.'], result.cell.name)

    measure_all(bench, wanted, rounds, say)


def write_all(bench: Bench, wanted: list[spark_writing.Job], rounds: int, batches: int, head: list[str],
              report: Report) -> None:
    writing = spark_writing.Writing(bench)
    report.put('micro-batches', [*head, '', *spark_writing.overheads(writing.micro_batches(batches), spread)],
               'micro-batches')
    results: list[spark_writing.Written] = []

    def say(written: spark_writing.Written) -> None:
        results.append(written)
        report.put('writing', [*spark_writing.ratios(results), '', *spark_writing.rates(results, spread)],
                   written.job.name)

    writing.measure(wanted, rounds, say)


@click.command(help=__doc__)
@click.option('--quick', is_flag=True, help='Run everything once with few records; the figures are meaningless.')
@click.option('--what', type=click.Choice(['reading', 'writing', 'both']), default='both', show_default=True)
@click.option('--rounds', default=3, show_default=True)
@click.option('--cells', 'pattern', default='', help='Only cells whose names match this regular expression.')
@click.option('--small-records', default=6_000_000, show_default=True, help='Number of records of 100 bytes.')
@click.option('--large-records', default=1_000_000, show_default=True, help='Number of records of 1 KiB.')
@click.option('--batches', default=30, show_default=True, help='Micro-batches of a stream of few rows.')
@click.option('--markdown', type=click.Path(path_type=pathlib.Path), help='Write the result here too, after each cell.')
def main(quick: bool, what: str, rounds: int, pattern: str, small_records: int, large_records: int, batches: int,
         markdown: pathlib.Path | None) -> None:
    missing = [tool for tool in ('java', 'mvn') if shutil.which(tool) is None]
    if missing:
        raise click.ClickException(f'{", ".join(missing)} not found')
    if quick:
        rounds, small_records, large_records, batches = 1, 20_000, 2_000, 2
    reads, writes = cells(small_records, large_records), spark_writing.jobs(small_records // 4, large_records // 5)
    if quick:
        reads, writes = [reads[0], reads[2]], writes[1:2]
    reads = [cell for cell in reads if what != 'writing' and re.search(pattern, cell.name)]
    writes = [job for job in writes if what != 'reading' and re.search(pattern, job.name)]
    if not reads and not writes:
        raise click.ClickException(f'no cell is named like {pattern!r}')
    load, report = f'load average before {os.getloadavg()[0]:.2f}', Report(markdown)
    with ExitStack() as stack:
        work = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        bench = Reading(stack, work, bool(reads), [transport_source(), spark_writing.discarding_source()])
        if reads:
            read_all(bench, reads, rounds, 1 if quick else FIXED_ROUNDS, [machine(), (
                f'{rounds} rounds; {load}; {small_records} records of 100 B, {large_records} of 1 KiB, in two '
                'partitions.')], report)
        if writes:
            sizes = dict.fromkeys(f'{job.rows} rows of {job.record_bytes} B' for job in writes)
            write_all(bench, writes, rounds, batches, [machine(), (
                f'{rounds} rounds; {load}; {", ".join(sizes)}, by {spark_writing.TASKS} tasks into '
                f'{spark_writing.PARTITIONS} partitions of kbroker.')], report)
        print(report.text())


if __name__ == '__main__':
    main()
