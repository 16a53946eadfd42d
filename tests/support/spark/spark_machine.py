"""Environment variables that make Spark's virtual machines start fast."""
from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import tempfile

from support.brokers.broker_process import BrokerProcess
from support.runner.class_archive import archive_options
from support.runner.command_runner import run_command
from support.runner.machine_requirements import JUDGES

QUICK = ('-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC')
TRAINING_LIMIT_S = 500
"""The time in seconds after which a job counts as hanging."""


def quick_start() -> dict[str, str]:
    """Return the environment variables that make Spark's virtual machines start fast. The first call in a fresh clone
    takes long, because it creates a class archive.
    """
    return _variables(_archive())


def quick_executors() -> dict[str, str]:
    """Return the Spark settings that make the workers of a cluster start executors fast."""
    return {'spark.executor.extraJavaOptions': ' '.join([*QUICK, *_archive()])}


@functools.cache
def _archive() -> list[str]:
    found = importlib.util.find_spec('pyspark')
    assert found is not None and found.origin is not None, 'pyspark is not installed'
    jars = sorted((pathlib.Path(found.origin).parent / 'jars').glob('*.jar'))
    return archive_options(JUDGES / 'spark', jars, _train)


def _variables(options: list[str]) -> dict[str, str]:
    chosen = ' '.join([*QUICK, *options])
    return {'SPARK_LAUNCHER_OPTS': ' '.join(QUICK), 'SPARK_SUBMIT_OPTS': chosen, 'SPARK_DAEMON_JAVA_OPTS': chosen}


def _train(options: list[str]) -> None:
    """Ingest a record. This loads the classes of a job that reads with Python and writes files."""
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        broker = BrokerProcess(place / 'data')
        broker.start()
        try:
            server = ('--bootstrap-server', broker.address, '--topic', 'records')
            for done in (run_command('topics', *server, '--create'), run_command('produce', *server, stdin='text\n'),
                         # The output of the command ends when the virtual machine has ended and written the archive.
                         run_command('ingest', '--topics', 'records', '--from', broker.address, '--to', place / 'to',
                                     '--state', place / 'state', '--master', 'local[2]', timeout=TRAINING_LIMIT_S,
                                     env=os.environ | {'SPARK_LOCAL_IP': '127.0.0.1'} | _variables(options))):
                assert done.returncode == 0, done.stdout + done.stderr
        finally:
            broker.kill9()
