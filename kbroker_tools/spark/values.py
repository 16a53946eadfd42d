"""Values as what they say: JSON, Avro or Protobuf into a typed column.

What a schema does not fit is not lost: such a record has null in `value`, and its bytes in `value_undecoded`, which is
null everywhere else.
"""
from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker_tools.spark.ledger import IngestError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

UNDECODED = 'value_undecoded'
_CORRUPT = '__corrupt_record__'


@dataclass(frozen=True)
class ValueFormat:
    """`schema`: for JSON a struct as DDL; for Avro its JSON; for Protobuf `descriptor-file:package.Message`."""

    kind: str
    schema: str

    def decode(self, frame: DataFrame) -> DataFrame:
        """`value` decoded, and `value_undecoded` behind the other columns. IngestError for a schema that is none."""
        from pyspark.sql import functions as f
        value = f.col('value')
        with _needed_package():
            decoded, is_good = _DECODERS[self.kind](self.schema, value)
            return frame.withColumns({'value': f.when(is_good, decoded),
                                      UNDECODED: f.when(value.isNotNull() & ~is_good, value)})


def _json(schema: str, value: Column) -> tuple[Column, Column]:
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
    return parsed.dropFields(_CORRUPT), f.coalesce(is_good, f.lit(False))


def _avro(schema: str, value: Column) -> tuple[Column, Column]:
    from pyspark.sql.avro.functions import from_avro
    decoded = from_avro(value, schema, {'mode': 'PERMISSIVE'})
    return decoded, decoded.isNotNull()


def _protobuf(schema: str, value: Column) -> tuple[Column, Column]:
    from pyspark.sql.protobuf.functions import from_protobuf
    path, separator, message = schema.rpartition(':')
    if not separator:
        raise IngestError(f'--value-schema: found {schema!r}, expected DESCRIPTOR-FILE:package.Message')
    descriptor = Path(path).read_bytes()
    decoded = from_protobuf(value, message, options={'mode': 'PERMISSIVE'}, binaryDescriptorSet=descriptor)
    return decoded, decoded.isNotNull()


@contextlib.contextmanager
def _needed_package() -> Iterator[None]:
    """IngestError where one of Spark's packages is not there; some versions of PySpark print a page about it."""
    import pyspark
    from pyspark.errors import AnalysisException
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except (AnalysisException, TypeError) as error:
        match = re.search(r'spark-(?:avro|protobuf)', str(error))
        if match is None:
            raise
        raise IngestError(f'these values need a package of Spark that is not there: --conf spark.jars.packages='
                          f'org.apache.spark:{match[0]}_2.13:{pyspark.__version__}') from None


_DECODERS: dict[str, Callable[[str, Any], tuple[Any, Any]]] = {'json': _json, 'avro': _avro, 'protobuf': _protobuf}
KINDS = tuple(_DECODERS)
