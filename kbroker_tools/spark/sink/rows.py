"""The rows of the sink: the columns of a DataFrame, checked and staged as Arrow streams.

The columns are those of Spark's Kafka sink, and `timestamp`: what the reader returns can be written as it is.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.client.record_appender import record_bytes
from kbroker.record.batch import HEADER_BYTES
from kbroker_tools.spark.messages import ColumnError
from kbroker_tools.spark.options import OptionError
from kbroker_tools.spark.schema import HEADERS
from kbroker_tools.spark.sink.protocol import SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS = {'key': ('binary', 'string'), 'value': ('binary', 'string'), 'topic': ('string',), 'partition': ('int',),
           'timestamp': ('timestamp',), 'headers': (HEADERS,)}
"""The columns with their types. Only `value` is required, and `topic` unless the option names the topic."""
OVERHEAD_BYTES = record_bytes(None, None, [])
WITHOUT_PARTITION = -1


class SinkRow(NamedTuple):
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None


def check_schema(schema: StructType, topic: str | None) -> None:
    """Raise OptionError without a topic, ColumnError for any column that the sink does not take, or no `value`."""
    names = [column.name for column in schema.fields]
    if topic is None and 'topic' not in names:
        raise OptionError('topic', 'found neither the option nor a column topic, expected one of them')
    if 'value' not in names:
        raise ColumnError(f'found the columns {", ".join(names)}, expected value among them')
    for column in schema.fields:
        allowed, found = COLUMNS.get(column.name), column.dataType.simpleString()
        if allowed is None:
            raise ColumnError(f'found column {column.name!r}, expected some of {", ".join(COLUMNS)}')
        if names.count(column.name) > 1:
            raise ColumnError(f'found column {column.name} {names.count(column.name)} times, expected it once')
        if found not in allowed:
            raise ColumnError(f'found column {column.name} of type {found}, expected {" or ".join(allowed)}')


class Stage:
    """The staged rows of one task attempt."""

    def __init__(self, topic: str | None, largest_record_bytes: int, most_bytes: int):
        """`topic` replaces the column. A row may take `largest_record_bytes`, and all of them `most_bytes`."""
        self.rows = 0
        self.chunks: list[bytes] = []
        self.highest_partitions: dict[str, int] = {}
        self._topic = topic
        self._largest_bytes = largest_record_bytes - HEADER_BYTES
        self._most_bytes = most_bytes
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Check and stage the rows of a batch. SinkError names the first row that cannot be written."""
        import pyarrow as pa
        batch = _narrowed(batch, drop_topic=self._topic is not None)
        self._check_sizes(batch)
        self._note_partitions(batch)
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression='lz4')
        with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
            stream.write_batch(batch)
        chunk = sink.getvalue().to_pybytes()
        self._bytes += len(chunk)
        if self._bytes > self._most_bytes:
            raise SinkError(f'a task has staged {self._bytes:,} bytes, maxDriverBytes is {self._most_bytes:,}: raise '
                            'it, or write smaller batches')
        self.chunks.append(chunk)
        self.rows += batch.num_rows

    def _check_sizes(self, batch: pa.RecordBatch) -> None:
        import pyarrow.compute as pc
        sizes: Any = OVERHEAD_BYTES
        for name in ('key', 'value'):
            if name in batch.schema.names:
                sizes = pc.add(sizes, pc.coalesce(pc.binary_length(batch[name]), 0))
        if 'headers' in batch.schema.names:
            sizes = pc.add(sizes, _header_bytes(batch['headers']))
        largest = pc.max(sizes).as_py()
        if largest is not None and largest > self._largest_bytes:
            raise SinkError(f'found a row of {largest:,} bytes, expected at most {self._largest_bytes:,}: raise '
                            'kafka.max.request.size, and max.message.bytes of the topic')

    def _note_partitions(self, batch: pa.RecordBatch) -> None:
        """Note the highest partition that the rows name in each topic."""
        names = batch.schema.names
        topics = batch['topic'].to_pylist() if self._topic is None else [self._topic] * batch.num_rows
        partitions = batch['partition'].to_pylist() if 'partition' in names else [None] * batch.num_rows
        for topic, partition in set(zip(topics, partitions, strict=True)):
            if topic is None:
                raise SinkError('found null in the column topic, expected the name of a topic in each row')
            if partition is not None and partition < 0:
                raise SinkError(f'found partition {partition} in a row of topic {topic}, expected a number from 0, or '
                                'null')
            number = WITHOUT_PARTITION if partition is None else partition
            self.highest_partitions[topic] = max(number, self.highest_partitions.get(topic, WITHOUT_PARTITION))


def _narrowed(batch: pa.RecordBatch, drop_topic: bool) -> pa.RecordBatch:
    """Return the columns as the sink stages them: text as UTF-8 bytes, times in milliseconds."""
    import pyarrow as pa
    arrays, names = [], []
    for name in batch.schema.names:
        if name == 'topic' and drop_topic:
            continue
        array = batch[name]
        if name in ('key', 'value'):
            array = array.cast(pa.binary())
        elif name == 'timestamp':
            array = array.cast(pa.timestamp('ms', tz='UTC'), safe=False).cast(pa.int64())
        names.append(name)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _header_bytes(column: pa.Array) -> pa.Array:
    """Return the bytes that the headers of each row take. SinkError for a header without a key."""
    import pyarrow as pa
    sizes = []
    for headers in column.to_pylist():
        pairs = _headers(headers)
        if any(name is None for name, _ in pairs):
            raise SinkError('found a header whose key is null, expected a key in each header')
        sizes.append(record_bytes(None, None, pairs) - OVERHEAD_BYTES)
    return pa.array(sizes, pa.int32())


def _headers(headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    return [(header['key'], header['value']) for header in headers or () if header is not None]


def staged_rows(chunks: Iterable[bytes], topic: str | None) -> Iterator[SinkRow]:
    """Yield the rows of staged chunks. `topic` is that of the stage."""
    import pyarrow as pa
    for chunk in chunks:
        with pa.ipc.open_stream(chunk) as stream:
            for batch in stream:
                yield from _batch_rows(batch, topic)


def _batch_rows(batch: pa.RecordBatch, topic: str | None) -> Iterator[SinkRow]:
    names = batch.schema.names
    nothing = [None] * batch.num_rows

    def column(name: str) -> list[Any]:
        return batch[name].to_pylist() if name in names else nothing

    topics = [topic] * batch.num_rows if topic is not None else column('topic')
    for name, partition, key, value, headers, timestamp_ms in zip(
            topics, column('partition'), column('key'), column('value'), column('headers'), column('timestamp'),
            strict=True):
        yield SinkRow(name, partition, key, value, _headers(headers), timestamp_ms)
