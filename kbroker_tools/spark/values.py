"""The decoding of values in JSON, Avro or Protobuf to a typed column.

A value that does not match the schema is not lost. Its row has null in the column `value`, and the bytes in the column
`value_undecoded`. For all other values, `value_undecoded` is null.

Spark's own functions are not enough. In permissive mode, they return a row of nulls for an unreadable value, but a
valid value may be a row of nulls too. The function for Avro also ignores bytes after the end of the value.
"""
from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker_tools.spark.failures import one_line
from kbroker_tools.spark.ledger import IngestError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

UNDECODED = 'value_undecoded'
_CORRUPT = '__corrupt_record__'
_END = b'\xa5kbroker'
"""The mark that is appended to an Avro value. A reader that has read exactly the whole value finds the mark next."""


@dataclass(frozen=True)
class ValueFormat:
    """The format of values. `schema` is DDL text of a struct (JSON), JSON text (Avro) or
    `descriptor-file:package.Message` (Protobuf)."""

    kind: str
    schema: str

    def decode(self, frame: DataFrame) -> DataFrame:
        """Decode the column `value`, and append the column `value_undecoded`. Raise IngestError if the schema is
        invalid."""
        from pyspark.sql import functions as f
        value = f.col('value')
        with _explained(self.kind):
            decoded, is_good = _DECODERS[self.kind](self.schema, value, frame)
            is_good = f.coalesce(is_good, f.lit(False))
            return frame.withColumns({'value': f.when(is_good, decoded),
                                      UNDECODED: f.when(value.isNotNull() & ~is_good, value)})


def _json(schema: str, value: Column, frame: DataFrame) -> tuple[Column, Column]:
    """Return the columns `value` and `value_undecoded` for JSON. An array counts as undecoded. Spark would accept an
    array that begins with a matching struct."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType
    try:
        struct = StructType.fromDDL(schema)
    except PySparkException as error:
        raise IngestError(f'--value-schema: found {schema!r}, which is not a schema: {str(error).splitlines()[0]}'
                          ) from None
    if not isinstance(struct, StructType):
        raise IngestError(f'--value-schema: found {struct.simpleString()}, expected columns: "id bigint, name string"')
    text = value.cast('string')
    parsed = f.from_json(text, struct.add(_CORRUPT, StringType()), {
        'mode': 'PERMISSIVE', 'columnNameOfCorruptRecord': _CORRUPT})
    is_good = parsed.isNotNull() & parsed[_CORRUPT].isNull() & f.ltrim(text).startswith('{')
    return parsed.dropFields(_CORRUPT), is_good


def _avro(schema: str, value: Column, frame: DataFrame) -> tuple[Column, Column]:
    """Return the columns `value` and `value_undecoded` for Avro.

    The value is read as a field of a record, between the boolean true and an end mark. This distinguishes three cases:
    a value whose fields are all null, a value that ends early, and a value with additional bytes, such as the prefix of
    a schema registry.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro
    try:
        given = json.loads(schema)
    except ValueError as error:
        raise IngestError(f'--value-schema: found {schema!r}, which is not JSON, expected an Avro schema: {error}'
                          ) from None
    # The record has no namespace, because the inner schema would inherit it.
    framed = {'type': 'record', 'name': 'KbrokerFramed', 'fields': [
        {'name': 'is_whole', 'type': 'boolean'}, {'name': 'value', 'type': given},
        {'name': 'end', 'type': {'type': 'fixed', 'name': 'KbrokerEnd', 'size': len(_END)}}]}
    bytes_of_frame = f.concat(f.lit(b'\x01'), value, f.lit(_END))
    read = from_avro(bytes_of_frame, json.dumps(framed), {'mode': 'PERMISSIVE'})
    return read['value'], read['is_whole'] & (read['end'] == f.lit(_END))


def _protobuf(schema: str, value: Column, frame: DataFrame) -> tuple[Column, Column]:
    """Return the columns `value` and `value_undecoded` for Protobuf.

    A value without a known field counts as undecoded, because it may be a message of another type. For a damaged value,
    Spark 4 returns null, and earlier releases return a row of nulls. Spark reads unsigned numbers as signed by default,
    which would make large numbers negative.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.protobuf.functions import from_protobuf
    path, separator, message = schema.rpartition(':')
    if not separator:
        raise IngestError(f'--value-schema: found {schema!r}, expected DESCRIPTOR-FILE:package.Message')
    decoded = from_protobuf(value, message, options={'mode': 'PERMISSIVE', 'upcast.unsigned.ints': 'true'},
                            binaryDescriptorSet=Path(path).read_bytes())
    return decoded, (f.length(value) == 0) | has_a_field(frame, decoded)


def has_a_field(frame: DataFrame, struct: Column) -> Column:
    """Return a column that is true if any field of the struct is set. Spark never sets a list or map to null, so a list
    or map counts as set if it is not empty."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType
    fields = frame.select(struct.alias('struct')).schema['struct'].dataType.fields  # type: ignore[attr-defined]
    found = f.lit(False)
    for each in fields:
        field = struct.getField(each.name)
        is_many = isinstance(each.dataType, (ArrayType, MapType))
        found = found | (f.coalesce(f.size(field), f.lit(0)) > 0 if is_many else field.isNotNull())
    return found


def needed_package(kind: str, who: str) -> IngestError:
    """Return the error that is raised if Spark lacks its package for Avro or Protobuf."""
    import pyspark
    return IngestError(f'{who} a Spark package that is missing: give --conf spark.jars.packages='
                       f'org.apache.spark:spark-{kind}_2.13:{pyspark.__version__} (or an older release of the same '
                       'major version if this one is not available)')


@contextlib.contextmanager
def _explained(kind: str) -> Iterator[None]:
    """Turn Spark's errors about a missing package or a wrong schema into IngestError. Spark's messages may be a page
    long."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except (PySparkException, Py4JJavaError, TypeError) as error:
        text = str(error)
        package = f'spark-{kind}'
        if package in text or "'JavaPackage' object is not callable" in text:
            raise needed_package(kind, 'these values need') from None
        if isinstance(error, TypeError):
            raise
        raise IngestError(f'--value-schema: found a schema by which Spark cannot read {kind} values: '
                          f'{one_line(error)}') from None


_DECODERS: dict[str, Callable[[str, Any, Any], tuple[Any, Any]]] = {
    'json': _json, 'avro': _avro, 'protobuf': _protobuf}
