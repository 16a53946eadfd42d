"""The ingest of topics into files, exactly once. A run reads from the end of the previous run to the last stable
offset.

Spark writes the rows, and `ledger` makes the rows and their offsets visible in one step. The offsets are fixed before
Spark begins, so a retried task reads the same records. The directory `TO` must be in a file system that the driver and
all executors share, and in which a rename is atomic.
"""
from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.base.topic_partition import TopicPartition
from kbroker_tools.registry.decoding import ValueSchema
from kbroker_tools.spark.datasource import KafkaLogDataSource
from kbroker_tools.spark.decoded import VALUE_BYTES, decoding_options
from kbroker_tools.spark.identity import identify
from kbroker_tools.spark.ingest_source import (
    DATE,
    IngestResult,
    IngestSource,
    advanced,
    since_ms,
    total_offsets,
)
from kbroker_tools.spark.ledger import IngestError, JobFacts, Ledger, Progress
from kbroker_tools.spark.offsets import to_json
from kbroker_tools.spark.options import Options
from kbroker_tools.spark.planning import Slice, chosen_partitions
from kbroker_tools.spark.schema import ddl
from kbroker_tools.spark.skipped import Skipped
from kbroker_tools.spark.tasks import open_place
from kbroker_tools.spark.values import UNDECODED, ValueFormat, needed_package

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
IN_TASKS = 'registry'
"""The mark, in the shape of a job, of values that the tasks of the data source decode."""
SPARKS_NAME = {('avro', 'none'): 'uncompressed'}


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
    values: ValueFormat | ValueSchema | None = None
    """The format of the values. Spark decodes those of a ValueFormat. The data source decodes those of a ValueSchema in
    its tasks. With None, values are not decoded and stay binary."""
    options: dict[str, str] = field(default_factory=dict)
    compression: str | None = None
    """One of the codecs in `CODECS`. With None, Spark chooses the codec. The codec may differ between runs."""

    def run(self, spark: SparkSession) -> IngestResult:
        """Run the job once. After a failure or a kill, either both the rows and the offsets have advanced, or neither
        has."""
        began = time.monotonic()
        source = IngestSource(self.source, self.topics, self.options)
        options = source.parsed(self.partition_by)
        if self.compression is not None and self.compression not in CODECS[self.format]:
            raise IngestError(f'--compression: found {self.compression!r}, expected one for {self.format} files: '
                              f'{", ".join(CODECS[self.format])}')
        ledger = Ledger(self.to, self.state)
        with ledger.locked():
            identity = identify(options, self.topics)
            place = open_place(options)
            chosen_partitions(place, options)  # a wrong topic is an error before the directories have files
            values = self._values(ledger)
            progress = ledger.open(JobFacts(self.source, identity.cluster_id, self._shape(options, values)))
            skipped = Skipped()
            slices = source.slices(place, options, progress, identity, skipped, '--state and --to')
            if not slices:
                return IngestResult(None, 0, 0, 0, 0, [], 0, None, 0, since_ms(began))
            done = advanced(progress, slices, identity)
            before = skipped.lost_offsets
            if isinstance(self.values, ValueSchema) and values is not None:
                source = replace(source, options=source.options | decoding_options(self.values, values[1]))
            written = self._write_and_publish(spark, ledger, source, slices, done, skipped)
            place.refresh()
            without_row = total_offsets(slices) - written.rows - (skipped.lost_offsets - before)
            return IngestResult(done.run, written.rows, written.size_bytes, without_row, skipped.lost_offsets,
                                skipped.words, skipped.aborted_transactions,
                                written.undecoded, source.lag(place, options, done), since_ms(began))

    def _values(self, ledger: Ledger) -> list[str] | None:
        """Return the format and the schema by which this job decodes values, as its shape has them. Return None if the
        values stay binary."""
        if self.values is None:
            return None
        if isinstance(self.values, ValueFormat):
            return [self.values.kind, self.values.schema]
        kept = ledger.shape().get('values')
        recorded = kept[:2] if isinstance(kept, list) and kept[2:] == [IN_TASKS] else None
        return [*self.values.decoder(self.topics, recorded).shape, IN_TASKS]

    def _shape(self, options: Options, values: list[str] | None) -> dict[str, Any]:
        return {'format': self.format, 'partition_by': list(self.partition_by), 'columns': ddl(options),
                'isolation': options['isolation'], 'values': values}

    # ---- writing

    def _write_and_publish(self, spark: SparkSession, ledger: Ledger, source: IngestSource, slices: list[Slice],
                           done: Progress, skipped: Skipped) -> Written:
        """Write the rows and make them visible. Add the records that the tasks skipped to `skipped`."""
        staging, skipped_to = ledger.new_staging(done.run), ledger.new_staging(done.run)
        try:
            written = self._write(spark, source, slices, staging, skipped_to)
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

    def _write(self, spark: SparkSession, source: IngestSource, slices: list[Slice], staging: Path,
               skipped_to: Path) -> Written:
        """Write the rows into `staging`. The tasks write the counts of skipped records into `skipped_to`."""
        from pyspark.errors import AnalysisException
        from pyspark.sql import Observation
        from pyspark.sql import functions as f
        written = Observation('ingest')
        frame = _frame(spark, source, slices, skipped_to)
        value_bytes = f.length('value') if VALUE_BYTES not in frame.columns else f.col(VALUE_BYTES)
        size = f.coalesce(f.length('key'), f.lit(0)) + f.coalesce(value_bytes, f.lit(0))
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

    def _shaped(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f
        if isinstance(self.values, ValueFormat):
            frame = self.values.decode(frame)
        elif self.values is not None:
            frame = frame.drop(VALUE_BYTES)
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


def _frame(spark: SparkSession, source: IngestSource, slices: list[Slice], skipped_to: Path) -> DataFrame:
    """Return a DataFrame with exactly the records of these slices."""
    spark.dataSource.register(KafkaLogDataSource)
    starts: dict[TopicPartition, int] = {(each.topic, each.partition): each.start_offset for each in slices}
    ends: dict[TopicPartition, int] = {(each.topic, each.partition): each.end_offset for each in slices}
    assignment: dict[str, list[int]] = {}
    for each in slices:
        assignment.setdefault(each.topic, []).append(each.partition)
    options = source.data_source_options() | {'assign': json.dumps(assignment), 'startingOffsets': json.dumps(
        to_json(starts)), 'endingOffsets': json.dumps(to_json(ends)), 'skippedTo': str(skipped_to)}
    del options['subscribe']
    options.setdefault('minPartitions', str(spark.sparkContext.defaultParallelism))
    return spark.read.format('kbroker').options(**options).load()
