"""`format("kbroker")`: the classes that PySpark calls.

There is no `pushFilters`: Spark 4.3.0 keeps a pushed filter with the DataFrame and hands it to the next query on it,
which then silently misses rows. Narrow the schema to read less, and bound the offsets.
"""
from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kbroker_tools.spark.file_ranges import ReadOptions
from kbroker_tools.spark.options import Options, check_use, parse_options
from kbroker_tools.spark.planning import Place, resolve
from kbroker_tools.spark.schema import Field, ddl, wanted_fields
from kbroker_tools.spark.skipped import PLAN, Skipped

if TYPE_CHECKING:
    import pyarrow as pa


class KafkaLogDataSource(DataSource):
    """Kafka's log as rows, from files or from a broker, as a read_committed consumer would get them."""

    @classmethod
    def name(cls) -> str:
        return 'kbroker'

    def _options(self) -> Options:
        return parse_options(dict(self.options))

    def schema(self) -> str:
        options = self._options()
        if options['table'] != 'records':
            from kbroker_tools.spark.tables import SCHEMAS
            return SCHEMAS[options['table']]
        return ddl(options['includeHeaders'], options['includeTransactions'])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options()
        check_use(options, is_stream=False)
        if options['table'] != 'records':
            from kbroker_tools.spark.tables import TableReader
            return TableReader(options, schema)
        return RecordsReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from kbroker_tools.spark.stream import RecordsStreamReader
        options = self._options()
        check_use(options, is_stream=True)
        return RecordsStreamReader(options, schema)


class TaskPartition(InputPartition):
    """One task's work."""

    def __init__(self, task: Any):
        super().__init__(task)


class RecordsReader(DataSourceReader):
    """The batch query. What is read is fixed in `partitions`, which Spark calls once for a DataFrame."""

    def __init__(self, options: Options, schema: StructType):
        self.options = options
        self.fields = wanted_fields(schema)

    def partitions(self) -> list[InputPartition]:
        place, skipped = open_place(self.options), Skipped()
        tasks = place.tasks(resolve(place, self.options, skipped), self.options,
                            with_outcomes=asks_for_outcomes(self.fields))
        tell(skipped, self.options, PLAN)
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark's stand-in for no partition at all
            return
        yield from read_task(partition.value, self.fields, self.options)


def open_place(options: Options) -> Place:
    """Where the options say to read from."""
    if options.bootstrap_servers is None:
        from kbroker_tools.spark.file_place import FilePlace
        return FilePlace(options)
    from kbroker_tools.spark.broker_place import BrokerPlace
    return BrokerPlace(options)


def read_task(task: Any, fields: list[Field], options: Options) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in whatever process it runs."""
    settle_imports()
    given = read_options(options)
    yield from task.read(fields, given)
    tell(given.skipped, options, task.name)


@cache
def settle_imports() -> None:
    """Once per process: what was imported is left out when garbage is collected.

    PySpark does that after each task, and goes through all that was ever imported: 30 ms of a processor for each task.
    """
    gc.collect()
    gc.freeze()


def tell(skipped: Skipped, options: Options, name: str) -> None:
    """In `skippedTo`, where that is given. OSError."""
    if options['skippedTo'] is not None:
        skipped.write(Path(options['skippedTo']), name)


def asks_for_outcomes(fields: list[Field]) -> bool:
    return any(field.name == 'outcome' for field in fields)


def read_options(options: Options) -> ReadOptions:
    return ReadOptions(options['batchRows'], options['batchBytes'], options['checkCrcs'], options['failOnDataLoss'],
                       options.is_read_committed)
