"""The classes that PySpark calls for `format("kbroker")`.

The reader has no `pushFilters`. Spark 4.3.0 keeps a pushed filter with the DataFrame and applies it to the next query
too, which then misses rows without an error. To read less, a query can narrow the schema and limit the offsets.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from kbroker.base.errors import ConfigError
from kbroker_tools.spark.decoded import Columns, decoder_of, query_schema
from kbroker_tools.spark.messages import message_first, require_arrow, require_streams
from kbroker_tools.spark.options import Options, check_use, parse_options
from kbroker_tools.spark.planning import resolve
from kbroker_tools.spark.skipped import PLAN, Skipped
from kbroker_tools.spark.task_partition import TaskPartition
from kbroker_tools.spark.tasks import freeze_imports, open_place, wants_outcomes, write_skipped

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker_tools.registry.decoding import ValueDecoder


class KafkaLogDataSource(DataSource):
    """The data source. It returns Kafka's log as rows, from files or from a broker, as a read_committed consumer would
    receive them. It also writes rows to Kafka."""

    @message_first()
    def __init__(self, options: dict[str, str]):
        super().__init__(options)
        require_arrow()
        freeze_imports()
        self._decoder: ValueDecoder | None = None

    @classmethod
    def name(cls) -> str:
        return 'kbroker'

    def _options(self) -> Options:
        return parse_options(dict(self.options))

    @message_first()
    def schema(self) -> StructType | str:
        """Return the columns. The type of a decoded value is fixed here: Spark passes this object on to `reader` and
        `streamReader`."""
        options = self._options()
        if options['table'] != 'records':
            from kbroker_tools.spark.tables import SCHEMAS
            return SCHEMAS[options['table']]
        self._decoder = decoder_of(options)
        return query_schema(options, self._decoder)

    def _columns(self, options: Options, schema: StructType) -> Columns:
        decoder = self._decoder if self._decoder is not None else decoder_of(options)
        return Columns.of(schema, decoder)

    @message_first()
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options()
        check_use(options, is_stream=False)
        if options['table'] != 'records':
            from kbroker_tools.spark.tables import TableReader
            return TableReader(options, schema)
        return RecordsReader(options, self._columns(options, schema))

    @message_first()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        require_streams()
        from kbroker_tools.spark.stream import RecordsStreamReader
        options = self._options()
        check_use(options, is_stream=True)
        return RecordsStreamReader(options, self._columns(options, schema))

    @message_first()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from kbroker_tools.spark.sink.options import parse_sink_options
        from kbroker_tools.spark.sink.writer import DirectJobWriter, JobWriter
        _refuse_overwrite(overwrite, "mode('append')")
        options = parse_sink_options(dict(self.options), is_stream=False)
        return (JobWriter if options.is_exactly_once else DirectJobWriter)(options, schema)

    @message_first()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from kbroker_tools.spark.sink.options import parse_sink_options
        from kbroker_tools.spark.sink.writer import DirectStreamWriter, StreamWriter
        _refuse_overwrite(overwrite, "outputMode('append')")
        options = parse_sink_options(dict(self.options), is_stream=True)
        return (StreamWriter if options.is_exactly_once else DirectStreamWriter)(options, schema)


def _refuse_overwrite(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise ConfigError('mode', f'found a write that replaces the rows of a topic, expected {instead}: a topic keeps '
                          'them')


class RecordsReader(DataSourceReader):
    """The reader of a batch query. Spark calls `partitions` once for each DataFrame. This call fixes the offsets to
    read."""

    def __init__(self, options: Options, columns: Columns):
        self.options = options
        self.columns = columns

    @message_first()
    def partitions(self) -> list[InputPartition]:
        place, skipped = open_place(self.options), Skipped()
        tasks = place.tasks(resolve(place, self.options, skipped), self.options,
                            with_outcomes=wants_outcomes(self.columns.fields))
        write_skipped(skipped, self.options, PLAN)
        freeze_imports()
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task = partition.value
        if task is not None:  # Spark passes None when there are no partitions
            yield from self.columns.read(task, task.name, self.options)
