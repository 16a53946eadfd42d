"""A Spark driver in a separate process. The driver, its virtual machine and its workers are one session of processes,
which `kill9` ends.

Run as a program, this module creates a Spark session and runs a query for each line of its standard input.
"""
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[3]


class SparkDriver:
    """A driver process and its Spark session. `run` begins a query, and `ended` returns the error of the query."""

    def __init__(self, directory: pathlib.Path, master: str = 'local[2,3]', settings: dict[str, str] | None = None):
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._arguments = json.dumps({'master': master, 'directory': str(directory), 'settings': settings or {}})
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> SparkDriver:
        """Start the process. Return without waiting for its Spark session."""
        from support.spark.spark_machine import quick_start
        environment = os.environ | quick_start() | {
            'PYTHONPATH': os.pathsep.join(map(str, (ROOT, ROOT / 'tests', ROOT / 'kbroker_tools/spark/autoload'))),
            'PYSPARK_PYTHON': sys.executable, 'SPARK_LOCAL_IP': '127.0.0.1'}
        for name in ('PYSPARK_GATEWAY_PORT', 'PYSPARK_GATEWAY_SECRET', 'SPARK_HOME'):
            environment.pop(name, None)
        with open(self._directory / 'driver.log', 'a') as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, self._arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, env=environment, cwd=self._directory, start_new_session=True)
        return self

    def run(self, options: dict[str, str], checkpoint: pathlib.Path, batches: int) -> None:
        """Begin a query. The previous one must have ended."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps([options, str(checkpoint), batches]) + '\n')
        self._process.stdin.flush()

    def ended(self) -> str:
        """Wait for the end of the query, and return its error."""
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, 'the driver ended:\n' + (self._directory / 'driver.log').read_text()[-5000:]
        found: str = json.loads(line)
        return found

    def kill9(self) -> None:
        """Kill the driver, its virtual machine and its workers with SIGKILL."""
        from support.runner.process_sessions import kill_session
        if self._process is None:
            return
        kill_session(self._process.pid)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._process = None


def make_session(master: str, directory: pathlib.Path, settings: dict[str, str]) -> Any:
    from pyspark.sql import SparkSession
    log_settings = directory / 'log4j2.properties'
    log_settings.write_text('rootLogger.level = off\n')
    chosen = {
        'spark.ui.enabled': 'false', 'spark.driver.memory': '512m', 'spark.ui.showConsoleProgress': 'false',
        'spark.sql.warehouse.dir': str(directory / 'warehouse'), 'spark.local.dir': str(directory / 'local'),
        'spark.driver.extraJavaOptions': f'-Dlog4j2.configurationFile={log_settings}', **settings}
    builder = SparkSession.builder.master(master).appName('sink')
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    from support.spark.sink_query import error_of, start_query
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)   # whatever the virtual machine prints
    arguments = json.loads(sys.argv[1])
    session = make_session(arguments['master'], pathlib.Path(arguments['directory']), arguments['settings'])
    for line in sys.stdin:
        options, checkpoint, batches = json.loads(line)
        answers.write(json.dumps(error_of(start_query(session, options, checkpoint, batches))) + '\n')
        answers.flush()


if __name__ == '__main__':
    main()
