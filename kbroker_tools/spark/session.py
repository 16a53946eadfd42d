"""The Spark session of a command: how it starts without noise, and how it ends when the user interrupts it."""
from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from kbroker_tools.base.command import INTERRUPTED, ToolError
from kbroker_tools.base.render import PROGRESS_INTERVAL_S, Output, Progress

QUIET_LOG = Path(__file__).parent / 'log4j2.properties'
TERMINATED = 143
"""The exit code after SIGTERM."""


@contextmanager
def running(master: str | None, conf: dict[str, str], output: Output) -> Iterator[Any]:
    """Yield a Spark session, and stop it. After Ctrl-C or SIGTERM, this process ends."""
    with output.waiting('starting Spark ...'):
        spark = session(master, conf)
    try:
        yield spark
    except KeyboardInterrupt:
        end_with_java(spark, INTERRUPTED)
    except SystemExit:
        end_with_java(spark, TERMINATED)
    except Exception:
        spark.stop()
        raise
    spark.stop()


def session(master: str | None, conf: dict[str, str]) -> Any:
    """Return a Spark session in UTC, so that `date` has the same meaning everywhere. Under spark-submit, return the
    session of spark-submit."""
    from pyspark import SparkConf
    from pyspark.sql import SparkSession
    builder = (SparkSession.builder.appName('kbroker-ingest').config('spark.sql.session.timeZone', 'UTC')
               # With TCP, each task would wait 40 ms for a delayed acknowledgement before it begins.
               .config('spark.python.unix.domain.socket.enabled', 'true'))
    is_submitted = 'PYSPARK_GATEWAY_PORT' in os.environ
    given = SparkConf()
    if not is_submitted:
        master = master or conf.get('spark.master') or given.get('spark.master', 'local[*]') or ''
        if master.startswith('local'):
            os.environ.setdefault('PYSPARK_PYTHON', sys.executable)
        java_options = conf.pop('spark.driver.extraJavaOptions', '')
        builder = (builder.master(master).config('spark.ui.enabled', 'false')
                   .config('spark.ui.showConsoleProgress', 'false')
                   .config('spark.driver.extraJavaOptions',
                           f'-Dlog4j2.configurationFile={QUIET_LOG.as_uri()} {java_options}'.strip()))
    elif master is not None:
        raise click.UsageError('under spark-submit, give --master to spark-submit itself')
    for name, value in conf.items():
        builder = builder.config(name, value)
    with java_output_aside() if not is_submitted else nullcontext(), signals_put_off():
        return builder.getOrCreate()


@contextmanager
def signals_put_off() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM to the end of the block. If Python is stopped while it starts a Java process, the Java
    process never ends.

    The handler that PySpark installs for Ctrl-C is removed, because it could call Java in the middle of another call.
    """
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


@contextmanager
def java_output_aside() -> Iterator[None]:
    """Discard what a Java process that starts in the block writes to stderr. Java prints warnings there about its own
    options.

    Raise ToolError, with the last line that Java wrote, if the process does not start.
    """
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        except Exception as error:
            file.seek(0)
            lines = [line for line in file.read().decode('utf-8', 'replace').splitlines() if line.strip()]
            raise ToolError(f'Spark does not start: {lines[-1] if lines else error}') from None
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


@contextmanager
def task_progress(spark: Any, output: Output) -> Iterator[None]:
    """Show a progress bar of Spark's tasks on a terminal. A second thread asks Spark for the progress."""
    if not sys.stderr.isatty():
        yield
        return
    is_over = threading.Event()

    def watch(bar: Progress) -> None:
        tracker, total, shown = spark.sparkContext.statusTracker(), 0, 0
        while not is_over.wait(PROGRESS_INTERVAL_S):
            stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
            tasks, done = (sum(getattr(stage, name) for stage in stages) for name in ('numTasks', 'numCompletedTasks'))
            if tasks not in (0, total):
                bar.restart('writing, tasks', tasks)
                total, shown = tasks, 0
            if tasks:
                bar.advance(done - shown)
                shown = done

    with output.progress('looking for new records') as bar:
        watcher = threading.Thread(target=watch, args=(bar,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join(1)


def end_with_java(spark: Any, code: int) -> NoReturn:
    """Abort the running job and end this process, without a call to Java. The interruption came while Java had not yet
    answered the previous call.

    PySpark's daemon threads would print tracebacks about the missing answer, so stderr is closed. This program prints
    nothing after an interruption. The interpreter is not finalized while these threads run. That could abort the
    process (SIGABRT), for example when a thread stops while it holds the lock of stderr.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    process = getattr(spark.sparkContext._gateway, 'proc', None)
    if process is not None:  # under spark-submit, Java is the parent process and ends with this one
        process.terminate()
        process.wait()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)
