"""Log files, and the rows that the data source returns to Spark's Python workers. No JVM runs."""
from __future__ import annotations

import pathlib
from collections.abc import Iterable
from datetime import UTC, datetime

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from support.disk.directory_with_cleaner import DirectoryWithCleaner

from kbroker.log.append import Origin
from kbroker.record.batch import encode_batch
from kbroker.record.control import encode_end_txn_marker
from kbroker_tools.spark import KafkaLogDataSource
from kbroker_tools.spark.schema import FIELDS
from kbroker_tools.spark.tables import SCHEMAS, split_columns

WHEN_MS = 1_700_000_000_000
TYPES = {'binary': BinaryType(), 'string': StringType(), 'int': IntegerType(), 'bigint': LongType(),
         'boolean': BooleanType(), 'timestamp': TimestampType()}


def spark_type(text):
    if not text.startswith('array<struct<'):
        return TYPES[text]
    members = [member.split(':') for member in text.removeprefix('array<struct<').removesuffix('>>').split(',')]
    return ArrayType(StructType([StructField(name, spark_type(kind)) for name, kind in members]))


def schema_of(options, columns):
    table = options.get('table', 'records')
    if table == 'records':
        groups = {'', *(name for name in ('includeHeaders', 'includeTransactions', 'includeTimestampMillis')
                        if options.get(name) == 'true')}
        known = {field.name: field.spark_type for field in FIELDS}
        names = columns or [field.name for field in FIELDS if field.group in groups]
    else:
        known = dict(column.split(' ', 1) for column in split_columns(SCHEMAS[table]))
        names = columns or list(known)
    return StructType([StructField(name, spark_type(known[name])) for name in names])


def make_reader(columns=None, **options):
    given = {name.replace('kafka_', 'kafka.').replace('_servers', '.servers'): str(value)
             for name, value in options.items()}
    return KafkaLogDataSource(given).reader(schema_of(given, columns))


def batches(columns=None, **options):
    """Return the Arrow batches of each task."""
    reader = make_reader(columns, **options)
    return [list(reader.read(partition)) for partition in reader.partitions()]


def rows(columns=None, **options):
    """Return the rows as dictionaries. If they have a partition and an offset, they are in the order of the log."""
    found = [row for task in batches(columns, **options) for batch in task for row in batch.to_pylist()]
    if columns is None and options.get('table', 'records') == 'records':
        found.sort(key=lambda row: (row['topic'], row['partition'], row['offset']))
    return found


def values(**options):
    return [row['value'].decode() for row in rows(**options)]


class LogFiles:
    """One partition, written by the broker's own log. `path` is the log directory."""

    def __init__(self, path: pathlib.Path, topic: str = 'topic', cleanup_policy: str = 'delete', **settings: object):
        self.path = path
        self.directory = DirectoryWithCleaner(path)
        self.directory.cleaner.start()
        self.log = self.directory.open(topic, **{'cleanup_policy': cleanup_policy, **settings})
        self._sequences: dict[int, int] = {}

    @property
    def partition(self) -> pathlib.Path:
        return pathlib.Path(self.log.directory)

    def write(self, *values: str | None, producer_id: int = -1, key: bytes | None = b'k', codec: int = 0,
              at_ms: int = 0, headers: Iterable[tuple[str, bytes | None]] = (), **options: object) -> int:
        """Append a batch, transactional if a producer id is given. Return its base offset."""
        records = [(WHEN_MS + at_ms, key, None if value is None else value.encode(), list(headers)) for value in values]
        if producer_id >= 0:
            sequence = self._sequences.get(producer_id, 0)
            self._sequences[producer_id] = sequence + len(records)
            options |= {'producer_id': producer_id, 'producer_epoch': 0, 'base_sequence': sequence,
                        'transactional': True}
        batch = encode_batch(records, compression=codec, **options)
        return self.log.append_batch(batch, Origin.COORDINATOR, 0).base_offset

    def end(self, producer_id: int, commit: bool = True) -> int:
        marker = encode_end_txn_marker(commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0,
                                       timestamp_ms=WHEN_MS)
        return self.log.append_batch(marker, Origin.COORDINATOR, 0).base_offset

    def roll(self) -> None:
        self.flush()
        self.log.roll()

    def flush(self) -> LogFiles:
        self.log.flush()
        self.log.producer_state.unstable.on_high_watermark(self.log.flushed_offset)
        return self

    def segments(self) -> list[pathlib.Path]:
        return sorted(self.partition.glob('*.log'))


def damage(path: pathlib.Path, position: int, data: bytes = b'\xff\xff\xff\xff') -> None:
    with open(path, 'r+b') as file:
        file.seek(position)
        file.write(data)


def as_time(at_ms: int) -> datetime:
    return datetime.fromtimestamp((WHEN_MS + at_ms) / 1000, UTC)
