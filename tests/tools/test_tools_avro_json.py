"""Avro values as JSON, in both directions."""
import json

import pytest

from kbroker_tools.console.avro_json import AvroJson
from kbroker_tools.registry.errors import RegistryError

ITEM = {'type': 'record', 'name': 'Item', 'fields': [
    {'name': 'id', 'type': 'long'}, {'name': 'leaf', 'type': ['null', 'bytes'], 'default': None}]}
TREE = {'type': 'record', 'name': 'Tree', 'namespace': 'n', 'fields': [
    {'name': 'id', 'type': 'long'},
    {'name': 'left', 'type': ['null', ITEM, {'type': 'enum', 'name': 'Leaf', 'symbols': ['X', 'Y']}, 'string', 'int',
                              'double', {'type': 'array', 'items': 'int'}, {'type': 'map', 'values': 'bytes'}],
     'default': None},
    {'name': 'size', 'type': 'double', 'default': 0},
    {'name': 'mark', 'type': {'type': 'fixed', 'name': 'F', 'size': 2}, 'default': '\x00\xff'}]}
CODEC = AvroJson(json.dumps(TREE))


@pytest.mark.parametrize('left', [
    None, {'n.Item': {'id': 2, 'leaf': {'bytes': 'ab'}}}, {'n.Leaf': 'Y'}, {'string': 'X'}, {'double': 'NaN'},
    {'int': 7}, {'double': 0.5}, {'double': '-Infinity'}, {'array': [1, 2]}, {'map': {'k': '\x80'}}])
def test_each_type_of_a_union_comes_back(left):
    value = {'id': 1, 'left': left, 'size': 1.5, 'mark': '\x01\x02'}
    data = CODEC.write(json.dumps(value).encode())
    assert CODEC.read(data) == value
    assert CODEC.write(json.dumps(CODEC.read(data)).encode()) == data


@pytest.mark.parametrize(('left', 'meant'), [('X', {'n.Leaf': 'X'}), ('other', {'string': 'other'}), (7, {'int': 7}), (
    1 << 40, {'double': float(1 << 40)}), ([1], {'array': [1]}), ({'id': 2}, {'n.Item': {'id': 2, 'leaf': None}})])
def test_the_type_of_a_union_and_fields_with_a_default_may_be_left_out(left, meant):
    assert CODEC.read(CODEC.write(json.dumps({'id': 1, 'left': left}).encode()))['left'] == meant


@pytest.mark.parametrize(('text', 'problem'), [
    ('{}', 'id: missing, and the schema has no default'),
    ('{"id":true}', 'id: found true, expected long of 64 bits'),
    ('{"id":9223372036854775808}', 'id: found 9223372036854775808, expected long of 64 bits'),
    ('{"id":1,"x":2}', 'x: found a field that the schema does not have, expected id, left, size, mark'),
    ('{"id":1,"mark":"a"}', 'mark: found 1 bytes, expected 2'),
    ('{"id":1,"left":{"n.Item":{"id":1,"leaf":7}}}',
     'left.n.Item.leaf: found 7, expected one of null, bytes'),
    ('{"id":1,"left":{"array":[1,"2"]}}', 'left.array[1]: found "2", expected int of 32 bits'),
    ('{"id":1,"left":{"map":{"k":"\u20ac"}}}', 'left.map.k: found "\u20ac", expected bytes as characters up to U+00FF'),
    ('{"id":1,"left":false}',
     'left: found false, expected one of null, n.Item, n.Leaf, string, int, double, array, map'),
    ('[]', 'the value: found [], expected record n.Tree'),
    ('[' * 100_000, 'the value is nested too deeply'),
    ('1 2', 'Extra data: line 1 column 3 (char 2)'),
])
def test_a_text_that_does_not_fit_the_schema_names_the_field(text, problem):
    with pytest.raises(ValueError) as raised:
        CODEC.write(text.encode())
    assert str(raised.value) == problem


@pytest.mark.parametrize('data', [b'', b'\x02', b'\x02\x00' + bytes(9), b'\x02\x00' + bytes(11),
                                  b'\x02\x7f' + bytes(20), b'\x02\x06\x06\xff\xff\xff' + bytes(10)])
def test_bytes_that_are_not_exactly_one_value_are_refused(data):
    with pytest.raises(ValueError):
        CODEC.read(data)


def test_a_schema_that_names_a_type_too_often_is_not_read():
    schemas = {f'r{number}': json.dumps({'type': 'record', 'name': f'r{number}', 'fields': [
        {'name': name, 'type': f'r{number - 1}' if number else 'null'} for name in 'ab']}) for number in range(40)}
    with pytest.raises(ValueError, match='the schema has more than 10000 types'):
        AvroJson('"r39"', schemas).read(b'')


@pytest.mark.parametrize(('schema', 'problem'), [
    ('{"type":"record","name":"T","fields":[{"name":"l","type":["null",{"type":"array","items":"T"}]}]}',
     'T contains itself'),
    ('{"type":"map","values":{"type":"array","items":"null"}}', 'an array has items without bytes'),
    ('{"type":"array","items":{"type":"record","name":"R","fields":[]}}', 'an array has items without bytes'),
])
def test_values_that_a_few_bytes_make_deep_or_large_are_not_read(schema, problem):
    with pytest.raises(ValueError, match=problem):
        AvroJson(schema).read(b'\x02' * 100_000)


def test_logical_types_are_the_numbers_and_bytes_of_the_value():
    codec = AvroJson('{"type":"record","name":"R","fields":[{"name":"at","type":{"type":"long","logicalType":'
                     '"timestamp-millis"}},{"name":"cents","type":{"type":"bytes","logicalType":"decimal",'
                     '"precision":4,"scale":2}}]}')
    text = {'at': 9 * 10**18, 'cents': '\x01'}
    assert codec.read(codec.write(json.dumps(text).encode())) == text


def test_a_schema_may_use_others():
    codec = AvroJson('{"type":"array","items":"n.Tree"}', {'n.Tree': json.dumps(TREE)})
    assert codec.read(codec.write(b'[{"id":1}]'))[0]['id'] == 1


@pytest.mark.parametrize('text', ['', '{"type":"nope"}', '{"type":"record"}', '7', '{"type":"array"}'])
def test_a_text_that_is_no_schema_is_refused(text):
    with pytest.raises(RegistryError, match='which is not an Avro schema'):
        AvroJson(text)


@pytest.mark.parametrize(('schema', 'text'), [('"float"', b'1e300'), ('"double"', b'1' + b'0' * 400)])
def test_a_number_too_large_for_its_type_is_refused(schema, text):
    with pytest.raises(ValueError, match='found a number too large for its type'):
        AvroJson(schema).write(text)
