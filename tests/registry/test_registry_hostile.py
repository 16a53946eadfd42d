"""Mutated values and schemas: a value is decoded or kept, a schema is accepted or refused, in a bounded memory."""
import json
import random
import tracemalloc
from decimal import Decimal

import pyarrow as pa
import pytest
from fuzz.test_targets import mutated
from test_registry_avro import logical, record, written
from test_registry_protobuf import ORDER, OTHER, class_of

from kbroker_tools.registry.avro import AvroFormat
from kbroker_tools.registry.client import Schema
from kbroker_tools.registry.decoding import Decoder
from kbroker_tools.registry.errors import RegistryError
from kbroker_tools.registry.framing import prefix_of
from kbroker_tools.registry.json_values import JsonFormat
from kbroker_tools.registry.protobuf import ProtobufFormat

MOST_MIB = 64
WRITER = record(
    ('id', 'long'), ('who', ['null', 'string', 'int']), ('tags', {'type': 'array', 'items': ['null', 'string']}),
    ('map', {'type': 'map', 'values': record(('x', 'double'), name='In')}),
    ('gone', {'type': 'array', 'items': 'bytes'}), ('at', logical('long', 'timestamp-millis')),
    ('price', logical('bytes', 'decimal', precision=9, scale=2)),
    ('kind', {'type': 'enum', 'name': 'E', 'symbols': ['A', 'B']}))
READER = {**WRITER, 'fields': [each for each in reversed(WRITER['fields']) if each['name'] != 'gone']}
DDL = 'id bigint, who string, tags array<string>, map map<string, struct<x: double>>, at timestamp, price decimal(9,2)'
SCHEMAS = {1: Schema('avro', json.dumps(WRITER)), 2: Schema('json', '{}'), 3: Schema('protobuf', ORDER)}
PROTO_PARTS = {'other.proto': OTHER}


class KnownSchemas:
    """A registry that has one schema of each format."""

    def schema(self, key):
        return SCHEMAS.get(key)

    def references(self, schema):
        parts = PROTO_PARTS if schema.kind == 'protobuf' else {}
        return {name: Schema('protobuf', text) for name, text in parts.items()}


def formats():
    avro = written(WRITER, {'id': 1, 'who': 'me', 'tags': ['a', None], 'map': {'k': {'x': 1.5}}, 'gone': [b'x'],
                            'at': 5, 'price': Decimal('.5'), 'kind': 'B'})
    order = class_of(ORDER, PROTO_PARTS, 'shop.v1.Order')(
        id=5, who='a', items=[{'sku': 's', 'kind': 1}], numbers=[1.5], thing={'a': 4})
    order.by['k'].sku = 'z'
    text = b'{"id": 1, "who": "me", "tags": ["a", null], "map": {"k": {"x": 1.5}}, "at": "2020-01-01", "price": 1.5}'
    return {
        'avro': (json.dumps(READER), prefix_of(1) + avro),
        'json': (DDL, prefix_of(2) + text),
        'protobuf': (ProtobufFormat.from_registry(ORDER, PROTO_PARTS, None).text,
                     prefix_of(3, [0]) + order.SerializeToString())}


@pytest.fixture
def few_mib():
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1] >> 20
    tracemalloc.stop()
    assert peak < MOST_MIB


@pytest.mark.parametrize(
    ('make', 'text'),
    [(AvroFormat, '{"type": "record", "name": "R", "fields": [{"name": "\\ud800", "type": "int"}]}'),
     (AvroFormat, '{"type": "record", "name": "R", "fields": [{"name": "\ud800", "type": "int"}]}'),
     (JsonFormat, '`\ud800` int'),
     (lambda text: JsonFormat.from_registry(text, {}, None), '{"properties": {"\\udfff": {"type": "string"}}}'),
     (lambda text: ProtobufFormat.from_registry(text, {}, None), 'import "\ud800"; message A {}')],
    ids=['avro, escaped', 'avro', 'ddl', 'json schema', 'proto'])
def test_a_schema_with_half_of_a_surrogate_pair_is_refused(make, text):
    """JSON can have it in any text, and UTF-8 cannot. It once ended a run with a traceback."""
    with pytest.raises(RegistryError, match=r'half of a surrogate pair|is not an Avro schema'):
        make(text)


@pytest.mark.parametrize(
    ('kind', 'text'),
    [('protobuf', 'message A { optional int32 x = 155555555555; }'), ('protobuf', 'import "\ud800"; message A {}'),
     ('avro', '{"type": "record", "name": "R", "fields": [{"name": "\\ud800", "type": "int"}]}'),
     ('avro', json.dumps(record(('a', 'int'), ('a', 'int'))))])
def test_a_wrong_schema_of_a_writer_makes_its_values_undecodable(kind, text, monkeypatch):
    """The number of the field once ended the run that met such a value."""
    decoder = Decoder(kind, formats()[kind][0], KnownSchemas())
    monkeypatch.setitem(SCHEMAS, 9, Schema(kind, text))
    value = prefix_of(9, [0] if kind == 'protobuf' else []) + b'\x08\x05'
    column, undecoded = decoder.decode(pa.array([value], pa.binary()), None)
    assert (column.null_count, undecoded.to_pylist()) == (1, [value])


@pytest.mark.parametrize('kind', ['avro', 'json', 'protobuf'])
def test_a_mutated_value_is_decoded_or_kept(kind, request, few_mib):
    text, seed = formats()[kind]
    decoder, chance = Decoder(kind, text, KnownSchemas()), random.Random(17)
    values = [seed, *(mutated(chance, seed) for _ in range(request.config.getoption('fuzz_mutations')))]
    before = pa.total_allocated_bytes()
    column, undecoded = decoder.decode(pa.array(values, pa.binary()), None)
    assert pa.total_allocated_bytes() - before < MOST_MIB << 20
    column.validate(full=True)
    kept = undecoded.to_pylist()
    assert kept[0] is None
    assert any(kept)
    assert all(bad is None or bad == value for value, bad in zip(values, kept, strict=True))
    assert [each.is_valid for each in column] == [bad is None for bad in kept]


@pytest.mark.parametrize(
    ('make', 'seed'),
    [(AvroFormat, json.dumps(WRITER)), (JsonFormat, DDL),
     (lambda text: ProtobufFormat.from_registry(text, PROTO_PARTS, None), ORDER),
     (lambda text: JsonFormat.from_registry(text, {}, None), json.dumps({'type': 'object', 'properties': {
         'a': {'$ref': '#/$defs/x'}, 'b': {'type': ['null', 'array'], 'items': {'type': 'integer'}}},
         '$defs': {'x': {'type': 'string'}}}))],
    ids=['avro', 'ddl', 'proto', 'json schema'])
def test_a_mutated_schema_is_accepted_or_refused_in_one_line(make, seed, request, few_mib):
    chance = random.Random(17)
    refused = 0
    for _ in range(request.config.getoption('fuzz_mutations')):
        try:
            make(mutated(chance, seed.encode()).decode('utf-8', 'replace'))
        except RegistryError as error:
            assert '\n' not in str(error)
            refused += 1
    assert refused
