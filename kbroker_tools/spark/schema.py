"""The columns of `format("kbroker")`: the columns of Spark's Kafka source, and columns about transactions."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbroker_tools.spark.messages import ColumnError
from kbroker_tools.spark.times import spark_times

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kbroker_tools.spark.options import Options

HEADERS = 'array<struct<key:string,value:binary>>'


@dataclass(frozen=True)
class Field:
    name: str
    spark_type: str
    decoded: str | None
    """The column of `kbroker.record.columns` from which this column is made. None if all rows of a partition have the
    same value."""
    group: str = ''
    """The option that adds this column. '' if every query has the column."""


FIELDS = (
    Field('key', 'binary', 'key'),
    Field('value', 'binary', 'value'),
    Field('topic', 'string', None),
    Field('partition', 'int', None),
    Field('offset', 'bigint', 'offset'),
    Field('timestamp', 'timestamp', 'timestamp'),
    Field('timestampType', 'int', 'timestamp_type'),
    Field('headers', HEADERS, 'headers', 'includeHeaders'),
    Field('timestampMillis', 'bigint', 'timestamp', 'includeTimestampMillis'),
    Field('valueBytes', 'int', 'value', 'includeValueBytes'),
    Field('producer_id', 'bigint', 'producer_id', 'includeTransactions'),
    Field('producer_epoch', 'int', 'producer_epoch', 'includeTransactions'),
    Field('sequence', 'int', 'sequence', 'includeTransactions'),
    Field('is_transactional', 'boolean', 'is_transactional', 'includeTransactions'),
    Field('outcome', 'string', 'outcome', 'includeTransactions'),
    Field('leader_epoch', 'int', 'leader_epoch', 'includeTransactions'),
    Field('compression', 'string', 'compression', 'includeTransactions'),
    Field('batch_base_offset', 'bigint', 'batch_base_offset', 'includeTransactions'),
)
BY_NAME = {field.name: field for field in FIELDS}

OUTCOMES = (None, 'committed', 'aborted', 'open')
COMPRESSIONS = ('none', 'gzip', 'snappy', 'lz4', 'zstd', 'unknown', 'unknown', 'unknown')


def columns_of(options: Options) -> list[Field]:
    """Return the columns of a query without decoded values."""
    return [field for field in FIELDS if not field.group or options[field.group]]


def ddl(options: Options) -> str:
    """Return the schema of a query as DDL text for Spark."""
    return ', '.join(f'`{field.name}` {field.spark_type}' for field in columns_of(options))


def check_columns(schema: StructType, known: Mapping[str, str]) -> None:
    """Raise ColumnError if a column is unknown or has a wrong type."""
    for column in schema.fields:
        expected = known.get(column.name)
        if expected is None:
            raise ColumnError(f'found column {column.name!r} in the schema, expected some of {", ".join(known)}')
        found = column.dataType.simpleString()
        if found != expected:
            raise ColumnError(f'found column {column.name} of type {found} in the schema, expected {expected}')


class Assembler:
    """A builder of Arrow batches from the decoded columns of one partition. A column with the same value in all rows is
    built once and sliced."""

    def __init__(self, fields: list[Field], topic: str, partition: int, timestamp_overflow: str = 'error'):
        import pyarrow as pa
        self._pa = pa
        self._fields = fields
        self._name = f'{topic}-{partition}'
        self._timestamp_overflow = timestamp_overflow
        self._constants: dict[str, Any] = {'topic': pa.scalar(topic), 'partition': pa.scalar(partition, pa.int32())}
        self._repeated: dict[str, Any] = {}
        self.columns = [field.decoded for field in fields if field.decoded is not None]
        self.schema = pa.schema([pa.field(field.name, arrow_type(field.spark_type, pa)) for field in fields])

    def batch(self, rows: int, columns: dict[str, Any]) -> pa.RecordBatch:
        """Return an Arrow batch with `rows` rows from the columns of a ColumnDecoder."""
        arrays = [self._array(field, rows, columns) for field in self._fields]
        if not arrays:  # a count of rows needs no column
            return self._pa.RecordBatch.from_struct_array(self._pa.array([{}] * rows, self._pa.struct([])))
        return self._pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, field: Field, rows: int, columns: dict[str, Any]) -> pa.Array:
        if field.decoded is None:
            return self._repeat(field.name, rows)
        found = _MAKERS[field.name](self._pa, rows, columns[field.decoded])
        if field.name == 'timestamp':
            offsets = _MAKERS['offset'](self._pa, rows, columns['offset']) if 'offset' in columns else None
            return spark_times(found, self._timestamp_overflow, self._name, offsets)
        return found

    def _repeat(self, name: str, rows: int) -> pa.Array:
        found = self._repeated.get(name)
        if found is None or len(found) < rows:
            found = self._repeated[name] = self._pa.repeat(self._constants[name], rows)
        return found.slice(0, rows)


def arrow_type(text: str, pa: Any) -> Any:
    """Return the Arrow type for a Spark type in text form. The type may be an array of structs."""
    if text.startswith('array<struct<'):
        members = text.removeprefix('array<struct<').removesuffix('>>').split(',')
        pairs = [member.split(':') for member in members]
        return pa.list_(pa.field('element', pa.struct([(name, arrow_type(kind, pa)) for name, kind in pairs])))
    return {'binary': pa.binary(), 'string': pa.string(), 'int': pa.int32(), 'bigint': pa.int64(),
            'boolean': pa.bool_(), 'timestamp': pa.timestamp('us', tz='UTC')}[text]


def _blobs(pa: Any, column: Any, kind: Any) -> Any:
    count, nulls, validity, ends, data = column
    return pa.Array.from_buffers(kind, count, [validity and pa.py_buffer(validity), pa.py_buffer(ends),
                                               pa.py_buffer(data)], null_count=nulls)


def _lengths(blobs: Any) -> Any:
    import pyarrow.compute as pc
    return pc.binary_length(blobs)


def _integers(kind: str) -> Callable[[Any, int, Any], Any]:
    def make(pa: Any, rows: int, buffer: Any) -> Any:
        arrow = {'int32': pa.int32(), 'int64': pa.int64()}[kind]
        return pa.Array.from_buffers(arrow, rows, [None, pa.py_buffer(buffer)], null_count=0)
    return make


def _words(words: tuple[str | None, ...]) -> Callable[[Any, int, Any], Any]:
    def make(pa: Any, rows: int, buffer: Any) -> Any:
        return pa.array(words, pa.string()).take(_integers('int32')(pa, rows, buffer))
    return make


def _texts(pa: Any, column: Any) -> Any:
    """Return names as strings. Bytes that are not UTF-8 become U+FFFD, as in Spark's Kafka source."""
    found = _blobs(pa, column, pa.string())
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([name.decode('utf-8', 'replace') for name in found.cast(pa.binary()).to_pylist()], pa.string())
    return found


def _headers(pa: Any, rows: int, column: Any) -> Any:
    validity, ends, keys, values = column
    struct = pa.StructArray.from_arrays(
        [_texts(pa, keys), _blobs(pa, values, pa.binary())],
        fields=[pa.field('key', pa.string()), pa.field('value', pa.binary())])
    kind = pa.list_(pa.field('element', struct.type))
    return pa.Array.from_buffers(kind, rows, [pa.py_buffer(validity), pa.py_buffer(ends)], children=[struct])


_MAKERS: dict[str, Callable[[Any, int, Any], Any]] = {
    'key': lambda pa, rows, column: _blobs(pa, column, pa.binary()),
    'value': lambda pa, rows, column: _blobs(pa, column, pa.binary()),
    'offset': _integers('int64'),
    'timestamp': _integers('int64'),
    'timestampMillis': _integers('int64'),
    'timestampType': _integers('int32'),
    'valueBytes': lambda pa, rows, column: _lengths(_blobs(pa, column, pa.binary())),
    'headers': _headers,
    'producer_id': _integers('int64'),
    'producer_epoch': _integers('int32'),
    'sequence': _integers('int32'),
    'is_transactional': lambda pa, rows, column: _integers('int32')(pa, rows, column).cast(pa.bool_()),
    'outcome': _words(OUTCOMES),
    'leader_epoch': _integers('int32'),
    'compression': _words(COMPRESSIONS),
    'batch_base_offset': _integers('int64'),
}
