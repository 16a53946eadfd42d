"""The ingest of topics into files, exactly once. A run reads from the end of the previous run to the last stable
offset.

Spark writes the rows, and `ledger` makes the rows and their offsets visible in one step. The offsets are fixed before
Spark begins, so a retried task reads the same records. The directory `TO` must be in a file system that the driver and
all executors share, and in which a rename is atomic.
"""
from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.base.topic_partition import TopicPartition
from kbroker_tools.spark.datasource import KafkaLogDataSource
from kbroker_tools.spark.identity import Identity, identify
from kbroker_tools.spark.ledger import IngestError, JobFacts, Ledger, Progress
from kbroker_tools.spark.options import BY_NAME, Options, parse_options
from kbroker_tools.spark.planning import Place, Slice, chosen_partitions
from kbroker_tools.spark.schema import ddl
from kbroker_tools.spark.skipped import Skipped
from kbroker_tools.spark.stream import to_json
from kbroker_tools.spark.tasks import open_place
from kbroker_tools.spark.values import UNDECODED, ValueFormat, needed_package

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BROKER = re.compile(r'(?:[\w.-]+|\[[\w:.%]+\]):\d+(,(?:[\w.-]+|\[[\w:.%]+\]):\d+)*')
DATE = 'date'
CODECS = {
    'parquet': ('none', 'snappy', 'gzip', 'lz4_raw', 'zstd'),
    'orc': ('none', 'snappy', 'zlib', 'lz4', 'zstd'),
    'json': ('none', 'bzip2', 'deflate', 'gzip', 'lz4', 'snappy'),
    'avro': ('none', 'bzip2', 'deflate', 'snappy', 'xz', 'zstandard'),
}
"""Maps each file format to the codecs that Spark has for it. `none` means no compression.

For Parquet, `lz4` is a format of Hadoop, which pyarrow does not read. `lz4_raw` is the format of the Parquet
specification.
"""
SPARKS_NAME = {('avro', 'none'): 'uncompressed'}
OF_THE_JOB = ('path', 'subscribe', 'subscribePattern', 'assign', 'startingOffsets', 'endingOffsets',
              'startingTimestamp', 'endingTimestamp', 'startingOffsetsByTimestamp', 'endingOffsetsByTimestamp',
              'startingOffsetsByTimestampStrategy', 'table', 'maxOffsetsPerTrigger', 'maxBytesPerTrigger',
              'skippedTo')
"""The options of the data source that a user cannot set. The job sets them itself, or they would break exactly-once."""


@dataclass(frozen=True)
class IngestResult:
    """The result of one run. Sizes in bytes count only keys and values. `lag` is the number of offsets from the end of
    the run to the end of the log."""

    run: int | None
    """The number of the run. None if there was nothing to read."""
    rows: int
    size_bytes: int
    skipped_offsets: int
    """The number of offsets that have no row, because they belong to aborted records, markers or compacted records."""
    lost_offsets: int
    """The number of offsets whose records are lost or damaged. They were skipped because failOnDataLoss is false."""
    losses: list[str]
    """A description of each loss."""
    aborted_transactions: int
    """The number of aborted transactions. Their records were skipped."""
    undecoded: int | None
    """The number of values that do not match the schema. None if values are not decoded."""
    lag: int
    duration_ms: int


@dataclass(frozen=True)
class Written:
    """The totals of all tasks. Sizes in bytes count only keys and values."""

    rows: int
    size_bytes: int
    undecoded: int | None


@dataclass
class IngestJob:
    """A job that ingests topics. `source` has log directories or URIs, or addresses such as `host:port`, separated by
    commas.

    `options` are further options of the data source. The job raises IngestError, OptionError, OSError, KafkaError,
    ClientError and DataLossError. It also raises exceptions of Spark, which `failures.one_line` shortens.
    """

    source: str
    topics: Sequence[str]
    to: Path
    state: Path
    format: str = 'parquet'
    partition_by: Sequence[str] = ()
    max_rows_per_file: int | None = None
    values: ValueFormat | None = None
    """The format of the values. With None, values are not decoded and stay binary."""
    options: dict[str, str] = field(default_factory=dict)
    compression: str | None = None
    """One of the codecs in `CODECS`. With None, Spark chooses the codec. The codec may differ between runs."""

    def run(self, spark: SparkSession) -> IngestResult:
        """Run the job once. After a failure or a kill, either both the rows and the offsets have advanced, or neither
        has."""
        began = time.monotonic()
        options = self._check()
        ledger = Ledger(self.to, self.state)
        with ledger.locked():
            identity = identify(options, self.topics)
            place = open_place(options)
            chosen = chosen_partitions(place, options)
            progress = ledger.open(JobFacts(self.source, identity.cluster_id, self._shape(options)))
            skipped = Skipped()
            slices = self._slices(place, options, chosen, progress, identity, skipped)
            if not slices:
                return IngestResult(None, 0, 0, 0, 0, [], 0, None, 0, _since(began))
            done = Progress(progress.job, progress.run + 1,
                            progress.offsets | {(each.topic, each.partition): each.end_offset for each in slices},
                            progress.topic_ids | identity.topic_ids)
            before = skipped.lost_offsets
            written = self._write_and_publish(spark, ledger, slices, done, skipped)
            place.refresh()
            without_row = _offsets(slices) - written.rows - (skipped.lost_offsets - before)
            return IngestResult(done.run, written.rows, written.size_bytes, without_row, skipped.lost_offsets,
                                skipped.words, skipped.aborted_transactions,
                                written.undecoded, self._lag(place, options, done), _since(began))

    # ---- options

    @property
    def _is_broker(self) -> bool:
        return BROKER.fullmatch(self.source) is not None

    def _source_options(self) -> dict[str, str]:
        where = 'kafka.bootstrap.servers' if self._is_broker else 'path'
        return {'subscribe': ','.join(self.topics), **self.options, where: self.source}

    def _check(self) -> Options:
        """Check everything that can be checked without opening a file. Raise IngestError or OptionError if an option is
        wrong."""
        for name in self.options:
            row = BY_NAME.get(name.lower())
            if (row and row.name in OF_THE_JOB) or name.lower() == 'kafka.bootstrap.servers':
                raise IngestError(f'option {name}: an ingest sets it itself, from --topics, --from and the end of its '
                                  'last run')
        if self.compression is not None and self.compression not in CODECS[self.format]:
            raise IngestError(f'--compression: found {self.compression!r}, expected one for {self.format} files: '
                              f'{", ".join(CODECS[self.format])}')
        options = parse_options(self._source_options())
        columns = re.findall(r'`(\w+)`', _columns(options))
        for name in self.partition_by:
            if name not in [*columns, DATE]:
                raise IngestError(f'--partition-by: found {name!r}, expected some of {DATE}, {", ".join(columns)}')
        return options

    def _shape(self, options: Options) -> dict[str, Any]:
        return {'format': self.format, 'partition_by': list(self.partition_by), 'columns': _columns(options),
                'isolation': options['isolation'],
                'values': None if self.values is None else [self.values.kind, self.values.schema]}

    # ---- offsets to read

    def _slices(self, place: Place, options: Options, chosen: Sequence[TopicPartition], progress: Progress,
                identity: Identity, skipped: Skipped) -> list[Slice]:
        slices = []
        for topic, topic_id in sorted(identity.topic_ids.items()):
            kept = progress.topic_ids.get(topic, topic_id)
            if kept != topic_id:
                raise IngestError(f'topic {topic} was recreated: found id {topic_id}, but rows of id {kept} were '
                                  'ingested; give another --state and --to')
        for each in chosen:
            bounds = place.bounds(*each)
            start = progress.offsets.get(each, bounds.start_offset)
            if start < bounds.start_offset and options['failOnDataLoss']:
                raise IngestError(f'{each[0]}-{each[1]}: the next offset to ingest is {start}, but retention moved the '
                                  f'log start to {bounds.start_offset}; with --option failOnDataLoss=false the job '
                                  'continues there')
            if bounds.end_offset < start and options['failOnDataLoss']:
                raise IngestError(f'{each[0]}-{each[1]}: ingested up to {start}, but the log ends at '
                                  f'{bounds.end_offset}: it lost records, or is another log; with --option '
                                  'failOnDataLoss=false the job waits until the log is past that offset')
            if start < bounds.start_offset:
                skipped.lose(*each, start, bounds.start_offset,
                             f'{each[0]}-{each[1]}: the log starts at offset {bounds.start_offset}; lost are records '
                             f'among the {bounds.start_offset - start} offsets {start} to {bounds.start_offset - 1}')
            start = max(start, bounds.start_offset)
            if bounds.end_offset > start:
                slices.append(Slice(*each, start, bounds.end_offset))
        return slices

    def _lag(self, place: Place, options: Options, progress: Progress) -> int:
        return sum(max(0, bounds.end_offset - progress.offsets.get(each, bounds.start_offset))
                   for each in chosen_partitions(place, options) for bounds in [place.bounds(*each)])

    # ---- writing

    def _write_and_publish(self, spark: SparkSession, ledger: Ledger, slices: list[Slice],
                           done: Progress, skipped: Skipped) -> Written:
        """Write the rows and make them visible. Add the records that the tasks skipped to `skipped`."""
        staging, skipped_to = ledger.new_staging(done.run), ledger.new_staging(done.run)
        try:
            written = self._write(spark, slices, staging, skipped_to)
            self._verify(staging, written.rows)
            skipped.add(Skipped.read(skipped_to))
            ledger.publish(staging, done, {
                'rows': written.rows, 'size_bytes': written.size_bytes, 'source': self.source,
                'aborted_transactions': skipped.aborted_transactions, 'lost_offsets': skipped.lost_offsets,
                'losses': skipped.words, 'finished_ms': time.time_ns() // 1_000_000})
        except BaseException:
            ledger.discard(staging)
            raise
        finally:
            ledger.discard(skipped_to)
        return written

    def _write(self, spark: SparkSession, slices: list[Slice], staging: Path, skipped_to: Path) -> Written:
        """Write the rows into `staging`. The tasks write the counts of skipped records into `skipped_to`."""
        from pyspark.errors import AnalysisException
        from pyspark.sql import Observation
        from pyspark.sql import functions as f
        written = Observation('ingest')
        size = f.coalesce(f.length('key'), f.lit(0)) + f.coalesce(f.length('value'), f.lit(0))
        frame = self._frame(spark, slices, skipped_to)
        frame = frame.observe(written, f.count(f.lit(1)).alias('rows'), f.sum(size).alias('size_bytes'))
        frame = self._shaped(frame)
        kept = Observation('undecoded') if self.values is not None else None
        if kept is not None:
            frame = frame.observe(kept, f.count(UNDECODED).alias('undecoded'))
        writer = frame.write.format(self.format).mode('errorifexists')
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        if self.max_rows_per_file is not None:
            writer = writer.option('maxRecordsPerFile', self.max_rows_per_file)
        if self.compression is not None:
            writer = writer.option('compression', SPARKS_NAME.get((self.format, self.compression), self.compression))
        try:
            writer.save(staging.as_uri())
        except AnalysisException as error:
            if error.getCondition() != 'AVRO_DATA_SOURCE_NOT_ENABLED':
                raise
            raise needed_package('avro', 'files of this format need') from None
        found: dict[str, Any] = written.get
        return Written(int(found['rows']), int(found['size_bytes'] or 0),
                       None if kept is None else int(kept.get['undecoded']))

    def _frame(self, spark: SparkSession, slices: list[Slice], skipped_to: Path) -> DataFrame:
        """Return a DataFrame with exactly the records of these slices."""
        spark.dataSource.register(KafkaLogDataSource)
        starts: dict[TopicPartition, int] = {(each.topic, each.partition): each.start_offset for each in slices}
        ends: dict[TopicPartition, int] = {(each.topic, each.partition): each.end_offset for each in slices}
        assignment: dict[str, list[int]] = {}
        for each in slices:
            assignment.setdefault(each.topic, []).append(each.partition)
        options = self._source_options() | {'assign': json.dumps(assignment), 'startingOffsets': json.dumps(
            to_json(starts)), 'endingOffsets': json.dumps(to_json(ends)), 'skippedTo': str(skipped_to)}
        del options['subscribe']
        options.setdefault('minPartitions', str(spark.sparkContext.defaultParallelism))
        return spark.read.format('kbroker').options(**options).load()

    def _shaped(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f
        if self.values is not None:
            frame = self.values.decode(frame)
        if DATE in self.partition_by:
            frame = frame.withColumn(DATE, f.to_date('timestamp'))
        return frame

    def _verify(self, staging: Path, rows: int) -> None:
        """Raise IngestError if the number of written rows is wrong.

        Executors that do not share the directory TO would write somewhere else without an error. Only Parquet files are
        counted, by their footers.
        """
        files = [path for path in staging.rglob('*') if path.is_file() and not path.name.startswith(('_', '.'))]
        if self.format == 'parquet':
            from pyarrow import parquet
            found = sum(parquet.read_metadata(path).num_rows for path in files)
        else:
            found = rows if files else 0
        if found != rows:
            raise IngestError(f'{staging}: found {found} rows in {len(files)} files, and the tasks wrote {rows}: do '
                              'all executors see this directory as the driver does?')


def _columns(options: Options) -> str:
    return ddl(options)


def _offsets(slices: list[Slice]) -> int:
    return sum(each.end_offset - each.start_offset for each in slices)


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
