"""Runs kbroker-ingest as a process, and measures it."""
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tests'), str(ROOT / 'bench')]

from spark_bench import descendants, peak_mb  # noqa: E402
from support.lake.catalogs import sql_catalog  # noqa: E402

LOOK_S = 0.05


@dataclass
class Measured:
    """A command that has ended. `shown` is the row that it printed, None if it found nothing to ingest."""

    seconds: float
    cpu_s: float
    """The processor time of the command and of the processes for which it has waited."""
    driver_mb: float
    worker_mb: float
    """The peak memory of the largest process below the driver, 0 if there is none."""
    shown: dict[str, Any]


def command(source: str, topic: str, place: pathlib.Path, kind: str, *more: str) -> list[str]:
    """Return the arguments of an ingest into a table, or into Parquet files, below `place`."""
    arguments = ['--topics', topic, '--from', source, '--json', *more]
    if kind == 'parquet':
        return [*arguments, '--to', str(place / 'files'), '--state', str(place / 'state'), '--compression', 'zstd']
    if kind == 'Delta':
        return [*arguments, '--to-table', str(place / 'orders'), '--table-format', 'delta']
    catalog = place / 'catalog.properties'
    place.mkdir(exist_ok=True)
    catalog.write_text(''.join(f'{name}={value}\n' for name, value in sql_catalog(place).items()))
    return [*arguments, '--to-table', 'lake.orders', '--table-format', 'iceberg', '--catalog', str(catalog)]


def ingest(arguments: Sequence[str]) -> Measured:
    """Run kbroker-ingest. Raise RuntimeError with its output if it fails.

    The peaks of memory are read again and again while it runs. The peak that the kernel reports at the end of a process
    includes the memory of this process before the start of the command.
    """
    variables = os.environ | {'PYTHONPATH': os.pathsep.join([str(ROOT), str(ROOT / 'kbroker_tools/spark/autoload')]),
                              'SPARK_LOCAL_IP': '127.0.0.1'}
    peaks: dict[int, float] = {}
    has_ended = threading.Event()
    with tempfile.TemporaryFile('w+') as output, tempfile.TemporaryFile('w+') as errors:
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, '-m', 'kbroker_tools.commands.ingest', *arguments], env=variables,
                                   stdout=output, stderr=errors)

        def watch() -> None:
            while not has_ended.wait(LOOK_S):
                for pid in (process.pid, *descendants(process.pid)):
                    peaks[pid] = max(peaks.get(pid, 0.0), peak_mb(pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            _, status, used = os.wait4(process.pid, 0)
        finally:
            has_ended.set()
            watcher.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - began
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f'kbroker-ingest {" ".join(arguments)}: {errors.read()[-2000:]}')
        lines = output.read().splitlines()
    driver_mb = peaks.pop(process.pid, 0.0)
    return Measured(seconds, used.ru_utime + used.ru_stime, driver_mb, max(peaks.values(), default=0.0),
                    json.loads(lines[-1]) if lines else {})
