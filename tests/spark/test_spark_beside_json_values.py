"""JSON values that Python decodes for tables, beside Spark's decoding of the same values for files."""
import pyarrow as pa
import pytest

from kbroker_tools.registry.decoding import ValueSchema
from kbroker_tools.spark.values import UNDECODED, ValueFormat

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

COLUMNS = {
    'string': ['"a"', '1', '1.50', 'true', '{"b": [1, null, "x"]}', '[]', '"\\u00e9"', '""'],
    'bigint': ['1', '-5', '9223372036854775807', '9223372036854775808', '1.0', '1e3', '"1"', 'true', '[]'],
    'int': ['2147483647', '2147483648'],
    'smallint': ['32767', '32768'],
    'tinyint': ['127', '128'],
    'double': ['1', '1.5', '1e400', '"1.5"', '"NaN"', '"-Infinity"', 'NaN', 'true'],
    'float': ['1.5', '"INF"'],
    'boolean': ['true', 'false', '"true"', '1'],
    'decimal(5,2)': ['1.5', '1.005', '999.99', '1000', '"1.5"', '"x"', '1e2'],
    'date': ['"2020-02-29"', '"2021-02-29"', '"x"'],
    'timestamp': ['"2020-01-01T00:00:00Z"', '"2020-01-01 01:02:03.123456"', '"2020-01-01T00:00:00+02:00"',
                  '"2020-01-01"', '"x"'],
    'timestamp_ntz': ['"2020-01-01T01:02:03"', '"x"'],
    'binary': ['"AQI="', '"!"', '1'],
    'array<int>': ['[1, null]', '[]', '["x"]', '{"a": 1}', '1'],
    'map<string, int>': ['{"a": 1, "b": null}', '{}', '[1]', '{"a": "x"}'],
    'struct<a: int, b: string>': ['{"a": 1}', '{"a": "x"}', '{}', '{"c": 1}', '"x"'],
}
WHOLE = [b'', b' ', b'{}', b' {"x": 1}', b'null', b'1', b'"x"', b'[]', b'[{"x": 1}]', b'{"x": 1} tail',
         b'{"x": 1}{"x": 2}', b'{"x": 1', b'{"x": 1,}', b'{"x": 1, "x": 2}', b'{"y": 1}', b'{"x": null}', b'{"X": 1}',
         b'\xff{"x": 1}',         b'{"y": "\xff", "x": 1}', b'{"x": 01}', b'{x: 1}', b'\0\0\0\0\1{"x": 1}', None]


BETTER = {b'{"c0": 1.50}': ({'c0': '1.50'}, None), b'{"c4": 128}': (None, b'{"c4": 128}'),
          b'{"y": "\xff", "c1": 1}': (None, b'{"y": "\xff", "c1": 1}')}
"""The values for which Spark returns other digits, another number, or a part of a value that is not UTF-8."""


def test_python_decodes_what_spark_decodes(spark):
    schema = ', '.join(f'c{number} {kind}' for number, kind in enumerate(COLUMNS))
    values = [f'{{"c{number}": {text}}}'.encode() for number, texts in enumerate(COLUMNS.values()) for text in texts]
    values += [each and each.replace(b'x', b'c1') for each in WHOLE]
    frame = spark.createDataFrame([(number, each) for number, each in enumerate(values)], 'number int, value binary')
    judged = ValueFormat('json', schema).decode(frame).orderBy('number').toArrow()
    column, undecoded = ValueSchema('json', schema).decoder(['t']).decode(pa.array(values, pa.binary()), None)
    rows = zip(values, column.to_pylist(), undecoded.to_pylist(), judged.column('value').to_pylist(),
               judged.column(UNDECODED).to_pylist(), strict=True)
    different = {value: (found and {name: each for name, each in found.items() if each is not None}, bad)
                 for value, found, bad, expected, expected_bad in rows
                 if repr((found, bad)) != repr((expected, expected_bad))}
    assert different == BETTER
