"""The column `value` as a struct. The options of a query name its format, and tasks decode it without Spark."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbroker_tools.spark.messages import message_first
from kbroker_tools.spark.options import REGISTRY_PREFIX, Options
from kbroker_tools.spark.planning import chosen_partitions
from kbroker_tools.spark.schema import BY_NAME, FIELDS, Field, arrow_type, check_columns, columns_of, ddl
from kbroker_tools.spark.tasks import open_place, read_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kbroker_tools.registry.decoding import ValueDecoder, ValueSchema

VALUE = 'value'
HEADERS = 'headers'
UNDECODED = 'value_undecoded'
VALUE_BYTES = 'valueBytes'


def decoder_of(options: Options) -> ValueDecoder | None:
    """Return the decoder of the values. Return None if they stay binary.

    The newest schema of the registry becomes the type of the column, unless the option `valueReaderSchema` names
    another one. Raise RegistryError, RegistryUnavailable, and what a place raises.
    """
    kind, fixed = options['valueFormat'], options['valueReaderSchema']
    if kind is None:
        return None
    from kbroker_tools.registry.decoding import ValueSchema
    recorded = None if fixed is None else [kind, fixed]
    return ValueSchema(kind, options['valueSchema'], options.registry).decoder(_topics(options), recorded)


def decoding_options(values: ValueSchema, reader_schema: str) -> dict[str, str]:
    """Return the options with which the data source decodes values by this reader's schema. They also add the column
    with the bytes of each value."""
    settings = {name if name.startswith(REGISTRY_PREFIX) else f'{REGISTRY_PREFIX}{name}': text
                for name, text in values.registry.items()}
    return {'valueFormat': values.kind, 'valueSchema': values.schema, 'valueReaderSchema': reader_schema,
            'includeValueBytes': 'true', **settings}


def _topics(options: Options) -> list[str]:
    if options.is_given('assign'):
        return sorted(options['assign'])
    if options.is_given('subscribe'):
        return list(options['subscribe'])
    return sorted({topic for topic, _ in chosen_partitions(open_place(options), options)})


def query_schema(options: Options, decoder: ValueDecoder | None) -> StructType | str:
    """Return the columns of a query. They are DDL text if values stay binary."""
    if decoder is None:
        return ddl(options)
    import pyarrow as pa
    from pyspark.sql.types import StructField, StructType
    types = {each.name: arrow_type(each.spark_type, pa) for each in columns_of(options)}
    types |= {VALUE: decoder.type, UNDECODED: pa.binary()}
    return StructType([StructField(name, _spark_type(each)) for name, each in types.items()])


def _spark_type(arrow: pa.DataType) -> Any:
    from pyspark.sql.pandas.types import from_arrow_type
    return from_arrow_type(arrow, prefer_timestamp_ntz=True)


@dataclass(frozen=True)
class Columns:
    """The columns that a query reads, and how tasks make them. It can be pickled."""

    names: list[str]
    fields: list[Field]
    """The columns that tasks read from the log."""
    decoder: ValueDecoder | None
    """None if the query has no decoded column."""

    @classmethod
    def of(cls, schema: StructType, decoder: ValueDecoder | None) -> Columns:
        """Return the columns of a schema. The user may have removed columns from it. Raise ColumnError if a column is
        unknown or has a wrong type."""
        known = {field.name: field.spark_type for field in FIELDS}
        if decoder is not None:
            known |= {VALUE: _spark_type(decoder.type).simpleString(), UNDECODED: 'binary'}
        check_columns(schema, known)
        names = [column.name for column in schema.fields]
        if decoder is None or not {VALUE, UNDECODED} & set(names):
            return cls(names, [BY_NAME[name] for name in names], None)
        needed = dict.fromkeys([*(name for name in names if name != UNDECODED), VALUE,
                                *([HEADERS] if decoder.needs_headers else [])])
        return cls(names, [BY_NAME[name] for name in needed], decoder)

    def read(self, task: Any, name: str, options: Options) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Raise what `read_task` raises, and RegistryUnavailable."""
        batches = read_task(task, name, self.fields, options)
        if self.decoder is None:
            yield from batches
            return
        for batch in batches:
            with message_first():
                yield self._decoded(batch, self.decoder)

    def _decoded(self, batch: pa.RecordBatch, decoder: ValueDecoder) -> pa.RecordBatch:
        import pyarrow as pa
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns[VALUE], columns[UNDECODED] = decoder.decode(columns[VALUE], columns.get(HEADERS))
        return pa.RecordBatch.from_arrays([columns[name] for name in self.names], self.names)
