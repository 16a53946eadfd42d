"""The rows of the sink. They come from a DataFrame. They are checked, staged as Arrow streams if necessary, and sent.

The sink has the columns of Spark's Kafka sink and the column `timestamp`. It can write a DataFrame that comes unchanged
from the reader.
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
"""Maps each column to its allowed types. `value` is required. `topic` is required unless the option `topic` is set."""
OVERHEAD_BYTES = record_bytes(None, None, [])
WITHOUT_PARTITION = -1
TIME_BYTES = 8


def check_schema(schema: StructType, topic: str | None) -> None:
    """Raise OptionError if neither the option nor a column names the topic. Raise ColumnError if the column `value` is
    missing, or if the sink does not accept a column."""
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
    """The checks of the rows of one task attempt. Rows are checked before they are staged or sent."""

    def __init__(self, topic: str | None, largest_record_bytes: int):
        """`topic` replaces the column `topic`, unless it is None. A row has at most `largest_record_bytes` bytes."""
        self.rows = 0
        self.highest_partitions: dict[str, int] = {}
        self._topic = topic
        self._largest_bytes = largest_record_bytes - HEADER_BYTES

    def checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows in the form that `send_rows` accepts. If a row is invalid, raise SinkError. The message names
        the first invalid row."""
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
        """Store the highest partition number that the rows name, for each topic."""
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
        """Stage rows that `RowChecks.checked` has returned."""
        import pyarrow as pa
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression='lz4')) as stream:
            stream.write_batch(batch)
        chunk = sink.getvalue().to_pybytes()
        self.size_bytes += len(chunk)
        self.chunks.append(chunk)


def _narrowed(batch: pa.RecordBatch, drop_topic: bool) -> pa.RecordBatch:
    """Return the columns in the form in which the sink stages them: texts as UTF-8 bytes, and times in milliseconds."""
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
    """Raise SinkError if a time cannot be the time of a record. The microseconds are checked, because the conversion
    rounds times just before 1970 to 1970."""
    import pyarrow as pa
    import pyarrow.compute as pc
    earliest_us = pc.min(times.cast(pa.int64())).as_py()
    if earliest_us is not None and earliest_us < 0:
        raise SinkError(f'found a row with the timestamp {earliest_us // 1000} ms, expected none before 1970')


def _header_bytes(column: pa.Array) -> pa.Array:
    """Return the number of bytes of the headers of each row. Raise SinkError if a header has no key."""
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
    """Yield the batches of rows in staged chunks."""
    import pyarrow as pa
    for chunk in chunks:
        with pa.ipc.open_stream(chunk) as stream:
            yield from stream


def send_rows(producer: Producer, batch: pa.RecordBatch, topic: str | None) -> None:
    """Queue rows that were checked. `topic` must be the topic that the checks had. Rows of the same partition keep
    their order. Raise the errors of `Producer.send`."""
    for name, partition, rows in _groups(batch, topic):
        names = rows.schema.names
        producer.send_batch(name, rows['value'], rows['key'] if 'key' in names else None,
                            [_headers(each) for each in rows['headers'].to_pylist()] if 'headers' in names else None,
                            partition=partition, timestamps=_times_ms(rows) if 'timestamp' in names else None)


def _groups(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[Any, int | None, pa.RecordBatch]]:
    """Yield (topic, partition, rows) for each topic and partition in the columns. Without these columns, yield all rows
    as one group."""
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
    """Return the times of the rows as int64 milliseconds. A null becomes the present time."""
    import pyarrow.compute as pc
    times = pc.fill_null(rows['timestamp'], Clock().wall_ms())
    start = times.offset * TIME_BYTES
    return memoryview(times.buffers()[1])[start:start + len(times) * TIME_BYTES].cast('q')
