"""A standalone cluster of Spark: a master, and two workers with one core each. Spark treats the workers as two hosts.
"""
from __future__ import annotations

import os
import pathlib
import re
import sys

import pyspark
from support.brokers.broker_process import ROOT, Process
from support.spark.spark_machine import quick_executors, quick_start

SPARK = pathlib.Path(pyspark.__file__).parent
PYTHON_PATH = os.pathsep.join(map(str, (ROOT, ROOT / 'tests', ROOT / 'kbroker_tools/spark/autoload')))
VARIABLES = {'PYTHONPATH': PYTHON_PATH, 'PYSPARK_PYTHON': sys.executable, 'SPARK_LOCAL_IP': '127.0.0.1'}
HOSTS = ('127.0.0.1', '127.0.0.2')
"""The hosts of the workers. They differ because Spark runs a speculative copy of a task on a second host only."""


def settings() -> dict[str, str]:
    """Return Spark settings with which an application fits into the workers and its executors start fast."""
    return {'spark.executor.memory': '512m', 'spark.driver.host': '127.0.0.1', **quick_executors()}


class Daemon(Process):
    """A master or a worker."""

    def __init__(self, ready: str, kind: str, host: str, *arguments: str):
        super().__init__()
        self._ready_words = ready
        self._command = ['env', *(f'{name}={value}' for name, value in (quick_start() | VARIABLES).items()),
                         'SPARK_NO_DAEMONIZE=1', 'SPARK_DAEMON_MEMORY=256m', str(SPARK / 'bin' / 'spark-class'),
                         f'org.apache.spark.deploy.{kind}', '--host', host, '--webui-port', '0', *arguments]

    def start(self) -> None:
        self.launch(self._command)

    def is_ready_line(self, line: str) -> bool:
        return re.search(self._ready_words, line) is not None


class SparkCluster:
    """A running cluster. `address` is the URL of its master."""

    def __init__(self, directory: pathlib.Path):
        self._daemons: list[Daemon] = []
        try:
            self._start(directory)
        except BaseException:
            self.close()
            raise

    def _start(self, directory: pathlib.Path) -> None:
        master = Daemon(r'I have been elected leader', 'master.Master', HOSTS[0], '--port', '0')
        self._begin(master)
        self.address = next(found[0] for line in master.lines
                            if (found := re.search(r'spark://127\.0\.0\.1:\d+', line)))
        for number, host in enumerate(HOSTS):
            self._begin(Daemon(
                r'Successfully registered with master', 'worker.Worker', host, '--cores', '1', '--memory', '700m',
                '--work-dir', str(directory / f'work{number}'), self.address))

    def _begin(self, daemon: Daemon) -> None:
        daemon.start()
        self._daemons.append(daemon)

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers. Their children are the executors."""
        return [daemon.pid for daemon in self._daemons[1:]]

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.kill9()
