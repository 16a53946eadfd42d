"""Spark with Delta's own writer, in a virtual machine of its own, as another program on a Delta table."""
import contextlib
import json
import pathlib
import subprocess
from collections.abc import Iterator
from typing import IO, Any

from support.kafka.apache_kafka import compiled, temporary_files

PLACE = pathlib.Path(__file__).parent / 'delta_spark'
OPENED = ('java.lang', 'java.lang.invoke', 'java.lang.reflect', 'java.io', 'java.net', 'java.nio', 'java.util',
          'java.util.concurrent', 'java.util.concurrent.atomic', 'sun.nio.ch', 'sun.nio.cs', 'sun.security.action',
          'sun.util.calendar')
"""The packages of Java into which Spark reaches."""


class SparkSql:
    """A session of Spark."""

    def __init__(self, process: subprocess.Popen[str], log: pathlib.Path):
        self._process, self._log = process, log

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """Run a statement in one line. Return its rows. Raise AssertionError with the error of Spark."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f'{statement}\n')
        self._process.stdin.flush()
        kind, _, text = _answer(self._process.stdout).partition(' ')
        assert kind == 'answer', f'{statement}: {text or self._log.read_text()[-2000:]}'
        return list(json.loads(text))


def _answer(output: IO[str]) -> str:
    for line in output:
        if line.startswith(('answer ', 'failed ')):
            return line.strip()
    return ''


@contextlib.contextmanager
def delta_spark(directory: pathlib.Path) -> Iterator[SparkSql]:
    """Run Spark. Its own files are in the directory."""
    command = ['java', '-Xmx768m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', temporary_files(),
               *(f'--add-opens=java.base/{name}=ALL-UNNAMED' for name in OPENED), '-cp', compiled(PLACE), 'DeltaSpark',
               str(directory)]
    log = directory / 'spark.log'
    with open(log, 'w') as errors, subprocess.Popen(
            command, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        try:
            yield SparkSql(process, log)
        finally:
            process.kill()
