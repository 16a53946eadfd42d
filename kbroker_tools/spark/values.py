"""Values as what they say: JSON, Avro or Protobuf into a typed column.

What a schema does not fit is not lost: such a record has null in `value`, and its bytes in `value_undecoded`, which is
null everywhere else. Spark's functions alone would not do: asked to pass over what they cannot read, they make a row of
nulls of it, which a value may well be, and Avro's leaves bytes behind the end unread.
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
"""Put behind an Avro value: what reads exactly the value comes upon it."""


@dataclass(frozen=True)
class ValueFormat:
    """`schema`: for JSON a struct as DDL; for Avro its JSON; for Protobuf `descriptor-file:package.Message`."""

    kind: str
    schema: str

    def decode(self, frame: DataFrame) -> DataFrame:
        """`value` decoded, and `value_undecoded` behind the other columns. IngestError for a schema that is none."""
        from pyspark.sql import functions as f
        value = f.col('value')
        with _explained(self.kind):
            decoded, is_good = _DECODERS[self.kind](self.schema, value, frame)
            is_good = f.coalesce(is_good, f.lit(False))
            return frame.withColumns({'value': f.when(is_good, decoded),
                                      UNDECODED: f.when(value.isNotNull() & ~is_good, value)})


def _json(schema: str, value: Column, frame: DataFrame) -> tuple[Column, Column]:
    """An array is not taken for the struct that it begins with, which is what Spark would do."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType
    try:
        struct = StructType.fromDDL(schema)
    except PySparkException as error:
        raise IngestError(f'--value-schema: found {schema!r}, which is no schema: {str(error).splitlines()[0]}'
                          ) from None
    if not isinstance(struct, StructType):
        raise IngestError(f'--value-schema: found {struct.simpleString()}, expected columns: "id bigint, name string"')
    text = value.cast('string')
    parsed = f.from_json(text, struct.add(_CORRUPT, StringType()), {
        'mode': 'PERMISSIVE', 'columnNameOfCorruptRecord': _CORRUPT})
    is_good = parsed.isNotNull() & parsed[_CORRUPT].isNull() & f.ltrim(text).startswith('{')
    return parsed.dropFields(_CORRUPT), is_good


def _avro(schema: str, value: Column, frame: DataFrame) -> tuple[Column, Column]:
    """The value is read as a field of a record, between a boolean that is true and bytes that mark the end.

    So one that ends early, or goes on behind the datum (as one with a schema registry's prefix does), is told apart
    from one whose fields are all null.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro
    try:
        given = json.loads(schema)
    except ValueError as error:
        raise IngestError(f'--value-schema: found {schema!r}, which is no JSON, expected a schema of Avro: {error}'
                          ) from None
    # Without a namespace: a schema inside would inherit it.
    framed = {'type': 'record', 'name': 'KbrokerFramed', 'fields': [
        {'name': 'is_whole', 'type': 'boolean'}, {'name': 'value', 'type': given},
        {'name': 'end', 'type': {'type': 'fixed', 'name': 'KbrokerEnd', 'size': len(_END)}}]}
    bytes_of_frame = f.concat(f.lit(b'\x01'), value, f.lit(_END))
    read = from_avro(bytes_of_frame, json.dumps(framed), {'mode': 'PERMISSIVE'})
    return read['value'], read['is_whole'] & (read['end'] == f.lit(_END))


def _protobuf(schema: str, value: Column, frame: DataFrame) -> tuple[Column, Column]:
    """Bytes of which no field comes are kept too: a message of another type may have none that is known.

    What is damaged is null in Spark 4, and was a row of nulls before. Spark takes unsigned numbers for signed ones, if
    not told otherwise: those above the middle of their range come out below zero.
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
    """Whether some field of a struct is not null or, as a list or a map, which Spark never leaves null, not empty."""
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
    """What to say where Spark's package for Avro or Protobuf is not there."""
    import pyspark
    return IngestError(f'{who} a package of Spark that is not there: --conf spark.jars.packages='
                       f'org.apache.spark:spark-{kind}_2.13:{pyspark.__version__} (where that is not to be had, an '
                       'older one of the same major version may do)')


@contextlib.contextmanager
def _explained(kind: str) -> Iterator[None]:
    """IngestError where one of Spark's packages is not there, which some versions of PySpark print a page about, and
    for what Spark says of the schema."""
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
        raise IngestError(f'--value-schema: found a schema that Spark cannot read values of {kind} by: '
                          f'{one_line(error)}') from None


_DECODERS: dict[str, Callable[[str, Any, Any], tuple[Any, Any]]] = {
    'json': _json, 'avro': _avro, 'protobuf': _protobuf}
