"""`kbroker-ingest`. It writes topics into files or tables, exactly once.

Files are written by Spark. Tables are written by processes of this machine, or by Spark with `--master`.
`spark-submit .../kbroker_tools/commands/ingest.py ARGUMENTS` runs the same job on a cluster. kbroker must be installed
on its nodes.
"""
from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.base.words import words_for_bytes, words_for_duration
from kbroker_tools.base.actions import check_companions, chosen_action, require
from kbroker_tools.base.command import FILE, SETTINGS, Command, ToolError, output_options, version_option
from kbroker_tools.base.render import Column, Output, words_for_count

if TYPE_CHECKING:
    from kbroker_tools.registry.decoding import ValueSchema
    from kbroker_tools.spark.ingest_source import IngestResult, IngestSource
    from kbroker_tools.spark.lake.table_format import TableFormat
    from kbroker_tools.spark.values import ValueFormat

LOSSES_SHOWN = 10
BACKOFF_S = 1.0
MOST_BACKOFF_S = 60.0
FORMATS = ('parquet', 'orc', 'json', 'avro')
LIBRARIES = {'iceberg': 'pyiceberg', 'delta': 'deltalake'}
"""Maps a format of tables to the library that kbroker has for it."""
VALUE_KINDS = ('json', 'avro', 'protobuf')
FILES, TABLE = 'to', 'to_table'
GOES_WITH = {'state': {FILES}, 'format': {FILES}, 'compression': {FILES}, 'max_rows_per_file': {FILES},
             'table_format': {TABLE}, 'catalog': {TABLE}, 'store_config': {TABLE}, 'job': {TABLE},
             'target_file_size': {TABLE}, 'rows': {TABLE}, 'accept_rollback': {TABLE}, 'evolve': {TABLE},
             'workers': {TABLE}}
"""Maps an option to the target that it goes with: files or a table."""
COLUMNS = [Column('run', 'Run', 'right'), Column('rows', 'Rows', 'right'), Column('size_bytes', 'Bytes', 'right'),
           Column('rows_per_second', 'Rows/s', 'right'), Column('skipped_offsets', 'SkippedOffsets', 'right'),
           Column('lost_offsets', 'LostOffsets', 'right'),
           Column('aborted_transactions', 'AbortedTransactions', 'right'),
           Column('undecoded', 'Undecoded', 'right'), Column('lag', 'LagLeft', 'right'),
           Column('duration_ms', 'Took', 'right')]
COLUMNS_OF_TABLES = [Column('files', 'Files', 'right'), Column('version', 'Version', 'right')]

Run = Callable[[], 'IngestResult']


def _directory(context: click.Context, parameter: click.Parameter, value: str | None) -> Path | None:
    """Return the directory. Raise an error for an object store: it has no atomic rename, so rows and their offsets
    could not become visible together."""
    if value is None:
        return None
    text = value.removeprefix('file://') if value.startswith('file:///') else value
    if re.match(r'[A-Za-z][A-Za-z0-9+.-]*:/', text):
        raise click.BadParameter(f'found {value}, expected a directory of a file system: an object store cannot rename '
                                 'a directory atomically, so rows and offsets could not become visible together. '
                                 'Give --to-table, because the commit of a table is atomic on an object store, too')
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


def _size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    from kbroker_tools.spark.options import parse_bytes
    try:
        return None if value is None else parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(f'found {value!r}, expected {error}') from None


@click.command(cls=Command, context_settings=SETTINGS)
@click.option('--topics', required=True, metavar='T,T...', callback=_names, help='Topics, separated by commas.')
@click.option('--from', 'source', required=True, metavar='BROKER|DIR',
              help='host:port of a broker, or a log directory (a path, or a URI such as s3://...).')
@click.option('--to', callback=_directory, metavar='DIR', help='The directory for the files.')
@click.option('--state', callback=_directory, metavar='DIR',
              help='The directory for the progress of the job. It belongs to the --to of the first run.')
@click.option('--format', type=click.Choice(FORMATS),
              help='The format of the files; avro needs its Spark package.  [default: parquet]')
@click.option('--compression', metavar='CODEC',
              help='The codec of the files: none, snappy, gzip, lz4_raw or zstd for parquet. An error lists those of '
                   "other formats.  [default: Spark's, snappy for parquet]")
@click.option('--max-rows-per-file', type=click.IntRange(1), metavar='N',
              help='Start a new file after this many rows.')
@click.option('--to-table', metavar='NAME|URI',
              help='The table: namespace.name for iceberg, a path or a URI such as s3://... for delta. It is created '
                   'if it does not exist.')
@click.option('--table-format', type=click.Choice(list(LIBRARIES)), help='The format of the table.')
@click.option('--catalog', type=FILE, metavar='FILE',
              help="The catalog of an iceberg table: pyiceberg's settings, as properties (type, uri, warehouse ...).")
@click.option('--store-config', type=FILE, metavar='FILE',
              help='Keys and endpoint of the object store, as properties: s3.endpoint ... for iceberg, '
                   'AWS_ENDPOINT_URL ... for delta.')
@click.option('--job', metavar='NAME', help='The name of the job. Several jobs may write to one table, each with its '
                                            'own offsets.  [default: default]')
@click.option('--target-file-size', callback=_size, metavar='SIZE',
              help='Start a new file after this many bytes of rows, before compression.  [default: 128m]')
@click.option('--rows', type=click.Choice(['committed', 'aborted']),
              help='aborted: only the records of aborted transactions, for audits.  [default: committed]')
@click.option('--accept-rollback', is_flag=True,
              help='Continue from the recorded offsets, although the table was rolled back or restored.')
@click.option('--evolve', type=click.Choice(['add']),
              help='add: add columns that the table lacks, such as fields of a newer schema.')
@click.option('--workers', type=click.IntRange(1), metavar='N',
              help='The number of processes that write.  [default: one for each core]')
@click.option('--partition-by', default='', metavar='COLUMN,...', callback=_names,
              help='Create partitions by the values of columns: topic, partition, date (of the timestamp, UTC) ...')
@click.option('--value-format', type=click.Choice(VALUE_KINDS),
              help='Decode values into a typed column; values that do not match the schema stay in value_undecoded.')
@click.option('--value-schema', metavar='SCHEMA|@FILE',
              help='json: "id bigint, name string"; avro: its JSON; protobuf: DESCRIPTOR-FILE:package.Message. '
                   'registry:[URL][#SUBJECT]: the newest schema of TOPIC-value, or of SUBJECT, in a schema registry.')
@click.option('--registry-config', type=FILE, metavar='FILE',
              help='Settings of the schema registry (schema.registry.url, basic.auth.user.info, ssl.* ...), as '
                   'properties.')
@click.option('--command-config', type=FILE, metavar='FILE',
              help='Client settings for the broker (security.protocol, sasl.*, ssl.*), as properties.')
@click.option('--option', 'options', multiple=True, metavar='NAME=VALUE', callback=_settings,
              help='An option of the data source: isolation, splitBytes, kafka.security.protocol ...; may be repeated.')
@click.option('--master', metavar='URL', help='The Spark master.  [default: local[*], or that of spark-submit; for '
                                              'tables: no Spark]')
@click.option('--conf', multiple=True, metavar='NAME=VALUE', callback=_settings,
              help='A setting of Spark: spark.executor.memory ...; may be repeated.')
@click.option('--follow', is_flag=True, help='Repeat the run until interrupted.')
@click.option('--interval', type=click.FloatRange(0.0), default=10.0, show_default=True, metavar='SECONDS',
              help='With --follow: the pause between runs.')
@click.option('--give-up-after', type=click.FloatRange(0.0), default=600.0, show_default=True, metavar='SECONDS',
              help='With --follow: the longest time to retry, after a first run, while the broker is unavailable.')
@output_options
@version_option
def main(topics: list[str], source: str, options: dict[str, str], command_config: Path | None, follow: bool,
         interval: float, give_up_after: float, as_json: bool, **given: Any) -> None:
    """Write topics into files or a table: from the end of the last run to the last stable offset.

    Rows and their offsets become visible in one step. After a crash at any point, the next run continues.
    """
    target = chosen_action(given, (FILES, TABLE))
    check_companions(target, given, GOES_WITH)
    require(given, 'state' if target == FILES else 'table_format', target)
    if (given['value_format'] is None) != (given['value_schema'] is None):
        raise click.UsageError('give --value-format and --value-schema together')
    output = Output(as_json)
    with interruptible(), library_errors_in_one_line():
        try:
            from kbroker_tools.spark.ingest_source import IngestSource
            from kbroker_tools.spark.options import client_options
            found = IngestSource(source, topics, client_options(command_config) | options)
            with (file_runs if target == FILES else table_runs)(found, given, output) as run:
                ingest(run, output, interval if follow else None, give_up_after)
        except ImportError as error:
            raise ToolError(f'{error.name or error} is not installed: pip install "kbroker[{_extra(given)}]"'
                            ) from None


def _extra(given: dict[str, Any]) -> str:
    """Return the extra of kbroker that has the packages for these options."""
    if given['to_table'] is None:
        return 'spark'
    return f'{given["table_format"]},spark' if _uses_spark(given) else str(given['table_format'])


@contextmanager
def file_runs(source: IngestSource, given: dict[str, Any], output: Output) -> Iterator[Run]:
    """Yield a function that ingests into files once. Spark runs until the block ends."""
    from kbroker_tools.spark.ingest import IngestJob
    from kbroker_tools.spark.session import running, task_progress
    job = IngestJob(source.source, source.topics, given['to'], given['state'], given['format'] or 'parquet',
                    given['partition_by'], given['max_rows_per_file'], file_values_of(given), source.options,
                    given['compression'])
    with running(given['master'], given['conf'], output) as spark:
        def run() -> IngestResult:
            with task_progress(spark, output):
                return job.run(spark)

        yield run


@contextmanager
def table_runs(source: IngestSource, given: dict[str, Any], output: Output) -> Iterator[Run]:
    """Yield a function that ingests into a table once. The processes, or Spark, run until the block ends."""
    for name in ('pyarrow', *(['pyspark'] if _uses_spark(given) else []), LIBRARIES[given['table_format']]):
        import_module(name)     # before anything is opened
    from kbroker_tools.spark.lake.job import TARGET_BYTES, TableJob
    from kbroker_tools.spark.lake.runners import ProcessRunner, Runner, SparkRunner
    job = TableJob(source, table_of(given), given['job'] or 'default', given['partition_by'],
                   given['target_file_size'] or TARGET_BYTES, values_of(given), given['rows'] == 'aborted',
                   given['accept_rollback'], given['evolve'] == 'add')

    def run_with(runner: Runner) -> Run:
        def run() -> IngestResult:
            with output.progress('looking for new records') as bar:
                done = 0

                def advance(ended: int, total: int) -> None:
                    nonlocal done
                    if done == 0:
                        bar.restart('writing, tasks', total)
                    bar.advance(ended - done)
                    done = ended

                return job.run(runner, advance)
        return run

    if _uses_spark(given):
        if given['workers'] is not None:
            raise click.UsageError('--workers goes with processes of this machine, not with Spark')
        from kbroker_tools.spark.session import running
        with running(given['master'], given['conf'], output) as spark:
            yield run_with(SparkRunner(spark.sparkContext))
        return
    if given['conf']:
        raise click.UsageError('--conf is for Spark: give --master, too')
    runner = ProcessRunner(given['workers'])
    try:
        yield run_with(runner)
    finally:
        runner.stop()


def _uses_spark(given: dict[str, Any]) -> bool:
    return given['master'] is not None or 'PYSPARK_GATEWAY_PORT' in os.environ


def table_of(given: dict[str, Any]) -> TableFormat:
    """Return the table that the options name. Nothing is opened."""
    from kbroker.client.config import read_client_file
    store = read_client_file(given['store_config']) if given['store_config'] is not None else {}
    if given['table_format'] == 'iceberg':
        require(given, 'catalog', 'to_table')
        from kbroker_tools.spark.lake.iceberg import IcebergTable
        return IcebergTable(given['to_table'], read_client_file(given['catalog']), store)
    if given['catalog'] is not None:
        raise click.UsageError('--catalog goes with --table-format iceberg')
    from kbroker_tools.spark.lake.delta import DeltaLakeTable
    return DeltaLakeTable(given['to_table'], store)


def file_values_of(given: dict[str, Any]) -> ValueFormat | ValueSchema | None:
    """Return the format of the values for an ingest into files. Spark decodes values without a schema id."""
    from kbroker_tools.spark.values import ValueFormat
    found = values_of(given)
    return found if found is None or found.uses_registry else ValueFormat(found.kind, found.schema)


def values_of(given: dict[str, Any]) -> ValueSchema | None:
    """Return the format and the schema of the values that the options name."""
    if given['value_format'] is None:
        return None
    from kbroker.client.config import read_client_file
    from kbroker_tools.registry.decoding import ValueSchema
    registry = read_client_file(given['registry_config']) if given['registry_config'] is not None else {}
    return ValueSchema(given['value_format'], text_or_file(given['value_schema']), registry)


def ingest(run: Run, output: Output, interval_s: float | None, give_up_after_s: float) -> None:
    """Run the job once, or again and again if an interval is given. A repeated run that finds nothing new is not
    printed."""
    show(output, run())
    retries = Retries(give_up_after_s, output.note)
    while interval_s is not None:
        time.sleep(interval_s)
        try:
            result = run()
        except Exception as error:
            retries.wait(error)
            continue
        retries.end()
        if result.run is not None:
            show(output, result)


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


def text_or_file(text: str) -> str:
    return Path(text[1:]).read_text('utf-8') if text.startswith('@') else text


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM end the program in the same way as Ctrl-C. The running job is aborted, and rows that are visible
    stay."""
    def end(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def library_errors_in_one_line() -> Iterator[None]:
    """Turn exceptions of PySpark, DataLossError and TableUnavailable into ToolError."""
    from kbroker.client.errors import ClientError
    try:
        yield
    except (click.ClickException, ImportError, ClientError):
        raise
    except Exception as error:
        if type(error).__module__.split('.')[0] not in ('pyspark', 'py4j'):
            from kbroker_tools.spark.file_ranges import DataLossError
            from kbroker_tools.spark.lake.table_format import TableUnavailable
            if isinstance(error, (DataLossError, TableUnavailable)):
                raise ToolError(str(error)) from None
            raise
        from kbroker_tools.spark.failures import one_line
        raise ToolError(one_line(error)) from None


def show(output: Output, result: IngestResult) -> None:
    rate = round(result.rows * 1000 / result.duration_ms) if result.duration_ms else 0
    cells: list[Any] = [result.run, result.rows, result.size_bytes, rate, result.skipped_offsets,
                        result.lost_offsets, result.aborted_transactions, result.undecoded, result.lag,
                        result.duration_ms]
    if not output.as_json:
        cells[2], cells[-1] = words_for_bytes(result.size_bytes), words_for_duration(result.duration_ms)
    is_table = result.files is not None
    output.table(COLUMNS + COLUMNS_OF_TABLES if is_table else COLUMNS,
                 [[*cells, result.files, result.version] if is_table else cells])
    output.stream.flush()
    for note in result.notes:
        output.note(note)
    for what in result.losses[:LOSSES_SHOWN]:
        output.note(f'skipped: {what}')
    if result.losses:
        where = '' if is_table else f'; each is in run={result.run:06d}/_ingest.json'
        output.note(f'{words_for_count(len(result.losses), "range")} of lost records, {result.lost_offsets:,} offsets '
                    f'in all{where}')


if __name__ == '__main__':
    main(prog_name='kbroker-ingest')
