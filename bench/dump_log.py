"""kbroker-dump-log compared with Apache Kafka's own tool, as processes on this machine, on the same files.

    python bench/dump_log.py [--quick] [--large-bytes N] [--runs N]

Both tools show every record with its payload; the output goes to /dev/null. The time for a large segment gives the
records per second, the time for a small segment the start-up time. The tools alternate, and the minimum of the runs
counts, because other load only adds time. CPU is user and system time of the process, which noise affects least.
Kafka's tool runs with the heap, collector and JMX options of its own script; the table calls this
`as its script starts it`. The figures do not include the script itself, which searches for jars, or its log4j
configuration. The small file is also measured in the fastest-starting JVM (serial collector, first compiler only).
kbroker runs from compiled bytecode, as installed. Without Java, Kafka's column is empty. With --quick everything runs
once on small files, and the figures are meaningless.
"""
import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import click

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / 'tests'))

from support.brokers.broker_process import ROOT
from support.kafka.apache_kafka import classpath

from kbroker.record.batch import encode_batch, set_base_offset

T = 1_700_000_000_000
OPTIONS = ['--deep-iteration', '--print-data-log', '--files']
INSTALLED_SCRIPT = 'from kbroker_tools.commands.dump_log_start import start; start()'
FAST_START = ['-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1']
# The Java options of kafka-run-class.sh for a tool: KAFKA_HEAP_OPTS, KAFKA_JVM_PERFORMANCE_OPTS, KAFKA_JMX_OPTS.
SCRIPT_START = ['-Xmx256M', '-server', '-XX:+UseG1GC', '-XX:MaxGCPauseMillis=20',
                '-XX:InitiatingHeapOccupancyPercent=35', '-XX:+ExplicitGCInvokesConcurrent',
                '-Djava.awt.headless=true', '-Dcom.sun.management.jmxremote=true',
                '-Dcom.sun.management.jmxremote.authenticate=false', '-Dcom.sun.management.jmxremote.ssl=false']
RECORDS_A_BATCH = 100
VALUE_BYTES = 100
TEMPLATES = 20
KIB, GIB = 1024, 1024 ** 3


def batches(size_bytes: int) -> Iterator[bytearray]:
    """Yield as many batches as fit `size_bytes`. Each record has a value of 100 bytes and a key of 10 bytes."""
    generator = random.Random(1)
    letters = b'abcdefghijklmnopqrstuvwxyz0123456789'
    templates = [
        encode_batch([(T + i, b'key-%06d' % generator.randrange(10 ** 6),
                       bytes(generator.choices(letters, k=VALUE_BYTES))) for i in range(RECORDS_A_BATCH)],
                     partition_leader_epoch=0)
        for _ in range(TEMPLATES)]
    left, number = size_bytes, 0
    while left >= len(templates[number % TEMPLATES]):
        batch = templates[number % TEMPLATES]
        set_base_offset(batch, number * RECORDS_A_BATCH)
        yield batch
        left -= len(batch)
        number += 1


def a_segment(directory: pathlib.Path, size_bytes: int) -> tuple[pathlib.Path, int]:
    """Write a segment. Return its path and the number of its records."""
    directory.mkdir()
    path = directory / f'{0:020d}.log'
    records = 0
    with open(path, 'wb') as file:
        for batch in batches(size_bytes):
            file.write(batch)
            records += RECORDS_A_BATCH
    return path, records


class Taken(NamedTuple):
    """The wall time and the CPU time of a process from start to end."""

    wall_s: float
    cpu_s: float


def taken_by(command: list[str], env: dict[str, str] | None = None) -> Taken:
    cpu_before, began = children_cpu_s(), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd=ROOT, env=env)
    return Taken(time.perf_counter() - began, children_cpu_s() - cpu_before)


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def least(runs: list[Taken]) -> Taken:
    return Taken(min(run.wall_s for run in runs), min(run.cpu_s for run in runs))


def compare(name: str, path: pathlib.Path, runs: int, java: list[str] | None, in_words: Callable[[float], str]) -> None:
    """Run the tools, and print a row for wall time and a row for CPU. The first run does not count: it reads the file
    into the page cache and writes the bytecode of Python.
    """
    own_command = [sys.executable, '-c', INSTALLED_SCRIPT, *OPTIONS, str(path)]
    env = {name: value for name, value in os.environ.items() if name != 'PYTHONDONTWRITEBYTECODE'}
    env['PYTHONPYCACHEPREFIX'] = str(path.parent / 'bytecode')
    taken_by(own_command, env)
    own, kafkas = [], []
    for _ in range(runs):
        own.append(taken_by(own_command, env))
        if java is not None:
            kafkas.append(taken_by([*java, *OPTIONS, str(path)]))
    for index, kind in enumerate(Taken._fields):
        own_s, kafkas_s = least(own)[index], least(kafkas)[index] if kafkas else None
        row(f'{name}, {kind[:-2]}', in_words(own_s), '' if kafkas_s is None else in_words(kafkas_s),
            '' if kafkas_s is None else f'{kafkas_s / own_s:.1f}')


def row(*cells: str) -> None:
    click.echo(f'| {" | ".join(cells)} |')


@click.command()
@click.option('--quick', is_flag=True, help='Run everything once on small files, to see that it works.')
@click.option('--large-bytes', default=GIB, show_default=True)
@click.option('--runs', default=3, show_default=True)
def main(quick: bool, large_bytes: int, runs: int) -> None:
    starts = 5 * runs
    if quick:
        large_bytes, runs, starts = 1024 * KIB, 1, 1
    def java(options: list[str]) -> list[str] | None:
        if jars is None:
            return None
        return ['java', *options, '-Dfile.encoding=UTF-8', '-cp', jars, 'org.apache.kafka.tools.DumpLogSegments']

    jars = classpath() if shutil.which('java') and shutil.which('mvn') else None
    with tempfile.TemporaryDirectory() as name:
        large, records = a_segment(pathlib.Path(name) / 'large-0', large_bytes)
        small, _ = a_segment(pathlib.Path(name) / 'small-0', 100 * KIB)
        row('what', 'kbroker', 'Kafka', 'times as fast')
        row('---', '---', '---', '---')
        compare(f'{large_bytes / KIB / KIB:.0f} MiB, {records} records', large, runs, java(SCRIPT_START),
                lambda taken_s: f'{records / taken_s:,.0f} records/s')
        for way, options in (('as its script starts it', SCRIPT_START), ('in the leanest Java machine', FAST_START)):
            compare(f'100 KiB, Kafka {way}', small, starts, java(options),
                    lambda taken_s: f'{taken_s * 1000:.1f} ms')


if __name__ == '__main__':
    main()
