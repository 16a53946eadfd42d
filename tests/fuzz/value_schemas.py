"""Schemas that a registry, or a person, chooses, and values of such a schema."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress

from kbroker_tools.console.avro_json import AvroJson
from kbroker_tools.console.protobuf_json import ProtobufJson
from kbroker_tools.console.registry_values import Codec
from kbroker_tools.registry.avro import AvroFormat
from kbroker_tools.registry.decoding import Decoder
from kbroker_tools.registry.errors import RegistryError
from kbroker_tools.registry.formats import Format
from kbroker_tools.registry.json_values import JsonFormat
from kbroker_tools.registry.protobuf import ProtobufFormat

KINDS: dict[bytes, Callable[[str], Format]] = {
    b'a': lambda text: AvroFormat.from_registry(text, {}, None),
    b'd': JsonFormat.from_option,
    b'j': lambda text: JsonFormat.from_registry(text, {}, None),
    b'p': lambda text: ProtobufFormat.from_registry(text, {}, None)}
CODECS: dict[bytes, Callable[[str], Codec]] = {
    b'A': AvroJson,
    b'P': lambda text: ProtobufJson(text, {}, (0,))}
SEPARATOR = b'\xff'
"""Between a schema, which is UTF-8, and a value."""


def run(data: bytes) -> None:
    """Read a schema of the kind that the first byte names, and decode the value after it: as a column, or as JSON."""
    schema, _, value = data[1:].partition(SEPARATOR)
    text = schema.decode('utf-8', 'surrogateescape')        # a text in JSON can have half of a surrogate pair
    try:
        if data[:1] in KINDS:
            as_column(KINDS[data[:1]](text), value)
        elif data[:1] in CODECS:
            as_json(CODECS[data[:1]](text), value)
    except RegistryError as error:
        assert str(error).isprintable(), error


def as_column(found: Format, value: bytes) -> None:
    import pyarrow as pa
    column, undecoded = Decoder(found.kind, found.text, None).decode(pa.array([value, None], pa.binary()), None)
    column.validate(full=True)
    assert column[0].is_valid == (undecoded[0].as_py() is None)
    assert (column[1].is_valid, undecoded[1].is_valid) == (False, False)


def as_json(codec: Codec, value: bytes) -> None:
    """Read a value, write what was read, and write the value as if it was JSON."""
    with suppress(ValueError):
        shown = codec.read(value)
        codec.write(json.dumps(shown).encode())
    with suppress(ValueError):
        codec.write(value)


def seeds() -> Iterator[bytes]:
    for seed in column_seeds():
        yield seed
        if seed[:1] in b'ap':
            yield seed[:1].upper() + seed[1:]
    yield (b'A{"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "R", "double"]}]}' + SEPARATOR
           + b'{"x": {"R": {"x": {"double": "NaN"}}}}')


def column_seeds() -> Iterator[bytes]:
    avro = {'type': 'record', 'name': 'R', 'fields': [
        {'name': 'id', 'type': 'long'}, {'name': 'who', 'type': ['null', 'string']},
        {'name': 'tags', 'type': {'type': 'array', 'items': {'type': 'map', 'values': 'bytes'}}},
        {'name': 'price', 'type': {'type': 'bytes', 'logicalType': 'decimal', 'precision': 9, 'scale': 2}},
        {'name': 'kind', 'type': {'type': 'enum', 'name': 'E', 'symbols': ['A', 'B']}}]}
    yield b'a' + json.dumps(avro).encode() + SEPARATOR + b'\x02\x02\x04me\x02\x02\x02k\x02v\x00\x00\x02\x05\x02'
    schema = {'type': 'object', 'properties': {
        'id': {'type': 'integer'}, 'at': {'type': 'string', 'format': 'date-time'}, 'x': {'$ref': '#/$defs/x'},
        'all': {'type': ['null', 'array'], 'items': {'type': 'number'}}}, '$defs': {'x': {'type': 'boolean'}}}
    yield b'j{"properties": {"a\\ud800": {}}}'
    yield (b'j' + json.dumps(schema).encode() + SEPARATOR
           + b'{"id": 1, "at": "2020-01-01T00:00:00Z", "x": true, "all": [1.5, 2]}')
    yield (b'did bigint, tags array<string>, map map<string, struct<x: double>>, at timestamp, price decimal(9,2)'
           + SEPARATOR + b'{"id": 1, "tags": ["a", null], "map": {"k": {"x": 1.5}}, "at": "2020-01-01", "price": 1.5}')
    yield (b'p' + b'syntax = "proto3"; package p; import "google/protobuf/timestamp.proto"; enum E { A = 0; B = 1; }'
           b'message M { int64 id = 1; repeated E kinds = 2; map<string, I> by = 3; google.protobuf.Timestamp at = 4;'
           b'oneof one { string a = 5; bytes b = 6; } message I { double x = 1; } }' + SEPARATOR
           + b'\x08\x05\x12\x02\x00\x01\x1a\x0e\x0a\x01k\x12\x09\x09\x00\x00\x00\x00\x00\x00\xf8\x3f'
           b'\x22\x02\x08\x01\x2a\x01a')
