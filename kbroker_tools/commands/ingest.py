"""`kbroker-ingest`. It is a Spark job that writes topics into files, exactly once.

`spark-submit .../kbroker_tools/commands/ingest.py ARGUMENTS` runs the same job on a cluster. kbroker must be installed
on its nodes.
"""
from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from kbroker.base.words import words_for_bytes, words_for_duration
from kbroker_tools.base.command import FILE, INTERRUPTED, SETTINGS, Command, ToolError, output_options, version_option
from kbroker_tools.base.render import PROGRESS_INTERVAL_S, Column, Output, Progress, words_for_count

if TYPE_CHECKING:
    from kbroker_tools.spark.ingest import IngestJob
    from kbroker_tools.spark.ingest_source import IngestResult

TERMINATED = 143
LOSSES_SHOWN = 10
BACKOFF_S = 1.0
MOST_BACKOFF_S = 60.0
FORMATS = ('parquet', 'orc', 'json', 'avro')
VALUE_KINDS = ('json', 'avro', 'protobuf')
QUIET_LOG = Path(__file__).parent / 'spark' / 'log4j2.properties'
COLUMNS = [Column('run', 'Run', 'right'), Column('rows', 'Rows', 'right'), Column('size_bytes', 'Bytes', 'right'),
           Column('rows_per_second', 'Rows/s', 'right'), Column('skipped_offsets', 'SkippedOffsets', 'right'),
           Column('lost_offsets', 'LostOffsets', 'right'),
           Column('aborted_transactions', 'AbortedTransactions', 'right'),
           Column('undecoded', 'Undecoded', 'right'), Column('lag', 'LagLeft', 'right'),
           Column('duration_ms', 'Took', 'right')]


def _directory(context: click.Context, parameter: click.Parameter, value: str) -> Path:
    """Return the directory. Raise an error for an object store: it has no atomic rename, so rows and their offsets
    could not become visible together."""
    text = value.removeprefix('file://') if value.startswith('file:///') else value
    if re.match(r'[A-Za-z][A-Za-z0-9+.-]*:/', text):
        raise click.BadParameter(f'found {value}, expected a directory of a file system: an object store cannot rename '
                                 'a directory atomically, so rows and offsets could not become visible together. '
                                 'Ingest into a file system and copy the run=... directories from there')
    return Path(text)


def _settings(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in values:
        name, separator, value = text.partition('=')
        if not separator or not name.strip():
            raise click.BadParameter(f'found {text!r}, expected NAME=VALUE')
        found[name.strip()] = value
    return found


def _names(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    return [part.strip() for part in value.split(',') if part.strip()]


@click.command(cls=Command, context_settings=SETTINGS)
@click.option('--topics', required=True, metavar='T,T...', callback=_names, help='Topics, separated by commas.')
@click.option('--from', 'source', required=True, metavar='BROKER|DIR',
              help='host:port of a broker, or a log directory (a path, or a URI such as s3://...).')
@click.option('--to', required=True, callback=_directory, metavar='DIR', help='The directory for the files.')
@click.option('--state', required=True, callback=_directory, metavar='DIR',
              help='The directory for the progress of the job. It belongs to the --to of the first run.')
@click.option('--format', 'file_format', type=click.Choice(FORMATS), default='parquet', show_default=True,
              help='The format of the files; avro needs its Spark package.')
@click.option('--compression', metavar='CODEC',
              help='The codec of the files: none, snappy, gzip, lz4_raw or zstd for parquet. An error lists those of '
                   "other formats.  [default: Spark's, snappy for parquet]")
@click.option('--partition-by', default='', metavar='COLUMN,...', callback=_names,
              help='Create directories by the values of columns: topic, partition, date (of the timestamp, UTC) ...')
@click.option('--max-rows-per-file', type=click.IntRange(1), metavar='N',
              help='Start a new file after this many rows.')
@click.option('--value-format', type=click.Choice(VALUE_KINDS),
              help='Decode values into a typed column; values that do not match the schema stay in value_undecoded.')
@click.option('--value-schema', metavar='SCHEMA|@FILE',
              help='json: "id bigint, name string"; avro: its JSON; protobuf: DESCRIPTOR-FILE:package.Message.')
@click.option('--command-config', type=FILE, metavar='FILE',
              help='Client settings for the broker (security.protocol, sasl.*, ssl.*), as properties.')
@click.option('--option', 'options', multiple=True, metavar='NAME=VALUE', callback=_settings,
              help='An option of the data source: isolation, splitBytes, kafka.security.protocol ...; may be repeated.')
@click.option('--master', metavar='URL', help='The Spark master.  [default: local[*], or that of spark-submit]')
@click.option('--conf', multiple=True, metavar='NAME=VALUE', callback=_settings,
              help='A setting of Spark: spark.executor.memory ...; may be repeated.')
@click.option('--follow', is_flag=True, help='Repeat the run until interrupted.')
@click.option('--interval', type=click.FloatRange(0.0), default=10.0, show_default=True, metavar='SECONDS',
              help='With --follow: the pause between runs.')
@click.option('--give-up-after', type=click.FloatRange(0.0), default=600.0, show_default=True, metavar='SECONDS',
              help='With --follow: the longest time to retry, after a first run, while the broker is unavailable.')
@output_options
@version_option
def main(topics: list[str], source: str, to: Path, state: Path, file_format: str, compression: str | None,
         partition_by: list[str], max_rows_per_file: int | None, value_format: str | None, value_schema: str | None,
         command_config: Path | None, options: dict[str, str], master: str | None, conf: dict[str, str], follow: bool,
         interval: float, give_up_after: float, as_json: bool) -> None:
    """Write topics into files with Spark: from the end of the last run to the last stable offset.

    Rows and their offsets become visible in one step. After a crash at any point, the next run continues.
    """
    if (value_format is None) != (value_schema is None):
        raise click.UsageError('give --value-format and --value-schema together')
    with interruptible(), spark_errors_in_one_line():
        try:
            from kbroker_tools.spark.ingest import IngestJob
            from kbroker_tools.spark.options import client_options
            from kbroker_tools.spark.values import ValueFormat
        except ImportError as error:
            raise ToolError(f'{error.name or error} is not installed: pip install "kbroker[spark]"') from None
        options = client_options(command_config) | options
        values = ValueFormat(value_format, text_or_file(value_schema)) if value_format and value_schema else None
        job = IngestJob(source, topics, to, state, file_format, partition_by, max_rows_per_file, values, options,
                        compression)
        ingest(job, master, conf, Output(as_json), interval if follow else None, give_up_after)


def ingest(job: IngestJob, master: str | None, conf: dict[str, str], output: Output, interval_s: float | None,
           give_up_after_s: float) -> None:
    """Run the job once, or again and again if an interval is given. A repeated run that finds nothing new is not
    printed."""
    with output.waiting('starting Spark ...'):
        spark = session(master, conf)
    try:
        with task_progress(spark, output):
            result = job.run(spark)
        show(output, result)
        retries = Retries(give_up_after_s, output.note)
        while interval_s is not None:
            time.sleep(interval_s)
            try:
                with task_progress(spark, output):
                    result = job.run(spark)
            except Exception as error:
                retries.wait(error)
                continue
            retries.end()
            if result.run is not None:
                show(output, result)
    except KeyboardInterrupt:
        end_with_java(spark, INTERRUPTED)
    except SystemExit:      # by `interruptible`
        end_with_java(spark, TERMINATED)
    except Exception:
        spark.stop()
        raise
    spark.stop()


class Retries:
    """The retries of a job while its source is unavailable. The pauses grow, and the series of retries has a time
    limit."""

    def __init__(self, limit_s: float, note: Callable[[str], None], now_s: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], None] = time.sleep):
        self._limit_s, self._note, self._now_s, self._sleep = limit_s, note, now_s, sleep
        self._failed_first_s: float | None = None
        self._backoff_s = BACKOFF_S

    def wait(self, error: Exception) -> None:
        """Wait after a failed run. Raise the error again if it is permanent, or if the job has failed for longer than
        the limit."""
        from kbroker_tools.spark.failures import one_line, passes_by_itself
        if not passes_by_itself(error):
            raise error
        now_s = self._now_s()
        self._failed_first_s = now_s if self._failed_first_s is None else self._failed_first_s
        left_s = self._failed_first_s + self._limit_s - now_s
        if left_s <= 0:
            raise error
        pause_s = min(self._backoff_s, left_s)
        self._backoff_s = min(self._backoff_s * 2, MOST_BACKOFF_S)
        self._note(f'{one_line(error)}; trying again in {words_for_duration(pause_s * 1000)}, and for '
                   f'{words_for_duration(left_s * 1000)} at most')
        self._sleep(pause_s)

    def end(self) -> None:
        """End the series of retries after a successful run."""
        if self._failed_first_s is not None:
            self._note(f'the source is back after {words_for_duration((self._now_s() - self._failed_first_s) * 1000)}')
        self._failed_first_s, self._backoff_s = None, BACKOFF_S


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


def text_or_file(text: str) -> str:
    return Path(text[1:]).read_text('utf-8') if text.startswith('@') else text


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM end the program in the same way as Ctrl-C. The running job is aborted, and rows that are visible
    stay."""
    def end(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def spark_errors_in_one_line() -> Iterator[None]:
    """Turn exceptions of PySpark, and DataLossError, into ToolError."""
    from kbroker.client.errors import ClientError
    try:
        yield
    except (click.ClickException, ImportError, ClientError):
        raise
    except Exception as error:
        if type(error).__module__.split('.')[0] not in ('pyspark', 'py4j'):
            from kbroker_tools.spark.file_ranges import DataLossError
            if isinstance(error, DataLossError):
                raise ToolError(str(error)) from None
            raise
        from kbroker_tools.spark.failures import one_line
        raise ToolError(one_line(error)) from None


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


def show(output: Output, result: IngestResult) -> None:
    rate = round(result.rows * 1000 / result.duration_ms) if result.duration_ms else 0
    cells: list[Any] = [result.run, result.rows, result.size_bytes, rate, result.skipped_offsets,
                        result.lost_offsets, result.aborted_transactions, result.undecoded, result.lag,
                        result.duration_ms]
    if not output.as_json:
        cells[2], cells[-1] = words_for_bytes(result.size_bytes), words_for_duration(result.duration_ms)
    output.table(COLUMNS, [cells])
    output.stream.flush()
    for what in result.losses[:LOSSES_SHOWN]:
        output.note(f'skipped: {what}')
    if result.losses:
        output.note(f'{words_for_count(len(result.losses), "range")} of lost records, {result.lost_offsets:,} offsets '
                    f'in all; each is in run={result.run:06d}/_ingest.json')


if __name__ == '__main__':
    main(prog_name='kbroker-ingest')
