"""kbroker-produce and kbroker-consume with Apicurio Registry: what the one writes, the other and Confluent's client
read."""
import json
import subprocess

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass
from support.registry.apicurio import ApicurioProcess
from support.runner.command_runner import ROOT, command_line, run_in_process

from kbroker.client import Consumer
from kbroker_tools.registry.proto_files import descriptor_of, files_of

pytestmark = [pytest.mark.jvm, pytest.mark.soak]

LIMIT_S = 120
AVRO = json.dumps({'type': 'record', 'name': 'Order', 'fields': [{'name': 'id', 'type': 'long'},
                                                                 {'name': 'who', 'type': ['null', 'string']}]})
PROTO = 'syntax = "proto3"; package shop; message Order { int64 id = 1; string who = 2; }'
JSON = json.dumps({'type': 'object', 'properties': {'id': {'type': 'integer'}, 'who': {'type': 'string'}}})
SHOWN = {'avro': '{"id":1,"who":{"string":"ada"}}', 'protobuf': '{"id":"1","who":"ada"}',
         'json': '{"id":1,"who":"ada"}'}


@pytest.fixture(scope='module')
def apicurio():
    with ApicurioProcess() as process:
        yield process


@pytest.mark.parametrize(('kind', 'schema'), [('avro', AVRO), ('protobuf', PROTO), ('json', JSON)])
def test_a_value_goes_through_a_real_registry(shared_broker, apicurio, kind, schema):
    client = SchemaRegistryClient({'url': apicurio.url})
    read = {'avro': lambda: AvroDeserializer(client),
            'protobuf': lambda: ProtobufDeserializer(GetMessageClass(descriptor_of(files_of(PROTO, {}), 'shop.Order')),
                                                     {'use.deprecated.format': False}),
            'json': lambda: JSONDeserializer(JSON)}[kind]()
    where = ['--bootstrap-server', shared_broker.address, '--topic', kind, '--registry', apicurio.url,
             '--value-format', kind]
    for more in (['--value-schema', schema], []):
        done = subprocess.run(command_line('produce', *where, *more), input='{"id":1,"who":"ada"}\n', text=True,
                              capture_output=True, timeout=LIMIT_S, check=False, cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, '')
    done = run_in_process('consume', *where, '--from-beginning', '--max-messages', 2)
    assert done.stdout.splitlines() == [SHOWN[kind]] * 2
    with Consumer(shared_broker.address, auto_offset_reset='earliest') as consumer:
        consumer.assign([(kind, 0)])
        while not (batches := consumer.poll(1000)):
            pass
    found = read(batches[0].records()[0].value, SerializationContext(kind, MessageField.VALUE))
    assert (found if isinstance(found, dict) else {'id': found.id, 'who': found.who}) == {'id': 1, 'who': 'ada'}
