"""JSON values as Arrow columns: DDL texts, JSON Schemas, and values of Confluent's serializer."""
import json
import time

import pyarrow as pa
import pytest

from kbroker_tools.registry.columns import to_column
from kbroker_tools.registry.ddl import from_ddl, to_ddl
from kbroker_tools.registry.decoding import ValueSchema
from kbroker_tools.registry.errors import RegistryError
from kbroker_tools.registry.json_schema import columns_of
from kbroker_tools.registry.json_values import JsonFormat


@pytest.mark.parametrize(
    ('text', 'written'),
    [
        ('id bigint, name string', 'id bigint, name string'),
        (r"`a b` LONG NOT NULL COMMENT 'it\'s',b:int", '`a b` bigint, b int'),
        ('`na``me` byte', '`na``me` tinyint'),
        ('x decimal, y decimal(5), z numeric(5, 2)', 'x decimal(10,0), y decimal(5,0), z decimal(5,2)'),
        ('x varchar(5), t timestamp, n timestamp_ntz', 'x string, t timestamp, n timestamp_ntz'),
        ('a array<struct<b: map<string, double>, c date>>', 'a array<struct<b: map<string, double>, c: date>>'),
    ],
)
def test_columns_are_written_as_they_are_read(text, written):
    assert to_ddl(from_ddl(text)) == written
    assert to_ddl(from_ddl(written)) == written


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('', 'the name of a column'),
        ('id bigint,', 'the name of a column'),
        ('id', 'a type'),
        ('id bigin', 'a type'),
        ('id bigint name string', 'expected ,'),
        ('id int, id int', 'each name once'),
        ('id array<int', 'expected >'),
        ('m map<int, int>', 'string as the keys of a map'),
        ('d decimal(39)', 'a precision of 1 to 38'),
        ('d decimal(5,6)', 'a precision of 1 to 38'),
        ('id int not', 'expected null'),
        ('id int comment x', "a text in '"),
        ('id int; drop', 'which is not a schema'),
        ('x ' + 'array<' * 10_000, 'at most 50 levels'),
    ],
)
def test_a_text_that_is_not_ddl_is_refused(text, expected):
    with pytest.raises(RegistryError) as raised:
        from_ddl(text)
    assert expected in str(raised.value)


def test_the_work_for_a_schema_grows_like_its_columns():
    """Each token once copied the rest of the text, so 9,000 columns took 3.5 s."""
    def cpu_s(columns):
        text = json.dumps({'properties': {f'a column {number}': {'type': 'string'} for number in range(columns)}})
        began_s = time.process_time()
        JsonFormat.from_registry(text, {}, None)
        return time.process_time() - began_s

    assert min(cpu_s(8000) for _ in range(3)) < 24 * min(cpu_s(1000) for _ in range(3))


@pytest.mark.parametrize(
    ('property', 'kind'),
    [
        ({'type': 'string', 'format': 'date-time'}, 'string'),
        ({'type': 'integer'}, 'bigint'),
        ({'type': 'number'}, 'double'),
        ({'type': ['null', 'boolean']}, 'boolean'),
        ({'type': ['integer', 'string']}, 'string'),
        ({'oneOf': [{'type': 'null'}, {'type': 'integer'}]}, 'bigint'),
        ({'anyOf': [{'type': 'string'}, {'type': 'integer'}]}, 'string'),
        ({'type': 'integer', 'connect.type': 'int32'}, 'int'),
        ({'type': 'string', 'connect.type': 'bytes'}, 'binary'),
        ({'type': 'array', 'items': {'type': 'integer'}}, 'array<bigint>'),
        ({'type': 'array'}, 'string'),
        ({'type': 'object', 'additionalProperties': {'type': 'number'}}, 'map<string, double>'),
        ({'type': 'object'}, 'string'),
        ({'type': 'object', 'properties': {'a': {'type': 'integer'}}, 'additionalProperties': False},
         'struct<a: bigint>'),
        ({'allOf': [{'$ref': '#/definitions/base'}, {'properties': {'c': {'type': 'boolean'}}}]},
         'struct<b: bigint, c: boolean>'),
        ({'$ref': 'other.json'}, 'struct<o: double>'),
        ({'$ref': 'http://example.com/other.json#/$defs/in~1ner'}, 'array<string>'),
        ({'enum': ['a', 'b']}, 'string'),
        (True, 'string'),
        ({}, 'string'),
    ],
)
def test_a_property_of_a_json_schema_has_its_column(property, kind):
    schema = {'type': 'object', 'properties': {'x': property},
              'definitions': {'base': {'type': 'object', 'properties': {'b': {'type': 'integer'}}}}}
    other = {'type': 'object', 'properties': {'o': {'type': 'number'}},
             '$defs': {'in/ner': {'type': 'array', 'items': {'$ref': '#/$defs/text'}}, 'text': {'type': 'string'}}}
    assert to_ddl(columns_of(json.dumps(schema), {'other.json': json.dumps(other)})) == f'x {kind}'


@pytest.mark.parametrize(
    ('schema', 'message'),
    [
        ('{', 'not a JSON Schema'),
        ('[' * 100_000, 'not a JSON Schema'),
        ('true', 'without properties'),
        ('{"type": "integer"}', 'without properties'),
        ('{"type": "object"}', 'without properties'),
        ('{"properties": {"x": {"$ref": "#"}}}', '# contains itself: a column cannot have a recursive type'),
        ('{"properties": {"x": {"$ref": "#/gone"}}}', 'refers to #/gone, which it does not have'),
        ('{"properties": {"x": {"$ref": "gone.json"}}}', 'refers to gone.json, expected a reference'),
        (json.dumps({'properties': {'x': {'$ref': '#/d/0'}}, 'd': [
            {'properties': {'a': {'$ref': f'#/d/{each + 1}'}, 'b': {'$ref': f'#/d/{each + 1}'}}} for each in range(40)]
            + [{}]}), 'more than'),
    ],
)
def test_a_json_schema_that_cannot_be_columns_is_refused(schema, message):
    with pytest.raises(RegistryError) as raised:
        columns_of(schema, {})
    assert message in str(raised.value)


@pytest.mark.parametrize('data', [
    b'[' * 1_000_000, b'{"x": ' * 1_000_000, b'{"x": ' + b'9' * 1_000_000 + b'}', b'{"d": 1e999999999}',
    b'{"d": 1e-999999999}', b'{"s": ' + b'[' * 100_000 + b']' * 100_000 + b'}', b'\x00\x01', b'{"t": "9999-99-99"}'])
def test_a_hostile_value_is_undecodable(data):
    chosen = JsonFormat('x bigint, d decimal(5,2), s string, t timestamp')
    try:
        value = chosen.own_values()(data, 0)
    except Exception:
        return
    assert to_column([value], chosen.type)[1] == [0]


def test_confluent_s_serializer_writes_what_the_decoder_reads(registry):
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext
    schema = {'title': 'Order', 'type': 'object', 'properties': {'id': {'type': 'integer'}, 'who': {'type': 'string'}}}
    serializer = JSONSerializer(json.dumps(schema), SchemaRegistryClient({'url': registry.url}),
                                conf={'subject.name.strategy.type': 'TOPIC'})
    value = serializer({'id': 1, 'who': 'a', 'more': 2}, SerializationContext('t', MessageField.VALUE))
    choice = ValueSchema('json', 'registry:', {'schema.registry.url': registry.url})
    decoder = choice.decoder(['t'])
    assert decoder.shape == ['json', 'id bigint, who string']
    bad = [value[5:], b'\0\0\0\0\1[1]', b'\0\0\0\0\2{"id": 1}']
    column, undecoded = decoder.decode(pa.array([value, *bad]), None)
    assert column.to_pylist() == [{'id': 1, 'who': 'a'}, None, None, None]
    assert undecoded.to_pylist() == [None, *bad]
    schema['properties']['more'] = {'type': 'number'}
    registry.add('t-value', json.dumps(schema), 'JSON')
    evolved = choice.decoder(['t'], decoder.shape, True)
    assert evolved.added == ['more']
    assert evolved.decode(pa.array([value]), None)[0].to_pylist() == [{'id': 1, 'who': 'a', 'more': 2.0}]


def test_a_plain_ddl_text_needs_no_registry():
    decoder = ValueSchema('json', 'id bigint').decoder(['t'])
    column, _ = decoder.decode(pa.array([b'{"id": 3}', None, b'[{"id": 3}]']), None)
    assert column.to_pylist() == [{'id': 3}, None, None]
    with pytest.raises(RegistryError, match=r"--value-schema: found 'id bigint,', which is not a schema"):
        ValueSchema('json', 'id bigint,').decoder(['t'])
