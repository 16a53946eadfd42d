"""Ingests into tables by kbroker and by its peers, from the same topic of the same broker.

    python bench/lake_peers.py [--rounds N] [--records N] [--cache DIR] [--markdown FILE]

  connector      Spark's own connector, with the writers of Iceberg and of Delta, on PySpark 4.1 with two cores. Newer
                 versions of PySpark have no such writers. One session, which has done each job once before.
  Kafka Connect  Iceberg's sink, with two tasks and a commit every 5 seconds. It decodes the JSON of the values into
                 columns. The others write keys and values as they are, with topic, partition, offset and timestamp.

Values have 200 B. Downloads 500 MB into --cache, once: PySpark from PyPI, and jars by Maven. Needs Java and Maven.
`make bench` does not run it.
"""
from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack

import click

ROOT = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tests'), str(ROOT / 'bench')]

from lake import PARTITIONS, Ways, machine, spread  # noqa: E402
from lake_sink import Sunk, sink  # noqa: E402
from lake_topics import filled  # noqa: E402
from stopping import workplace  # noqa: E402

SIZE_BYTES = 200
PYSPARK = '4.1.4'
OURS = ('Iceberg, 1 process', 'Iceberg, 2 processes', 'Delta, 1 process', 'Delta, 2 processes')
PEERS = ('Iceberg', 'Delta')


class Connector:
    """Spark's own connector with the writers of the formats, in a process on another version of PySpark."""

    def __init__(self, stack: ExitStack, cache: pathlib.Path, broker: str, topic: str, work: pathlib.Path):
        jars = ','.join(map(str, sorted((cache / 'spark').glob('*.jar'))))
        self._log = work / 'log'
        with open(self._log, 'w') as log:
            self._process = subprocess.Popen(
                [cache / 'venv/bin/python', ROOT / 'bench/lake_peer_writer.py', jars, broker, topic, work],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=os.environ | {'SPARK_LOCAL_IP': '127.0.0.1',
                                  'PYSPARK_PYTHON': str(cache / 'venv/bin/python')})
        stack.callback(self._process.wait)
        stack.callback(self._process.terminate)

    def write(self, kind: str, count: int) -> float:
        """Return the seconds of a run. Raise RuntimeError with the end of the log if it fails."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f'{kind}\n')
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f'connector, {kind}: {self._log.read_text()[-2000:]}')
        seconds, rows = json.loads(line)
        assert rows == count, f'connector, {kind}: found {rows} rows, expected {count}'
        return float(seconds)


def fetch(cache: pathlib.Path) -> None:
    """Download what is not there yet."""
    cache.mkdir(parents=True, exist_ok=True)
    if not (cache / 'venv/bin/spark-submit').exists():
        subprocess.run([sys.executable, '-m', 'venv', cache / 'venv'], check=True)
        subprocess.run([cache / 'venv/bin/pip', 'install', '-q', f'pyspark=={PYSPARK}'], check=True)
    for name in ('spark', 'connect'):
        if not (cache / name).exists():
            subprocess.run(['mvn', '-q', '-B', '-f', ROOT / f'bench/lake_jars/{name}.xml',
                            'dependency:copy-dependencies', '-DincludeScope=runtime',
                            f'-DoutputDirectory={cache / name}'], check=True, stdout=sys.stderr)


def measured(stack: ExitStack, work: pathlib.Path, cache: pathlib.Path, records: int, rounds: int) -> Iterator[str]:
    """Yield the table of all peers."""
    ways, topic = Ways(stack, work, with_spark=False), 'orders'
    filled(ways.broker.address, topic, records, SIZE_BYTES, PARTITIONS)
    os.sync()
    for each in ('connector', 'sinks'):
        (work / each).mkdir()
    connector = Connector(stack, cache, ways.broker.address, topic, work / 'connector')
    found: dict[str, list[float]] = {}
    sunk: list[Sunk] = []
    for number in range(rounds + 1):
        seconds = {way: ways.run(way, ways.broker.address, topic, records).seconds for way in OURS}
        seconds |= {f'{kind}, connector': connector.write(kind, records) for kind in PEERS}
        if number:                      # the first round warms up
            for way, each in seconds.items():
                found.setdefault(way, []).append(each)
    for number in range(rounds):
        sunk.append(sink(ways.broker, topic, records, cache / 'connect', work / f'sinks/{number}'))
    yield '| peer | Mrow/s | s | MB |'
    yield '|---|---|---|---|'
    for way, all_seconds in sorted(found.items(), reverse=True):
        yield f'| {way} | {spread([records / each / 1e6 for each in all_seconds], ".2f")} | ' \
              f'{spread(all_seconds, ".1f")} | |'
    rates = [each.rate / 1e6 for each in sunk if each.rate is not None]
    yield (f'| Iceberg, Kafka Connect | {spread(rates, ".2f") if rates else ""} | '
           f'{spread([each.seconds for each in sunk], ".1f")} | {max(each.memory_mb for each in sunk):.0f} |')


@click.command(help=__doc__)
@click.option('--rounds', default=3, show_default=True)
@click.option('--records', default=2_000_000, show_default=True)
@click.option('--cache', type=click.Path(path_type=pathlib.Path), default=ROOT / 'bench/out/lake', show_default=True,
              help='The directory of the downloads.')
@click.option('--markdown', type=click.Path(path_type=pathlib.Path), help='Write the report here too.')
def main(rounds: int, records: int, cache: pathlib.Path, markdown: pathlib.Path | None) -> None:
    missing = [tool for tool in ('java', 'mvn') if shutil.which(tool) is None]
    if missing:
        raise click.ClickException(f'{", ".join(missing)} not found')
    fetch(cache.absolute())
    report = [f'{machine()}; connector: PySpark {PYSPARK}; {rounds} rounds; {records:,} records of {SIZE_BYTES} B in '
              f'{PARTITIONS} partitions; load average before {os.getloadavg()[0]:.2f}.']
    began = time.monotonic()
    with workplace(report=lambda: '\n\n'.join(report) + '\n'), ExitStack() as stack:
        report.append('\n'.join(measured(stack, pathlib.Path(tempfile.mkdtemp()), cache.absolute(), records, rounds)))
        click.echo(f'{time.monotonic() - began:.0f} s', err=True)
        if markdown is not None:
            markdown.write_text('\n\n'.join(report) + '\n')


if __name__ == '__main__':
    main()
