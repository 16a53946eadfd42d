"""The rows of the sink: the columns of a DataFrame, checked, staged as Arrow streams, and sent.

The columns are those of Spark's Kafka sink, and `timestamp`. A DataFrame from the reader can be written unchanged.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kbroker.base.clock import Clock
from kbroker.client.record_appender import record_bytes
from kbroker.record.batch import HEADER_BYTES
from kbroker_tools.spark.messages import ColumnError
from kbroker_tools.spark.options import OptionError
from kbroker_tools.spark.schema import HEADERS
from kbroker_tools.spark.sink.values import SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kbroker.client import Producer

COLUMNS = {'key': ('binary', 'string'), 'value': ('binary', 'string'), 'topic': ('string',), 'partition': ('int',),
           'timestamp': ('timestamp',), 'headers': (HEADERS,)}
"""The columns with their types. `value` is required, and so is `topic` unless the option names the topic."""
OVERHEAD_BYTES = record_bytes(None, None, [])
WITHOUT_PARTITION = -1
TIME_BYTES = 8


def check_schema(schema: StructType, topic: str | None) -> None:
    """Raise OptionError if no topic is named. Raise ColumnError for a column that the sink does not accept, or without
    `value`."""
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


class RowChecks:
    """The checks of the rows of one task attempt, before rows are staged or sent."""

    def __init__(self, topic: str | None, largest_record_bytes: int):
        """`topic` replaces the column. The size of a row is at most `largest_record_bytes`."""
        self.rows = 0
        self.highest_partitions: dict[str, int] = {}
        self._topic = topic
        self._largest_bytes = largest_record_bytes - HEADER_BYTES

    def checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows in the form that `send_rows` accepts. Raise SinkError, which names the first invalid row."""
        batch = _narrowed(batch, drop_topic=self._topic is not None)
        self._check_sizes(batch)
        self._note_partitions(batch)
        self.rows += batch.num_rows
        return batch

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
        """Keep the highest partition that the rows name in each topic."""
        for topic, partition, _ in _groups(batch, self._topic):
            if topic is None:
                raise SinkError('found null in the column topic, expected the name of a topic in each row')
            if partition is not None and partition < 0:
                raise SinkError(f'found partition {partition} in a row of topic {topic}, expected a number from 0, or '
                                'null')
            number = WITHOUT_PARTITION if partition is None else partition
            self.highest_partitions[topic] = max(number, self.highest_partitions.get(topic, WITHOUT_PARTITION))


class Stage:
    """The staged rows of one task attempt."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.size_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Stage rows that were checked."""
        import pyarrow as pa
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression='lz4')) as stream:
            stream.write_batch(batch)
        chunk = sink.getvalue().to_pybytes()
        self.size_bytes += len(chunk)
        self.chunks.append(chunk)


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
            _check_times(array)
            array = array.cast(pa.timestamp('ms', tz='UTC'), safe=False).cast(pa.int64())
        names.append(name)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _check_times(times: pa.Array) -> None:
    """Raise SinkError for a time that no record can have. Microseconds are checked, because the cast rounds times to
    1970."""
    import pyarrow as pa
    import pyarrow.compute as pc
    earliest_us = pc.min(times.cast(pa.int64())).as_py()
    if earliest_us is not None and earliest_us < 0:
        raise SinkError(f'found a row with the timestamp {earliest_us // 1000} ms, expected none before 1970')


def _header_bytes(column: pa.Array) -> pa.Array:
    """Return the bytes that the headers of each row take. Raise SinkError for a header without a key."""
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


def staged_batches(chunks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of staged chunks."""
    import pyarrow as pa
    for chunk in chunks:
        with pa.ipc.open_stream(chunk) as stream:
            yield from stream


def send_rows(producer: Producer, batch: pa.RecordBatch, topic: str | None) -> None:
    """Queue checked rows. `topic` is the topic of the checks. Rows of one partition keep their order. Raise the errors
    of `send`."""
    for name, partition, rows in _groups(batch, topic):
        names = rows.schema.names
        producer.send_batch(name, rows['value'], rows['key'] if 'key' in names else None,
                            [_headers(each) for each in rows['headers'].to_pylist()] if 'headers' in names else None,
                            partition=partition, timestamps=_times_ms(rows) if 'timestamp' in names else None)


def _groups(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[Any, int | None, pa.RecordBatch]]:
    """Yield the rows of each topic and partition that the columns name. Without these columns, all rows are one group.
    """
    import pyarrow.compute as pc
    columns = [name for name in ('topic', 'partition') if name in batch.schema.names]
    if columns and batch.num_rows:
        batch = batch.take(pc.sort_indices(batch, sort_keys=[(name, 'ascending') for name in columns]))
    ends = {batch.num_rows}
    for name in columns:
        ends.update(pc.run_end_encode(batch[name]).run_ends.to_pylist())
    start = 0
    for end in sorted(ends):
        if start < end:
            rows = batch.slice(start, end - start)
            yield (topic if topic is not None else rows['topic'][0].as_py(),
                   rows['partition'][0].as_py() if 'partition' in columns else None, rows)
        start = end


def _times_ms(rows: pa.RecordBatch) -> memoryview:
    """Return the times of the rows as int64. A null becomes the present time."""
    import pyarrow.compute as pc
    times = pc.fill_null(rows['timestamp'], Clock().wall_ms())
    start = times.offset * TIME_BYTES
    return memoryview(times.buffers()[1])[start:start + len(times) * TIME_BYTES].cast('q')
