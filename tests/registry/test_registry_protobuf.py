"""Protobuf values as Arrow columns: the types, the compiler of `.proto` texts, message indexes and damaged values."""
import datetime
import importlib
import json
import pathlib
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest

from kbroker_tools.registry.columns import to_column
from kbroker_tools.registry.decoding import ValueSchema
from kbroker_tools.registry.errors import RegistryError
from kbroker_tools.registry.framing import prefix_of
from kbroker_tools.registry.proto_files import descriptor_of, files_of
from kbroker_tools.registry.proto_text import compile_text, message_at
from kbroker_tools.registry.protobuf import ProtobufFormat, is_many

ORDER = '''
// A comment; with "quotes".
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
import 'google/protobuf/struct.proto';
import "google/protobuf/wrappers.proto";
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
import public "other.proto";
option java_package = "x";
option (my.option) = { a: 1; b: { c: "}" } };
enum Color { option allow_alias = true; RED = 0; BLUE = 0x5 [deprecated = true]; AZURE = 5; NEG = -1;
  reserved 7, 9 to 10; }
message Order {
  /* a
     block */
  option deprecated = true;
  reserved 100, 200 to max; reserved "gone";
  message Item { string sku = 1; Kind kind = 2; enum Kind { A = 0; B = 1; } }
  int64 id = 1;
  string who = 2 [json_name = "whom", (x.y) = "z]"];
  repeated Item items = 3;
  map<string, Item> by = 4;
  map<int32, Color> colors = 5;
  oneof pay { option (x) = 1; string card = 6; int32 cash = 7; }
  optional int32 maybe = 8;
  google.protobuf.Timestamp at = 9;
  google.protobuf.Struct extra = 10;
  uint64 big = 11; fixed32 small = 12; bytes raw = 13; repeated double numbers = 14 [packed=true];
  Color color = 15;
  .shop.v1.Order.Item full = 16;
  google.protobuf.StringValue wrapped = 17;
  other.Thing thing = 18;
  Empty nothing = 19;
  bool option = 20; float message = 21; sint64 reserved = 22;
  confluent.type.Decimal price = 23;
}
message Empty {}
service S { rpc Do (Order) returns (Order) { option (google.api.http) = { get: "/x" }; } }
'''
OTHER = '''syntax = "proto2"; package other;
message Thing { required int32 a = 1; optional group Grp = 2 { optional int32 g = 1 [default = 3]; }
  extensions 100 to 199; }
extend Thing { optional int32 e = 100; }'''
PARTS = {'other.proto': OTHER}
ITEM = pa.struct([('sku', pa.string()), ('kind', pa.string())])
COLUMNS = pa.struct([
    ('id', pa.int64()), ('who', pa.string()), ('items', pa.list_(pa.field('element', ITEM))),
    ('by', pa.map_(pa.string(), ITEM)), ('colors', pa.map_(pa.int32(), pa.string())), ('card', pa.string()),
    ('cash', pa.int32()), ('maybe', pa.int32()), ('at', pa.timestamp('us', 'UTC')), ('extra', pa.string()),
    ('big', pa.decimal128(20, 0)), ('small', pa.int64()), ('raw', pa.binary()),
    ('numbers', pa.list_(pa.field('element', pa.float64()))), ('color', pa.string()), ('full', ITEM),
    ('wrapped', pa.struct([('value', pa.string())])),
    ('thing', pa.struct([('a', pa.int32()), ('grp', pa.struct([('g', pa.int32())]))])),
    ('option', pa.bool_()), ('message', pa.float32()), ('reserved', pa.int64()),
    ('price', pa.struct([('value', pa.binary()), ('precision', pa.int64()), ('scale', pa.int32())]))])
EMPTY = {each.name: [] if isinstance(each.type, (pa.ListType, pa.MapType)) else None for each in COLUMNS}


@pytest.fixture(scope='module')
def order():
    return ProtobufFormat.from_registry(ORDER, PARTS, None)


def class_of(text, references=(), message='Order'):
    from google.protobuf.message_factory import GetMessageClass
    return GetMessageClass(descriptor_of(files_of(text, dict(references)), message))


@pytest.fixture(scope='module')
def make_order():
    return class_of(ORDER, PARTS, 'shop.v1.Order')


def column_of(chosen, data):
    column, unfit = to_column([chosen.own_values()(data, 0)], chosen.type)
    assert unfit == []
    return column.to_pylist()[0]


def test_each_type_has_its_column(order, make_order):
    assert order.type == COLUMNS
    message = make_order(id=5, who='a', items=[{'sku': 's', 'kind': 1}, {}], colors={3: 5},
                         cash=0, maybe=0, big=2**64 - 1, small=2**32 - 1, raw=b'x', numbers=[1.5], color=9,
                         thing={'a': 4, 'grp': {'g': 9}}, price={'value': b'\5', 'scale': 1}, nothing={})
    message.by['k'].sku = 'z'
    message.at.FromDatetime(datetime.datetime(1969, 12, 31, 1, 2, 3, 4))
    message.extra.update({'a': [1, None, {'b': 'c'}]})
    message.wrapped.SetInParent()
    assert column_of(order, message.SerializeToString()) == EMPTY | {
        'id': 5, 'who': 'a', 'items': [{'sku': 's', 'kind': 'B'}, {'sku': None, 'kind': None}],
        'by': [('k', {'sku': 'z', 'kind': None})], 'colors': [(3, 'BLUE')], 'cash': 0, 'maybe': 0,
        'at': datetime.datetime(1969, 12, 31, 1, 2, 3, 4, datetime.UTC), 'extra': '{"a":[1.0,null,{"b":"c"}]}',
        'big': Decimal(2**64 - 1), 'small': 2**32 - 1, 'raw': b'x', 'numbers': [1.5], 'color': '9',
        'wrapped': {'value': None}, 'thing': {'a': 4, 'grp': {'g': 9}},
        'price': {'value': b'\5', 'precision': None, 'scale': 1}}


def test_a_field_that_is_zero_is_null_and_a_list_is_empty(order, make_order):
    assert column_of(order, make_order(id=0, who='', option=False, card='').SerializeToString()) == EMPTY | {'card': ''}


def test_an_empty_message_is_a_value_and_one_of_unknown_fields_is_not(order):
    assert column_of(order, b'') == EMPTY
    with pytest.raises(Exception, match='found no known field'):
        order.own_values()(b'\xf8\x07\1', 0)


@pytest.mark.parametrize('data', [b'{"id": 1}', b'\x0a\x05ab', b'\x12\x02\xff\xff', b'\x1a' + b'\x80' * 20,
                                  b'\x12\xff\xff\xff\xff\x07abc'])
def test_damaged_bytes_are_undecodable(order, data):
    with pytest.raises(Exception, match=r'.'):
        order.own_values()(data, 0)


def test_the_text_of_a_descriptor_is_read_like_the_proto_text(order):
    import base64
    encoded = base64.b64encode(compile_text('x.proto', ORDER).SerializeToString()).decode()
    assert ProtobufFormat.from_registry(encoded, PARTS, None).text == order.text
    assert ProtobufFormat(order.text).type == COLUMNS


@pytest.mark.parametrize(
    ('indexes', 'name'),
    [([0], 'shop.v1.Order'), ([0, 0], 'shop.v1.Order.Item'), ([1], 'shop.v1.Empty'), ([2], None), ([0, 9], None),
     ([-1], None)])
def test_message_indexes_name_a_message(indexes, name):
    assert message_at(compile_text('x.proto', ORDER), indexes) == name


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', 'found a .proto file without a message'),
        ('{"type": "int"}', "line 1: found '{', expected message, enum, import or option"),
        ('message A {\n int32 x = ;\n}', "line 2: found ';', expected a number"),
        ('message A {\n int32 x = 1', 'line 2: found the end'),
        ('message A { int32 x = 1; } \u00fc', 'line 1: found'),
        ('edition = "2023"; message A {}', 'found an edition, expected syntax proto2 or proto3'),
        ('syntax = "proto4"; message A {}', 'found syntax proto4'),
        ('message A { B b = 1; }', 'found a wrong Protobuf file'),
        ('message A { optional int32 x = 1; optional int32 y = 1; }', 'found a wrong Protobuf file'),
        ('message A {}', 'A without fields'),
        ('message A { optional A a = 1; }', 'A contains itself: a column cannot have a recursive type'),
        ('message A { optional int32 x = 155555555555; }', 'line 1: found 155555555555, expected a number of 32 bits'),
        ('enum E { A = -2147483649; }', 'found -2147483649, expected a number of 32 bits'),
        ('enum E { A = ' + '-' * 50_000, "found '-', expected a number"),
        ('import "gone.proto"; message A { optional int32 x = 1; }', 'imports gone.proto, expected a reference'),
        ('import "a\\\nb.proto"; message A { optional int32 x = 1; }', "line 1: found '\"', expected a .proto file"),
        ('import "\x1b[1m\u202e.proto"; message A { optional int32 x = 1; }', r'imports \x1b[1m\u202e.proto, exp'),
        ('import "google/protobuf/gone.proto"; message A {}', 'imports google/protobuf/gone.proto'),
        ('import "google/protobuf/../../os.proto"; message A {}', 'expected a reference with this name'),
        ('message A { ' * 60 + 'optional int32 x = 1;' + '}' * 60, 'more than 50 nested messages'),
        ('message A' * 50_000, 'line 1: found'),
        ('option x = ' + '{' * 100_000, 'found the end'),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused(text, message):
    with pytest.raises(RegistryError) as raised:
        ProtobufFormat.from_registry(text, {}, None)
    assert message in str(raised.value)
    assert '\n' not in str(raised.value)


def test_files_that_import_each_other_are_refused():
    with pytest.raises(RegistryError, match='imports itself'):
        ProtobufFormat.from_registry('import "a.proto"; message M { optional int32 x = 1; }',
                                     {'a.proto': 'import "b.proto";', 'b.proto': 'import "a.proto";'}, None)


@pytest.fixture
def settings(registry):
    return {'schema.registry.url': registry.url, 'max.retries': '0'}


SIMPLE = 'syntax = "proto3"; message First { int32 a = 1; } message Order { int64 id = 1; Line line = 2; ' \
         'message Line { string t = 1; } }'


def test_confluent_s_serializer_writes_what_the_decoder_reads(registry, settings):
    """Python's serializer registers a descriptor. The message is the second one of its file."""
    from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext
    make = class_of(SIMPLE)
    client = SchemaRegistryClient({'url': registry.url})
    values, headers = [], []
    for more in ({}, {'schema.id.serializer': header_schema_id_serializer}):
        where = SerializationContext('t', MessageField.VALUE, [])
        serializer = ProtobufSerializer(make, client, {'subject.name.strategy.type': 'TOPIC', **more})
        values.append(serializer(make(id=7, line={'t': 'x'}), where))
        headers.append(where.headers)
    decoder = pickle.loads(pickle.dumps(ValueSchema('protobuf', 'registry:#,Order', settings).decoder(['t'])))
    kind = pa.list_(pa.struct([('key', pa.string()), ('value', pa.binary())]))
    column, undecoded = decoder.decode(pa.array(values), pa.array(headers, kind))
    assert column.to_pylist() == [{'id': 7, 'line': {'t': 'x'}}] * 2
    assert undecoded.to_pylist() == [None, None]
    first = ValueSchema('protobuf', 'registry:', settings).decoder(['t'])
    assert first.type == pa.struct([('a', pa.int32())])
    assert first.decode(pa.array(values), pa.array(headers, kind))[1].to_pylist() == values


def test_values_of_another_message_and_of_unknown_ids_are_undecodable(registry, settings):
    number = registry.add('t-value', SIMPLE, 'PROTOBUF')
    data = class_of(SIMPLE)(id=7).SerializeToString()
    values = [prefix_of(number, [1]) + data, prefix_of(number, [0]) + data, prefix_of(number, [1, 0]) + data,
              prefix_of(number, [5]) + data, prefix_of(9, [1]) + data, prefix_of(number), data, b'']
    decoder = ValueSchema('protobuf', 'registry:#,Order', settings).decoder(['t'])
    column, undecoded = decoder.decode(pa.array(values, pa.binary()), None)
    assert column.to_pylist() == [{'id': 7, 'line': None}] + [None] * 7
    assert undecoded.to_pylist() == [None, *values[1:]]


def test_a_field_that_is_added_is_read_from_then_on(registry, settings):
    registry.add('t-value', 'message M { optional int32 a = 1; }', 'PROTOBUF')
    schema = ValueSchema('protobuf', 'registry:', settings)
    recorded = schema.decoder(['t']).shape
    number = registry.add('t-value', 'message M { optional int32 a = 1; optional string b = 2; }', 'PROTOBUF')
    value = pa.array([prefix_of(number, [0]) + b'\x08\1\x12\1x'])
    assert schema.decoder(['t'], recorded).decode(value, None)[0].to_pylist() == [{'a': 1}]
    evolved = schema.decoder(['t'], recorded, True)
    assert evolved.added == ['b']
    assert evolved.decode(value, None)[0].to_pylist() == [{'a': 1, 'b': 'x'}]


def test_a_descriptor_file_needs_no_registry(tmp_path):
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    (tmp_path / 'd').write_bytes(FileDescriptorSet(file=files_of(SIMPLE, {})).SerializeToString())
    decoder = ValueSchema('protobuf', f'{tmp_path}/d:Order').decoder(['t'])
    column, _ = decoder.decode(pa.array([class_of(SIMPLE)(id=7).SerializeToString()]), None)
    assert column.to_pylist() == [{'id': 7, 'line': None}]
    (tmp_path / 'text').write_text(json.dumps({'no': 'descriptor'}))
    for schema, message in [(f'{tmp_path}/d', 'expected DESCRIPTOR-FILE:package.Message'),
                            (f'{tmp_path}/d:Gone', '--value-schema: found no message Gone, expected one of First'),
                            (f'{tmp_path}/text:Order', 'which has no descriptors of Protobuf')]:
        with pytest.raises(RegistryError, match=message):
            ValueSchema('protobuf', schema).decoder(['t'])
    with pytest.raises(FileNotFoundError):
        ValueSchema('protobuf', f'{tmp_path}/gone:Order').decoder(['t'])


def proto_texts():
    """Return the `.proto` files of Google's package, which has the modules that protoc made of them."""
    import google.type.date_pb2
    root = pathlib.Path(google.type.date_pb2.__file__).parents[2]
    return {str(path.relative_to(root)): path.read_text() for path in sorted((root / 'google').rglob('*.proto'))}


def described(file):
    """Return what decides the bytes of the messages of a file, and what the names of its enums are."""
    def message_of(message):
        fields = [(each.name, each.number, each.type, each.has_presence, is_many(each),
                   each.message_type and each.message_type.full_name, each.enum_type and each.enum_type.full_name,
                   each.containing_oneof and each.containing_oneof.name) for each in message.fields]
        return message.full_name, message.GetOptions().map_entry, fields, [*map(message_of, message.nested_types)], [
            *map(enum_of, message.enum_types)]

    def enum_of(enum):
        return enum.full_name, [(each.name, each.number) for each in enum.values]
    return [*map(message_of, file.message_types_by_name.values())], [*map(enum_of, file.enum_types_by_name.values())]


def test_texts_are_compiled_as_protoc_compiles_them():
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    texts = proto_texts()
    assert len(texts) > 40
    for name, text in texts.items():
        judge = importlib.import_module(name.removesuffix('.proto').replace('/', '.') + '_pb2').DESCRIPTOR
        pool, added = DescriptorPool(), set()

        def add(file, pool=pool, added=added):
            for each in file.dependencies:
                add(each, pool, added)
            if file.name not in added:
                added.add(file.name)
                pool.AddSerializedFile(FileDescriptorProto.FromString(file.serialized_pb).SerializeToString())
        for each in judge.dependencies:
            add(each)
        pool.AddSerializedFile(compile_text(name, text).SerializeToString())
        assert described(pool.FindFileByName(name)) == described(judge), name
