"""Ingests into tables at their limits: memory, many partitions, and the start of a process."""
from __future__ import annotations

import pathlib
import resource
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from lake_commands import command, ingest
from lake_topics import LIMIT_S, filled, removed
from support.brokers.broker_process import BrokerProcess
from support.lake.catalogs import sql_catalog

from kbroker_tools.spark.ingest_source import IngestSource
from kbroker_tools.spark.lake.delta import DeltaLakeTable
from kbroker_tools.spark.lake.iceberg import IcebergTable
from kbroker_tools.spark.lake.job import TableJob
from kbroker_tools.spark.lake.rows import Rows, TableWork
from kbroker_tools.spark.lake.runners import ProcessRunner
from kbroker_tools.spark.lake.table_format import Attempt, TableFormat
from kbroker_tools.spark.options import parse_options
from kbroker_tools.spark.planning import resolve
from kbroker_tools.spark.tasks import open_place

KINDS = ('Iceberg', 'Delta')
LARGE_VALUE_BYTES = 50_000_000
PARTITIONS_OF_A_CHANGE = 5_000
"""A broker creates at most about 10,000 partitions in one change."""


def table(kind: str, place: pathlib.Path) -> TableFormat:
    place.mkdir(exist_ok=True)
    return (IcebergTable('lake.orders', sql_catalog(place), {}) if kind == 'Iceberg'
            else DeltaLakeTable(str(place / 'orders'), {}))


# ---- memory

def memory_table(broker: BrokerProcess, work: pathlib.Path, topic_bytes: int) -> Iterator[str]:
    """Yield the table of the peak memory of whole commands."""
    large = min(LARGE_VALUE_BYTES, topic_bytes)
    topics = {f'{topic_bytes / 1e9:g} GB in values of 1 KiB': ('memory', topic_bytes // 1024, 1024),
              f'one value of {large / 1e6:g} MB': ('large', 1, large)}
    yield '| topic | from | table | processes | driver MB | process MB | s |'
    yield '|---|---|---|---|---|---|---|'
    for name, (topic, count, size_bytes) in topics.items():
        filled(broker.address, topic, count, size_bytes, 4)
        places = {'broker': broker.address, 'files': str(broker.directory)}
        ways = [('broker', 1), ('broker', 2), ('files', 2)] if count > 1 else [('broker', 1), ('files', 1)]
        for (source, workers), kind in product(ways, KINDS):
            place = work / 'to'
            place.mkdir()
            done = ingest(command(places[source], topic, place, kind, '--workers', str(workers)))
            assert done.shown['rows'] == count, f'{kind}, {topic}: {done.shown}'
            shutil.rmtree(place)
            yield (f'| {name} | {source} | {kind} | {workers} | {done.driver_mb:.0f} | {done.worker_mb:.0f} | '
                   f'{done.seconds:.1f} |')
        removed(broker.address, topic)


# ---- many partitions

def partitions_table(broker: BrokerProcess, work: pathlib.Path, partitions: int, runs: int) -> Iterator[str]:
    """Yield the table of runs with one record in each partition of a topic."""
    topic, places = 'partitions', {'broker': broker.address, 'files': str(broker.directory)}
    admin = AdminClient({'bootstrap.servers': broker.address})
    for count in range(PARTITIONS_OF_A_CHANGE, partitions + PARTITIONS_OF_A_CHANGE, PARTITIONS_OF_A_CHANGE):
        count = min(count, partitions)
        (admin.create_partitions([NewPartitions(topic, count)]) if count > PARTITIONS_OF_A_CHANGE
         else admin.create_topics([NewTopic(topic, count)]))[topic].result(LIMIT_S)
    producer = Producer({'bootstrap.servers': broker.address, 'linger.ms': 100,
                         'queue.buffering.max.messages': 500_000})
    found: dict[tuple[str, str], list[_Small]] = {(source, kind): [] for source in places for kind in KINDS}
    runner = ProcessRunner(1)
    tables = {(source, kind): table(kind, work / f'{source}-{kind}') for source, kind in found}
    for _ in range(runs):
        for partition in range(partitions):
            producer.produce(topic, b'{"partition":%d}' % partition, partition=partition)
        assert producer.flush(LIMIT_S) == 0
        for (source, kind), small in found.items():
            small.append(_small_run(TableJob(IngestSource(places[source], [topic]), tables[source, kind]), runner,
                                    work / f'{source}-{kind}', partitions))
    yield f'| {partitions:,} partitions, one record in each | s, run 2 | s, run {runs} | CPU s, run {runs} | ' \
          f'metadata KB, run 2 | metadata KB, run {runs} |'
    yield '|---|---|---|---|---|---|'
    for (source, kind), small in found.items():
        yield (f'| {kind}, from the {source} | {small[1].seconds:.1f} | {small[-1].seconds:.1f} | '
               f'{small[-1].cpu_s:.1f} | {small[1].metadata_kb:.0f} | {small[-1].metadata_kb:.0f} |')


@dataclass
class _Small:
    seconds: float
    cpu_s: float
    metadata_kb: float
    """The size of the files that the commit has written, without data files and the catalog."""


def _small_run(job: TableJob, runner: ProcessRunner, place: pathlib.Path, partitions: int) -> _Small:
    before = set(_metadata(place))
    cpu_s, began = time.process_time(), time.perf_counter()
    result = job.run(runner, lambda ended, total: None)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    assert result.rows == partitions, result
    return _Small(seconds, cpu_s, sum(path.stat().st_size for path in set(_metadata(place)) - before) / 1e3)


def _metadata(place: pathlib.Path) -> Iterator[pathlib.Path]:
    return (path for path in place.rglob('*') if path.is_file() and path.suffix not in ('.parquet', '.db'))


# ---- the start of a process

def start_table(broker: BrokerProcess, work: pathlib.Path, rounds: int) -> Iterator[str]:
    """Yield the table of the time that a process of the pool takes to start. A run with two small tasks is measured in
    a new pool with one process, and again in the same pool."""
    topic = 'start'
    filled(broker.address, topic, 8, 1024, 2)
    yield '| table | s, first run of a pool | s, second run | CPU s of the process, first run |'
    yield '|---|---|---|---|'
    for kind in KINDS:
        figures = []
        for number in range(rounds):
            figures.append(_start(broker.address, topic, table(kind, work / f'start-{kind}-{number}')))
        first, second, cpu_s = (sorted(column)[len(column) // 2] for column in zip(*figures, strict=True))
        yield f'| {kind} | {first:.2f} | {second:.2f} | {cpu_s:.2f} |'
    removed(broker.address, topic)


def _start(address: str, topic: str, to: TableFormat) -> tuple[float, float, float]:
    """Return (seconds of the first run, seconds of the second run, processor time of the process)."""
    options = parse_options({'kafka.bootstrap.servers': address, 'subscribe': topic})
    place, rows = open_place(options), Rows(options)
    tasks = place.tasks(resolve(place, options), options)
    to.create(rows.schema, [])
    state = to.load('default')
    assert state is not None
    work = TableWork(rows, to.writer(state, Attempt('default', 1)), 1 << 27)
    runner = ProcessRunner(1)
    seconds = []
    before = _children_cpu_s()
    for _ in range(2):
        began = time.perf_counter()
        runner.run(work, [[each] for each in tasks], lambda ended, total: None)
        seconds.append(time.perf_counter() - began)
    runner.stop()
    return seconds[0], seconds[1], _children_cpu_s() - before


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
