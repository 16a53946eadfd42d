"""Values with the schema id of a registry: the data source decodes them in its tasks, also for an ingest into files.
Confluent's client writes the values."""
import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry import header_schema_id_serializer as id_in_header
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import PySparkException
from support.registry.scripted_registry import ScriptedRegistry

from kbroker_tools.commands.ingest import file_values_of
from kbroker_tools.registry.decoding import ValueSchema
from kbroker_tools.spark.failures import one_line
from kbroker_tools.spark.ingest import IngestJob
from kbroker_tools.spark.values import ValueFormat

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

LIMIT_S = 120
NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
FIELDS = [{'name': 'id', 'type': 'long'}, {'name': 'who', 'type': ['null', 'string'], 'default': None}]
ORDER = {'type': 'record', 'name': 'Order', 'fields': FIELDS}
TIME = {'type': 'long', 'logicalType': 'timestamp-micros'}
PRICE = {'type': 'bytes', 'logicalType': 'decimal', 'precision': 9, 'scale': 2}
GROWN = {**ORDER, 'fields': [*FIELDS, {'name': 'at', 'type': ['null', TIME], 'default': None},
                             {'name': 'price', 'type': ['null', PRICE], 'default': None}]}


@pytest.fixture(scope='module')
def registry():
    with ScriptedRegistry().running() as running:
        yield running


@pytest.fixture(scope='module')
def orders(shared_broker, registry):
    """A topic with values of two schemas, a value with its id in a header, a null, and two values that no schema
    fits."""
    topic = 'registry-orders'
    client = SchemaRegistryClient({'url': registry.url})
    headers = []
    one, other = (AvroSerializer(client, json.dumps(schema)) for schema in (ORDER, GROWN))
    in_header = AvroSerializer(client, json.dumps(ORDER), conf={'schema.id.serializer': id_in_header})
    where = SerializationContext(topic, MessageField.VALUE)
    values = [one({'id': 1, 'who': 'ada'}, where), other({'id': 2, 'at': NOON, 'price': Decimal('1.50')}, where),
              in_header({'id': 3}, SerializationContext(topic, MessageField.VALUE, headers)), None, b'plain',
              b'\0\0\0\x03\xe7x']
    producer = Producer({'bootstrap.servers': shared_broker.address})
    for number, value in enumerate(values):
        producer.produce(topic, value, f'{number}', headers=headers if number == 2 else None)
    assert producer.flush(LIMIT_S) == 0
    return topic


def options_of(broker, registry, topic):
    return {'kafka.bootstrap.servers': broker.address, 'subscribe': topic, 'startingOffsets': 'earliest',
            'valueFormat': 'avro', 'schema.registry.url': registry.url}


def test_values_are_decoded_by_the_newest_schema(spark, shared_broker, registry, orders):
    frame = spark.read.format('kbroker').options(**options_of(shared_broker, registry, orders)).load()
    assert frame.schema['value'].dataType.simpleString() == (
        'struct<id:bigint,who:string,at:timestamp,price:decimal(9,2)>')
    rows = frame.orderBy('offset').selectExpr('value.id', 'value.who', 'value.at', 'value.price', 'value IS NULL',
                                              'value_undecoded').collect()
    assert [tuple(row) for row in rows] == [
        (1, 'ada', None, None, False, None),
        (2, None, NOON.replace(tzinfo=None), Decimal('1.50'), False, None), (3, None, None, None, False, None),
        (None, None, None, None, True, None), (None, None, None, None, True, b'plain'),
        (None, None, None, None, True, b'\0\0\0\x03\xe7x')]


def test_the_columns_are_fixed_when_the_query_is_planned(spark, shared_broker, registry, orders):
    """A schema that is registered later has no effect. A query may also name the schema to read by."""
    options = options_of(shared_broker, registry, orders)
    planned = spark.read.format('kbroker').options(**options).load()
    fixed = spark.read.format('kbroker').options(**options, valueReaderSchema=json.dumps(ORDER)).load()
    registry.add(f'{orders}-value', json.dumps({**GROWN, 'fields': [*GROWN['fields'], {
        'name': 'more', 'type': 'int', 'default': 7}]}))
    newest = spark.read.format('kbroker').options(**options).load()
    assert [frame.schema['value'].dataType.names for frame in (planned, fixed, newest)] == [
        ['id', 'who', 'at', 'price'], ['id', 'who'], ['id', 'who', 'at', 'price', 'more']]
    assert planned.selectExpr('sum(value.id)').first()[0] == 6
    assert newest.where('value IS NOT NULL').selectExpr('sum(value.more)').first()[0] == 21


def test_a_stream_decodes_values_and_names_columns_of_its_own(spark, shared_broker, registry, orders, tmp_path):
    query = (spark.readStream.format('kbroker').options(**options_of(shared_broker, registry, orders))
             .option('valueReaderSchema', json.dumps(ORDER))
             .schema('value_undecoded binary, offset bigint, value struct<id: bigint, who: string>').load()
             .writeStream.format('parquet').option('checkpointLocation', str(tmp_path / 'checkpoint'))
             .trigger(availableNow=True).start(str(tmp_path / 'rows')))
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / 'rows')).orderBy('offset').collect()
    assert [(row.offset, row.value and row.value.id, row.value_undecoded) for row in rows] == [
        (0, 1, None), (1, 2, None), (2, 3, None), (3, None, None), (4, None, b'plain'), (5, None, b'\0\0\0\x03\xe7x')]


def test_a_plan_does_not_show_the_login_at_the_registry(spark, shared_broker, registry, orders):
    frame = spark.read.format('kbroker').options(**options_of(shared_broker, registry, orders)).option(
        'schema.registry.basic.auth.user.info', 'reader:secret').load()
    plan = spark._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), 'extended')
    assert 'kbroker' in plan and 'secret' not in plan
    assert frame.where('value IS NOT NULL').count() == 3
    assert registry.requests[-1][2]['Authorization'] == 'Basic cmVhZGVyOnNlY3JldA=='


@pytest.mark.parametrize(('options', 'message'), [
    ({'valueFormat': 'xml'}, "option valueFormat: found 'xml', expected json or avro or protobuf"),
    ({'valueFormat': None}, 'option schema.registry.url: valueFormat is missing; give one of json, avro, protobuf'),
    ({'schema.registry.url': 'localhost'}, 'schema.registry.url: found a text that is not a URL of a registry'),
    ({'schema.registry.usr': 'x'}, 'usr: the client of a schema registry does not have this setting'),
    ({'valueReaderSchema': '{'}, 'which is not an Avro schema'),
    ({'subscribe': 'nowhere'}, 'found no subject nowhere-value'),
    ({'table': 'batches'}, 'option valueFormat: not allowed with table=batches, which has no values'),
])
def test_a_wrong_option_is_named_in_one_line(spark, shared_broker, registry, orders, options, message):
    given = {name: text for name, text in (options_of(shared_broker, registry, orders) | options).items()
             if text is not None}
    with pytest.raises(PySparkException) as raised:
        spark.read.format('kbroker').options(**given).load()
    line = one_line(raised.value)
    assert message in line and '\n' not in line and 'Traceback' not in str(raised.value)


def test_the_command_leaves_only_values_without_a_schema_id_to_spark(tmp_path):
    config = tmp_path / 'registry.properties'
    config.write_text('schema.registry.url=http://localhost:8081\n')
    given = {'value_format': 'avro', 'registry_config': config}
    assert file_values_of({**given, 'value_schema': 'registry:#orders'}) == ValueSchema(
        'avro', 'registry:#orders', {'schema.registry.url': 'http://localhost:8081'})
    assert file_values_of({**given, 'value_schema': '"int"'}) == ValueFormat('avro', '"int"')


def test_an_ingest_into_files_reads_every_run_by_the_schema_of_the_first(spark, shared_broker, registry, tmp_path):
    topic, name = 'registry-ingest', 'registry-ingest-value'
    client = SchemaRegistryClient({'url': registry.url})
    where = SerializationContext(topic, MessageField.VALUE)
    job = IngestJob(shared_broker.address, [topic], tmp_path / 'to', tmp_path / 'state', values=ValueSchema(
        'avro', 'registry:', {'schema.registry.url': registry.url, 'basic.auth.user.info': 'reader:secret'}))
    sizes = []
    for schema, order in ((ORDER, {'id': 1, 'who': 'ada'}), (GROWN, {'id': 2, 'price': Decimal('1.50')})):
        value = AvroSerializer(client, json.dumps(schema))(order, where)
        producer = Producer({'bootstrap.servers': shared_broker.address})
        for each in (value, b'plain'):
            producer.produce(topic, each, b'key', partition=0)
        assert producer.flush(LIMIT_S) == 0
        run = job.run(spark)
        assert (run.rows, run.undecoded) == (2, 1)
        sizes.append(run.size_bytes == len(value) + 5 + 2 * 3)
    assert sizes == [True, True] and len(registry.subjects[name]) == 2
    rows = spark.read.parquet(str(tmp_path / 'to')).orderBy('offset')
    assert 'valueBytes' not in rows.columns
    assert [(row.value and tuple(row.value), row.value_undecoded) for row in rows.collect()] == [
        ((1, 'ada'), None), (None, b'plain'), ((2, None), None), (None, b'plain')]
    assert not any(b'secret' in path.read_bytes() for path in tmp_path.rglob('*') if path.is_file())
