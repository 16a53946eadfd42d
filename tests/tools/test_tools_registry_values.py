"""kbroker-consume and kbroker-produce with values that have the schema id of a registry. Confluent's client is the
judge: it reads what the commands write, and writes what they read."""
import base64
import json
import re
import subprocess
from decimal import Decimal

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry import header_schema_id_serializer as id_in_header
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from support.registry.scripted_registry import ScriptedRegistry
from support.runner.command_runner import ROOT, command_line, run_in_process

from kbroker.client import Consumer
from kbroker_tools.console.registry_values import Codecs
from kbroker_tools.registry.client import Reference, RegistryClient, Schema
from kbroker_tools.registry.proto_files import descriptor_of, file_of, files_of
from kbroker_tools.registry.settings import RegistrySettings

LIMIT_S = 120
ORDER = json.dumps({'type': 'record', 'name': 'Order', 'namespace': 'shop', 'fields': [
    {'name': 'id', 'type': 'long'}, {'name': 'who', 'type': ['null', 'string'], 'default': None},
    {'name': 'at', 'type': {'type': 'long', 'logicalType': 'timestamp-micros'}, 'default': 0}]})
GROWN = json.dumps({'type': 'record', 'name': 'Order', 'namespace': 'shop', 'fields': [
    {'name': 'id', 'type': 'long'},
    {'name': 'price', 'type': {'type': 'bytes', 'logicalType': 'decimal', 'precision': 9, 'scale': 2}}]})
PROTO = ('syntax = "proto3"; package shop; message Order { int64 id = 1; Item item = 2; repeated string tags = 3; '
         'message Item { string name = 1; } }')
PAPER = json.dumps({'type': 'object', 'properties': {'id': {'type': 'integer'}}, 'required': ['id']})


@pytest.fixture(scope='module')
def registry():
    with ScriptedRegistry().running() as running:
        yield running


@pytest.fixture(scope='module')
def client(registry):
    return SchemaRegistryClient({'url': registry.url})


@pytest.fixture
def connected(registry):
    return RegistryClient(RegistrySettings.of({}, registry.url))


def write(broker, topic, *records):
    """Write (key, value, headers) records with librdkafka, in their order."""
    producer = Producer({'bootstrap.servers': broker.address})
    for key, value, headers in records:
        producer.produce(topic, value, key, headers=headers)
    assert producer.flush(LIMIT_S) == 0


def read(broker, topic, count):
    """Return (key, value, headers) of the first records of a topic, as bytes."""
    found = []
    with Consumer(broker.address, auto_offset_reset='earliest') as consumer:
        consumer.assign([(topic, 0)])
        while len(found) < count:
            found += [(record.key, record.value, record.headers)
                      for batch in consumer.poll(1000) for record in batch.records()]
    return found


def consume(broker, registry, topic, count, *options):
    return run_in_process('consume', '--bootstrap-server', broker.address, '--topic', topic, '--from-beginning',
                          '--max-messages', count, '--registry', registry.url, *options)


def produce(broker, registry, topic, *options, stdin=''):
    return subprocess.run(command_line('produce', '--bootstrap-server', broker.address, '--topic', topic, '--registry',
                                       registry.url, *options), input=stdin, capture_output=True, text=True,
                          timeout=LIMIT_S, check=False, cwd=ROOT)


# ---- readers

def message_class(name):
    from google.protobuf.message_factory import GetMessageClass
    return GetMessageClass(descriptor_of(files_of(PROTO, {}), name))


def test_protobuf_values_are_shown_as_json(shared_broker, registry, client):
    topic = 'protobuf'
    where = SerializationContext(topic, MessageField.VALUE)
    values = []
    for name, fields in (('shop.Order', {'id': 1 << 60, 'item': {'name': 'pen'}}),
                         ('shop.Order.Item', {'name': 'ink'})):
        message = message_class(name)
        values.append(ProtobufSerializer(message, client, {'use.deprecated.format': False})(message(**fields), where))
    write(shared_broker, topic, *((None, value, []) for value in [*values, values[0][:-1]]))
    done = consume(shared_broker, registry, topic, 3, '--value-format', 'protobuf', '--format', '%s\n')
    assert done.stdout.splitlines()[:2] == [
        '{"id":"1152921504606846976","item":{"name":"pen"},"tags":[]}', '{"name":"ink"}']
    assert '1 keys or values could not be decoded, the first at protobuf-0, offset 2, value: the bytes' in done.stderr

def test_avro_values_of_several_schemas_are_shown_as_json(shared_broker, registry, client):
    topic = 'several'
    where = SerializationContext(topic, MessageField.VALUE)
    one, other = (AvroSerializer(client, schema) for schema in (ORDER, GROWN))
    write(shared_broker, topic, (None, one({'id': 1, 'who': 'ada\x9b', 'at': 5}, where), []),
          (None, other({'id': 2, 'price': Decimal('12.50')}, where), []), (None, None, []))
    done = consume(shared_broker, registry, topic, 3, '--value-format', 'avro')
    assert done.stdout.splitlines() == ['{"id":1,"who":{"string":"ada\\u009b"},"at":5}', '{"id":2,"price":"\\u0004â"}',
                                        'null']
    assert done.stderr == 'Processed a total of 3 messages\n'


def test_filters_see_decoded_values(shared_broker, registry, client):
    topic = 'filtered'
    order, where = AvroSerializer(client, ORDER), SerializationContext(topic, MessageField.VALUE)
    write(shared_broker, topic, *((None, order({'id': number}, where), []) for number in range(20)))
    done = consume(shared_broker, registry, topic, 2, '--value-format', 'avro', '--filter', 'value="id":1[07],')
    assert [json.loads(line)['id'] for line in done.stdout.splitlines()] == [10, 17]
    done = run_in_process('consume', '--bootstrap-server', shared_broker.address, '--topic', topic, '--last', 1,
                          '--registry', registry.url, '--value-format', 'avro', '--filter', 'value="id":3,')
    assert [json.loads(line)['id'] for line in done.stdout.splitlines()] == [3]


def test_ids_in_headers_are_read_too_and_json_has_the_decoded_key_and_value(shared_broker, registry, client):
    topic = 'headers'
    settings = {'schema.id.serializer': id_in_header}
    key_of, value_of = JSONSerializer(PAPER, client, conf=settings), AvroSerializer(client, ORDER, conf=settings)
    headers = []
    key = key_of({'id': 7}, SerializationContext(topic, MessageField.KEY, headers))
    value = value_of({'id': 1}, SerializationContext(topic, MessageField.VALUE, headers))
    write(shared_broker, topic, (key, value, headers))
    done = consume(shared_broker, registry, topic, 1, '--value-format', 'avro', '--key-format', 'json', '--json')
    row = json.loads(done.stdout)
    assert (row['key'], row['value']) == ({'id': 7}, {'id': 1, 'who': None, 'at': 0})
    assert [name for name, _ in row['headers']] == ['__key_schema_id', '__value_schema_id']


def test_values_that_cannot_be_decoded_are_shown_as_they_are_and_counted(shared_broker, registry, client):
    topic = 'undecoded'
    good = AvroSerializer(client, ORDER)({'id': 1}, SerializationContext(topic, MessageField.VALUE))
    number = registry.add('other-value', PAPER, 'JSON')
    values = (b'plain', good[:-1], good + b'x', b'\0\0\0\x03\xe7' + good[5:], b'\0' + number.to_bytes(4, 'big') + b'{}',
              good)
    write(shared_broker, topic, *((None, value, []) for value in values))
    done = consume(shared_broker, registry, topic, 6, '--value-format', 'avro', '--format', '%o %s\n')
    assert done.stdout.splitlines()[0] == '0 plain'
    assert done.stdout.splitlines()[-1] == '5 {"id":1,"who":null,"at":0}'
    assert done.stderr.splitlines() == [
        'Processed a total of 6 messages', '5 keys or values could not be decoded, the first at undecoded-0, offset 0, '
        'value: found 5 bytes that begin with 112, expected 0 and a schema id of 4 bytes']
    assert [path for method, path, _ in registry.requests].count('/schemas/ids/999') == 1


def test_a_registry_that_does_not_answer_ends_the_command(shared_broker, registry, client, tmp_path):
    topic = 'unavailable'
    write(shared_broker, topic, (None, b'\0\0\0\0\x01x', []))
    config = tmp_path / 'registry.properties'
    config.write_text('max.retries=0\n')
    done = run_in_process('consume', '--bootstrap-server', shared_broker.address, '--topic', topic, '--from-beginning',
                          '--max-messages', 1, '--value-format', 'avro', '--registry', 'http://127.0.0.1:1',
                          '--registry-config', config)
    assert (done.returncode, done.stdout) == (1, '')
    assert done.stderr.splitlines()[-1].startswith(
        'kbroker-consume: http://127.0.0.1:1/schemas/ids/1: Connection refused')


@pytest.mark.parametrize(('options', 'message'), [
    (['--value-format', 'avro'], '--value-format needs --registry URL or --registry-config FILE'),
    (['--registry', 'http://localhost'], '--registry and --registry-config need --value-format or --key-format'),
    (['--registry', 'localhost', '--key-format', 'avro'], 'found a text that is not a URL of a registry'),
    (['--registry', 'http://localhost', '--key-format', 'avro', '--formatter', 'offsets'], 'need another --formatter'),
])
@pytest.mark.parametrize('command', ['consume', 'share-consume'])
def test_options_that_do_not_go_together_are_refused(command, options, message):
    done = run_in_process(command, '--bootstrap-server', '127.0.0.1:1', '--topic', 't', *options)
    assert done.returncode in (1, 2) and message in done.stderr


# ---- writers

def test_lines_become_avro_values_that_confluents_client_reads(shared_broker, registry, client, tmp_path):
    topic, schema = 'written', tmp_path / 'order.avsc'
    schema.write_text(ORDER)
    done = produce(shared_broker, registry, topic, '--value-format', 'avro', '--value-schema', f'@{schema}',
                   stdin='{"id":1,"who":"ada"}\n{"id":2,"who":{"string":"bob"},"at":7}\n')
    assert (done.returncode, done.stderr) == (0, '')
    where = SerializationContext(topic, MessageField.VALUE)
    orders = [AvroDeserializer(client)(value, where) for _, value, _ in read(shared_broker, topic, 2)]
    assert [(order['id'], order['who'], order['at'].microsecond) for order in orders] == [(1, 'ada', 0), (2, 'bob', 7)]
    assert registry.subjects[f'{topic}-value'] == [client.get_latest_version(f'{topic}-value').schema_id]


def test_the_newest_schema_of_the_subject_is_used_and_its_id_may_be_in_a_header(shared_broker, registry, client):
    topic = 'newest'
    registry.add(f'{topic}-key', PAPER, 'JSON')
    registry.add(f'{topic}-value', ORDER)
    registry.add(f'{topic}-value', GROWN)
    done = produce(shared_broker, registry, topic, '--value-format', 'avro', '--key-format', 'json', '--schema-id-in',
                   'header', '--property', 'parse.key=true',
                   stdin='{"id": 3}\t{"id":4,"price":"\\u0000\\u0000\\u0000\\u0001"}\n')
    assert (done.returncode, done.stderr) == (0, '')
    (key, value, headers), = read(shared_broker, topic, 1)
    assert JSONDeserializer(None, schema_registry_client=client)(
        key, SerializationContext(topic, MessageField.KEY, headers)) == {'id': 3}
    order = AvroDeserializer(client)(value, SerializationContext(topic, MessageField.VALUE, headers))
    assert (order['id'], str(order['price'])) == (4, '0.01')


def test_a_line_that_does_not_fit_the_schema_is_named_and_its_transaction_is_aborted(shared_broker, registry):
    topic = 'bad-line'
    registry.add(f'{topic}-value', ORDER)
    done = produce(shared_broker, registry, topic, '--value-format', 'avro', '--transactional-id', topic,
                   stdin='{"id":1}\n{"id":"two"}\n')
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f'The open transaction of {topic} was aborted.',
        'kbroker-produce: line 2: the value does not fit the schema: id: found "two", expected long of 64 bits']
    done = run_in_process('consume', '--bootstrap-server', shared_broker.address, '--topic', topic, '--last', 1,
                          '--isolation-level', 'read_committed')
    assert done.stdout == ''


@pytest.mark.parametrize(('more', 'name', 'line', 'value'), [
    ([], 'shop.Order', '{"id":7,"item":{"name":"pen"},"tags":["a"]}', {'id': 7, 'tags': ['a']}),
    (['--value-message', 'shop.Order.Item', '--schema-id-in', 'header'], 'shop.Order.Item', '{"name":"a longer ink"}',
     {'name': 'a longer ink'}),
])
def test_lines_become_protobuf_messages_that_confluents_client_reads(shared_broker, registry, client, more, name, line,
                                                                     value):
    topic = f'written-{name}'
    # Confluent's client asks for descriptors, and this registry returns a schema as it was registered.
    schema = base64.b64encode(file_of('order.proto', PROTO).SerializeToString()).decode()
    done = produce(shared_broker, registry, topic, '--value-format', 'protobuf', '--value-schema', schema, *more,
                   stdin=line)
    assert (done.returncode, done.stderr) == (0, '')
    (_, data, headers), = read(shared_broker, topic, 1)
    found = ProtobufDeserializer(message_class(name), {'use.deprecated.format': False}, client)(
        data, SerializationContext(topic, MessageField.VALUE, headers))
    assert {field: getattr(found, field) for field in value} == value


@pytest.mark.parametrize(('line', 'problem'), [
    ('{"id":"x"}', "line 1: the value does not fit the schema: $.id: 'x' is not of type 'integer'"),
    ('{"id":', 'line 1: the value does not fit the schema: Expecting value: line 1 column 7 (char 6)'),
])
def test_a_line_is_validated_by_its_json_schema(shared_broker, registry, line, problem):
    done = produce(shared_broker, registry, 'validated', '--value-format', 'json', '--value-schema', PAPER, stdin=line)
    assert (done.returncode, done.stderr) == (1, f'kbroker-produce: {problem}\n')


def test_a_json_schema_finds_its_references_and_nothing_else(registry, connected):
    codecs = Codecs(connected)
    registry.add('id', '{"type":"integer"}', 'JSON')
    for name, problem in (('id.json', "$: 'x' is not of type 'integer'"),
                          ('other.json', 'the schema uses other.json, which is not among its references')):
        schema = Schema('json', json.dumps({'$ref': name}), (Reference('id.json', 'id', 1),))
        with pytest.raises(ValueError, match=re.escape(problem)):
            codecs.make('json', schema, ()).write(b'"x"')


@pytest.mark.parametrize(('options', 'message'), [
    (['--value-format', 'avro'], 'found no schema under the subject missing-value, expected one: give --value-schema'),
    (['--value-format', 'avro', '--value-schema', '{"type":"nope"}'], 'which is not an Avro schema'),
    (['--value-format', 'avro', '--value-schema', '@/nowhere'], '/nowhere'),
    (['--value-format', 'avro', '--key-schema', '"int"'], '--key-schema needs --key-format'),
    (['--value-format', 'avro', '--value-message', 'shop.Order'], '--value-message needs --value-format protobuf'),
    (['--value-format', 'protobuf', '--value-schema', 'message {'], 'found a text that is not a .proto file'),
    (['--value-format', 'protobuf', '--value-schema', PROTO, '--value-message', 'shop.Orders'],
     'found no message shop.Orders, expected one of shop.Order, shop.Order.Item'),
    (['--key-format', 'avro', '--key-schema', '"int"'], '--key-format needs --reader-property parse.key=true'),
])
def test_a_writer_without_a_schema_is_refused(registry, options, message):
    done = run_in_process('produce', '--bootstrap-server', '127.0.0.1:1', '--topic', 'missing', '--registry',
                          registry.url, *options)
    assert done.returncode in (1, 2) and message in done.stderr
    assert 'missing-value' not in registry.subjects
