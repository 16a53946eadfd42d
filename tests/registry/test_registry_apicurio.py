"""Values that Confluent's serializers write with Apicurio as the registry, in all formats and by two versions."""
import base64
import json

import pyarrow as pa
import pytest
from support.registry.apicurio import ApicurioProcess
from test_registry_decoding import V1, V2
from test_registry_protobuf import OTHER, class_of

from kbroker_tools.registry.client import Reference, RegistryClient, Schema
from kbroker_tools.registry.decoding import ValueSchema
from kbroker_tools.registry.errors import RegistryError
from kbroker_tools.registry.framing import prefix_of
from kbroker_tools.registry.settings import RegistrySettings

pytestmark = pytest.mark.jvm
JSON = {'title': 'Order', 'type': 'object', 'properties': {'id': {'type': 'integer'}}}
PROTO = 'syntax = "proto3"; package a; import "other.proto"; message Order { int64 id = 1; other.Thing thing = 2; }'


@pytest.fixture(scope='module')
def apicurio():
    with ApicurioProcess() as process:
        yield process


def client_of(apicurio):
    return RegistryClient(RegistrySettings.of({'url': apicurio.url}))


def written(serializer, topic, *rows):
    from confluent_kafka.serialization import MessageField, SerializationContext
    return [serializer(row, SerializationContext(topic, MessageField.VALUE)) for row in rows]


def decoded(apicurio, kind, topic, values, place='registry:'):
    decoder = ValueSchema(kind, place, {'url': apicurio.url, 'max.retries': '0'}).decoder([topic])
    column, undecoded = decoder.decode(pa.array(values, pa.binary()), None)
    return column.to_pylist(), undecoded.to_pylist()


def test_avro_values_of_two_versions(apicurio):
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    client, conf = SchemaRegistryClient({'url': apicurio.url}), {'subject.name.strategy.type': 'TOPIC'}
    values = [*written(AvroSerializer(client, json.dumps(V1), conf=conf), 'avro', {'id': 1, 'who': 'a'}),
              *written(AvroSerializer(client, json.dumps(V2), conf=conf), 'avro', {'id': 2, 'who': 'b', 'cents': 3})]
    unknown = b'\0\0\0\xff\xff' + values[0][5:]
    assert decoded(apicurio, 'avro', 'avro', [*values, unknown, b'x']) == (
        [{'id': 1, 'who': 'a', 'cents': -1}, {'id': 2, 'who': 'b', 'cents': 3}, None, None],
        [None, None, unknown, b'x'])


def test_json_values(apicurio):
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    serializer = JSONSerializer(json.dumps(JSON), SchemaRegistryClient({'url': apicurio.url}),
                                conf={'subject.name.strategy.type': 'TOPIC'})
    assert decoded(apicurio, 'json', 'json', written(serializer, 'json', {'id': 4})) == ([{'id': 4}], [None])


@pytest.mark.parametrize('form', ['text', 'descriptor'])
def test_protobuf_values(apicurio, form):
    """Java's serializers register the text, and Python's a descriptor in Base64."""
    client, topic = client_of(apicurio), f'protobuf-{form}'
    text = PROTO
    if form == 'descriptor':
        from kbroker_tools.registry.proto_text import compile_text
        text = base64.b64encode(compile_text('order.proto', PROTO).SerializeToString()).decode()
    client.register('other', Schema('protobuf', OTHER))
    number = client.register(f'{topic}-value', Schema('protobuf', text, (Reference('other.proto', 'other', 1),)))
    value = class_of(PROTO, {'other.proto': OTHER}, 'a.Order')(id=5, thing={'a': 6}).SerializeToString()
    assert decoded(apicurio, 'protobuf', topic, [prefix_of(number, [0]) + value]) == (
        [{'id': 5, 'thing': {'a': 6, 'grp': None}}], [None])


def test_protobuf_values_of_confluent_s_serializer(apicurio):
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    make = class_of('syntax = "proto3"; message First { int32 a = 1; } message Order { int64 id = 1; }')
    serializer = ProtobufSerializer(make, SchemaRegistryClient({'url': apicurio.url}),
                                    {'subject.name.strategy.type': 'TOPIC'})
    assert decoded(apicurio, 'protobuf', 'python', written(serializer, 'python', make(id=8)),
                   'registry:#,Order') == ([{'id': 8}], [None])


def test_avro_references(apicurio):
    client = client_of(apicurio)
    client.register('street', Schema('avro', json.dumps({'type': 'record', 'name': 'n.Street', 'fields': [
        {'name': 's', 'type': 'string'}]})))
    number = client.register('home-value', Schema('avro', json.dumps({
        'type': 'record', 'name': 'n.Home', 'fields': [{'name': 'street', 'type': 'n.Street'}]}),
        (Reference('n.Street', 'street', 1),)))
    assert decoded(apicurio, 'avro', 'home', [prefix_of(number) + b'\2x']) == ([{'street': {'s': 'x'}}], [None])


def test_a_url_without_its_path_is_named(apicurio):
    with pytest.raises(RegistryError, match='lack a path, such as /apis/ccompat/v7'):
        ValueSchema('avro', f'registry:{apicurio.url.removesuffix("/apis/ccompat/v7")}').decoder(['t'])
