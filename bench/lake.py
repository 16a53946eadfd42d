"""Ingests into Iceberg and Delta tables, compared with the ingest into Parquet files through Spark.

    python bench/lake.py [--what speed|commands|start|memory|partitions]... [--quick] [--rounds N] [--markdown FILE]

  speed       rows per second, from a broker and from its files. Each round measures all ways, one after the other.
              Spark and the processes have started before.
  commands    the same for whole commands, with the start of Python, of Spark and of the processes
  start       the processor time to start a process of the pool
  memory      the peak memory of the driver and of its largest process, for a large topic and for a large record
  partitions  a table of a topic with 10,000 partitions: runs with one record in each of them

Values are JSON of which each is different. They compress to about half. All files are compressed with zstd. `parquet`
is `kbroker-ingest --to` through Spark on two cores. A ratio compares it with another way in the same round. CPU is the
processor time of the driver, Java and the processes, without the broker.

Needs Java for speed and commands. With --quick everything runs once with few records, and the figures are meaningless.
"""
from __future__ import annotations

import os
import pathlib
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import click

ROOT = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tests'), str(ROOT / 'bench')]

import lake_limits  # noqa: E402
from broker import process_cpu_s  # noqa: E402
from lake_commands import command, ingest  # noqa: E402
from lake_topics import filled, removed  # noqa: E402
from spark_bench import CORES, descendants, process_and_ended_children_cpu_s  # noqa: E402
from stopping import workplace  # noqa: E402
from support.brokers.broker_process import BrokerProcess  # noqa: E402
from support.lake.catalogs import sql_catalog  # noqa: E402

from kbroker_tools.spark.ingest_source import IngestResult, IngestSource  # noqa: E402
from kbroker_tools.spark.lake.delta import DeltaLakeTable  # noqa: E402
from kbroker_tools.spark.lake.iceberg import IcebergTable  # noqa: E402
from kbroker_tools.spark.lake.job import TableJob  # noqa: E402
from kbroker_tools.spark.lake.runners import ProcessRunner, Runner, SparkRunner  # noqa: E402
from kbroker_tools.spark.lake.table_format import TableFormat  # noqa: E402

RECORDS = {100: 1_500_000, 200: 1_000_000, 1024: 250_000}
"""Maps the size of a value in bytes to the number of records."""
PARTITIONS = 4
PARQUET = 'parquet, Spark'
WAYS = (PARQUET, 'Iceberg, 1 process', 'Delta, 1 process', 'Iceberg, 2 processes', 'Delta, 2 processes',
        'Iceberg, Spark', 'Delta, Spark')
LEAST = {'1 process': 2.5, 'Spark': 1.0}
"""The least ratios to `parquet`."""


@dataclass
class Run:
    seconds: float
    cpu_s: float
    written_mb: float


@dataclass
class Cell:
    """The runs of all ways over one topic, from the broker or from its files."""

    size_bytes: int
    records: int
    source: str
    runs: dict[str, list[Run]] = field(default_factory=lambda: {way: [] for way in WAYS})

    def rates(self, way: str) -> list[float]:
        return [self.records / run.seconds / 1e6 for run in self.runs[way]]

    def ratios(self, way: str) -> list[float]:
        return [theirs.seconds / ours.seconds for theirs, ours in zip(self.runs[PARQUET], self.runs[way], strict=True)]


class Ways:
    """A Spark session, a pool of processes and a broker, which all runs use."""

    def __init__(self, stack: ExitStack, work: pathlib.Path, with_spark: bool):
        self._work = work
        self.broker = BrokerProcess(work / 'kbroker', {'kbroker.durability': 'page-cache'})
        stack.callback(self.broker.kill9)
        self.broker.start()
        self._runners: dict[str, Runner] = {'1 process': ProcessRunner(1), '2 processes': ProcessRunner(2)}
        stack.callback(self._runners['2 processes'].stop)
        if with_spark:
            self._start_spark(stack)

    def _start_spark(self, stack: ExitStack) -> None:
        from kbroker_tools.spark.session import session
        os.environ['PYTHONPATH'] = os.pathsep.join([str(ROOT), str(ROOT / 'kbroker_tools/spark/autoload')])
        os.environ['SPARK_LOCAL_IP'] = '127.0.0.1'
        self._spark = session(f'local[{CORES}]', {'spark.local.dir': str(self._work / 'local'),
                                                  'spark.sql.warehouse.dir': str(self._work / 'warehouse')})
        stack.callback(self._spark.stop)
        self._runners['Spark'] = SparkRunner(self._spark.sparkContext)

    def run(self, way: str, source: str, topic: str, count: int) -> Run:
        """Ingest the topic into a new table, or new files, and delete them."""
        place = self._work / 'to'
        place.mkdir()
        run = self._run(way, IngestSource(source, [topic]), place)
        cpu_s, began = self._cpu_s(), time.perf_counter()
        result = run()
        seconds, cpu_s = time.perf_counter() - began, self._cpu_s() - cpu_s
        assert result.rows == count, f'{way}, {topic}: found {result.rows} rows, expected {count}'
        written_mb = sum(path.stat().st_size for path in place.rglob('*.parquet')) / 1e6
        shutil.rmtree(place)
        return Run(seconds, cpu_s, written_mb)

    def _run(self, way: str, source: IngestSource, place: pathlib.Path) -> Callable[[], IngestResult]:
        if way == PARQUET:
            from kbroker_tools.spark.ingest import IngestJob
            job = IngestJob(source.source, source.topics, place / 'files', place / 'state', compression='zstd')
            return lambda: job.run(self._spark)
        kind, _, runner = way.partition(', ')
        to: TableFormat = (IcebergTable('lake.orders', sql_catalog(place), {}) if kind == 'Iceberg'
                           else DeltaLakeTable(str(place / 'orders'), {}))
        return lambda: TableJob(source, to).run(self._runners[runner], lambda ended, total: None)

    def _cpu_s(self) -> float:
        mine = os.getpid()
        processes = {mine, *descendants(mine)} - {self.broker.pid, *descendants(self.broker.pid)}
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (process_cpu_s(mine) + ended.ru_utime + ended.ru_stime
                + sum(map(process_and_ended_children_cpu_s, processes - {mine})))


def measure_speed(ways: Ways, sizes: dict[int, int], rounds: int) -> Iterator[Cell]:
    for size_bytes, records in sizes.items():
        topic = f'values-{size_bytes}'
        filled(ways.broker.address, topic, records, size_bytes, PARTITIONS)
        os.sync()
        cells = [Cell(size_bytes, records, source) for source in ('broker', 'files')]
        places = {'broker': ways.broker.address, 'files': str(ways.broker.directory)}
        for way in WAYS:
            ways.run(way, places['broker'], topic, records)     # warms up
        for number in range(rounds):
            for cell in cells:
                order = WAYS[number % len(WAYS):] + WAYS[:number % len(WAYS)]
                for way in order:
                    cell.runs[way].append(ways.run(way, places[cell.source], topic, records))
        removed(ways.broker.address, topic)
        yield from cells


# ---- reports

def spread(values: Sequence[float], form: str) -> str:
    return f'{statistics.median(values):{form}} [{min(values):{form}}-{max(values):{form}}]'


def speed_table(cells: Sequence[Cell]) -> Iterator[str]:
    yield '| values | from | way | Mrow/s | to parquet | CPU s | MB |'
    yield '|---|---|---|---|---|---|---|'
    for cell in cells:
        for way, runs in cell.runs.items():
            cpu_s, written_mb = (statistics.median(getattr(run, what) for run in runs)
                                 for what in ('cpu_s', 'written_mb'))
            yield (f'| {cell.size_bytes} B | {cell.source} | {way} | {spread(cell.rates(way), ".2f")} | '
                   f'{spread(cell.ratios(way), ".2f")}{verdict(cell, way)} | {cpu_s:.2f} | {written_mb:.0f} |')


def verdict(cell: Cell, way: str) -> str:
    least = LEAST.get(way.partition(', ')[2]) if way != PARQUET else None
    return ' **short**' if least is not None and statistics.median(cell.ratios(way)) < least else ''


def machine() -> str:
    import platform
    from importlib.metadata import version
    with open('/proc/cpuinfo') as file:
        model = next((line.partition(':')[2].strip() for line in file if line.startswith('model name')), 'unknown')
    packages = ', '.join(f'{name} {version(name)}' for name in ('pyspark', 'pyarrow', 'pyiceberg', 'deltalake'))
    return (f'{time.strftime("%Y-%m-%d %H:%M", time.gmtime())} UTC, {os.cpu_count()} processors ({model}), Python '
            f'{platform.python_version()}, {packages}')



def commands_table(ways: Ways, records: int, rounds: int, work: pathlib.Path) -> Iterator[str]:
    """Yield the table of whole commands, each with the time of its run alone."""
    topic, size_bytes = 'commands', 200
    filled(ways.broker.address, topic, records, size_bytes, PARTITIONS)
    master = ('--master', f'local[{CORES}]')
    kinds = {PARQUET: ('parquet', *master), **{
        f'{kind}, {name}': (kind, *more) for kind in ('Iceberg', 'Delta') for name, more in (
            ('1 process', ('--workers', '1')), ('2 processes', ('--workers', '2')), ('Spark', master))}}
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in kinds}
    for _ in range(rounds):
        for way, (kind, *more) in kinds.items():
            place = work / 'to'
            place.mkdir()
            done = ingest(command(ways.broker.address, topic, place, kind, *more))
            assert done.shown['rows'] == records, f'{way}: {done.shown}'
            shutil.rmtree(place)
            found[way].append((done.seconds, done.shown['duration_ms'] / 1000))
    yield f'| command, {records:,} values of {size_bytes} B | s | s, its run |'
    yield '|---|---|---|'
    for way, figures in found.items():
        seconds, run_seconds = zip(*figures, strict=True)
        yield f'| {way} | {spread(seconds, ".1f")} | {spread(run_seconds, ".1f")} |'
    removed(ways.broker.address, topic)


@dataclass(frozen=True)
class Amounts:
    """The amounts of a measurement. --quick makes them small."""

    records: dict[int, int] = field(default_factory=lambda: RECORDS)
    topic_bytes: int = 1_000_000_000
    partitions: int = 10_000
    runs: int = 10
    rounds: int = 3


QUICK = Amounts({200: 2_000}, 2_000_000, 20, 2, 1)


def tables(what: Sequence[str], amounts: Amounts, stack: ExitStack, work: pathlib.Path) -> Iterator[Iterable[str]]:
    """Yield the tables of the report."""
    ways = Ways(stack, work, with_spark='speed' in what)
    for each in what:
        if each == 'speed':
            yield speed_table(list(measure_speed(ways, amounts.records, amounts.rounds)))
        elif each == 'commands':
            yield commands_table(ways, amounts.records[200], amounts.rounds, work)
        elif each == 'start':
            yield lake_limits.start_table(ways.broker, work, amounts.rounds)
        elif each == 'memory':
            yield lake_limits.memory_table(ways.broker, work, amounts.topic_bytes)
        else:
            yield lake_limits.partitions_table(ways.broker, work, amounts.partitions, amounts.runs)


WHAT = ('speed', 'commands', 'start', 'memory', 'partitions')


@click.command(help=__doc__)
@click.option('--what', multiple=True, type=click.Choice(WHAT), help='May be repeated.  [default: all]')
@click.option('--quick', is_flag=True, help='Run everything once with few records; the figures are meaningless.')
@click.option('--rounds', default=3, show_default=True)
@click.option('--markdown', type=click.Path(path_type=pathlib.Path), help='Write the report here too.')
def main(what: tuple[str, ...], quick: bool, rounds: int, markdown: pathlib.Path | None) -> None:
    what = what or WHAT
    if {'speed', 'commands'} & {*what} and shutil.which('java') is None:
        raise click.ClickException('java not found')
    amounts = QUICK if quick else Amounts(rounds=rounds)
    report = [f'{machine()}; {amounts.rounds} rounds; load average before {os.getloadavg()[0]:.2f}.']
    began = time.monotonic()
    with workplace(report=lambda: '\n\n'.join(report) + '\n'), ExitStack() as stack:
        for lines in tables(what, amounts, stack, pathlib.Path(tempfile.mkdtemp())):
            report.append('\n'.join(lines))
            click.echo(f'{time.monotonic() - began:.0f} s', err=True)
            if markdown is not None:
                markdown.write_text('\n\n'.join(report) + '\n')


if __name__ == '__main__':
    main()
