"""Protobuf values as JSON, in both directions."""
import json

import pytest

from kbroker_tools.console.protobuf_json import ProtobufJson, indexes_of
from kbroker_tools.registry.errors import RegistryError

SCHEMA = '''syntax = "proto3"; package n; import "google/protobuf/timestamp.proto"; import "other.proto";
message Tree { int64 id = 1; repeated Tree below = 2; map<string, Leaf> leaves = 3; bytes raw = 4; double size = 5;
  google.protobuf.Timestamp at = 6; oneof one { string word = 7; int32 number = 8; } other.Thing thing_of = 9;
  message Leaf { enum Color { RED = 0; BLUE = 1; } Color color = 1; } }
message Second {}'''
OTHER = 'syntax = "proto2"; package other; message Thing { required int32 a = 1; }'
REFERENCES = {'other.proto': OTHER}
CODEC = ProtobufJson(SCHEMA, REFERENCES, (0,))


@pytest.mark.parametrize('value', [
    {'id': '1', 'below': [{'id': '2', 'below': [], 'leaves': {}, 'raw': '', 'size': 0.0}],
     'leaves': {'a': {'color': 'BLUE'}}, 'raw': '/w==', 'size': 'NaN', 'at': '2026-11-28T12:00:00.000001Z', 'number': 0,
     'thing_of': {'a': 7}},
    {'id': '-9223372036854775808', 'below': [], 'leaves': {}, 'raw': '', 'size': '-Infinity', 'word': 'é'},
])
def test_each_type_comes_back(value):
    data = CODEC.write(json.dumps(value).encode())
    assert CODEC.read(data) == value
    assert CODEC.write(json.dumps(CODEC.read(data)).encode()) == data


@pytest.mark.parametrize(('text', 'problem'), [
    ('{"ids":1}', 'has no field named "ids"'),
    ('{"id":"x"}', 'Failed to parse id field'),
    ('{"thing_of":{}}', 'is missing required fields: thing_of.a'),
    ('[]', 'found no JSON object, expected one'),
    ('[' * 100_000, ''),
    ('{', ''),
])
def test_a_text_that_does_not_fit_the_schema_is_refused(text, problem):
    with pytest.raises(ValueError) as raised:
        CODEC.write(text.encode())
    assert problem in str(raised.value) and str(raised.value) and '\n' not in str(raised.value)


@pytest.mark.parametrize('data', [b'\xff', b'\x08', b'\x12\x05\x08'])
def test_bytes_that_are_no_message_are_refused(data):
    with pytest.raises(ValueError, match='the bytes are no message of the schema'):
        CODEC.read(data)


def test_a_message_is_found_by_its_name():
    assert [indexes_of(SCHEMA, REFERENCES, name) for name in (None, 'n.Tree', 'n.Tree.Leaf', 'n.Second')] == [
        (0,), (0,), (0, 1), (1,)]
    assert ProtobufJson(SCHEMA, REFERENCES, (1,)).read(b'') == {}
    for make in (lambda: indexes_of(SCHEMA, REFERENCES, 'n.Third'), lambda: ProtobufJson(SCHEMA, REFERENCES, (2,))):
        with pytest.raises(RegistryError, match='found no message'):
            make()
