"""Protobuf values in an ingest, read by Spark's own package, whose jars KBROKER_SPARK_PROTOBUF_JAR names.

Messages and their descriptor are built here field by field, so the tests need no Protobuf package for Python.
"""
import itertools
import os

import pytest
from support.spark.ingest_topics import Writer, create_topic

from kbroker_tools.spark.ingest import IngestJob
from kbroker_tools.spark.ledger import IngestError
from kbroker_tools.spark.values import ValueFormat

pytestmark = [pytest.mark.jvm, pytest.mark.skipif(
    'KBROKER_SPARK_PROTOBUF_JAR' not in os.environ,
    reason='KBROKER_SPARK_PROTOBUF_JAR: found none, expected jars of spark-protobuf and protobuf-java, with a comma')]

INT32, INT64, UINT32, UINT64, STRING, MESSAGE = 5, 3, 13, 4, 9, 11  # the numbers are those of descriptor.proto
REPEATED = 3


def varint(number):
    low, number = number & 0x7f, number >> 7
    return bytes([low]) if not number else bytes([low | 0x80]) + varint(number)


def message(*fields):
    """Encode fields of (number, value): integers as varints, everything else with its length."""
    parts = []
    for number, value in fields:
        data = value.encode() if isinstance(value, str) else value
        parts.append(varint(number << 3) + varint(value) if isinstance(value, int)
                     else varint(number << 3 | 2) + varint(len(data)) + data)
    return b''.join(parts)


def descriptor_set(messages):
    """Return the FileDescriptorSet of a proto3 file `shop`: {message: [(field, type[, label or type name])]}."""
    described = [message((1, name), *((2, message(
        (1, field), (3, number), (4, more[0] if more and more[0] == REPEATED else 1), (5, kind),
        *((6, more[0]) for _ in more if kind == MESSAGE)))
        for number, (field, kind, *more) in enumerate(fields, 1))) for name, fields in messages.items()]
    return message((1, message((1, 'shop.proto'), (2, 'shop'), *((4, each) for each in described), (12, 'proto3'))))


@pytest.fixture(scope='module')
def descriptors(tmp_path_factory):
    path = tmp_path_factory.mktemp('protobuf') / 'shop.desc'
    path.write_bytes(descriptor_set({
        'Item': [('id', INT64), ('text', STRING)],
        'Order': [('id', INT64), ('name', STRING), ('item', MESSAGE, '.shop.Item'), ('numbers', INT32, REPEATED),
                  ('large', UINT64), ('small', UINT32)],
        'Tree': [('id', INT64), ('next', MESSAGE, '.shop.Tree')]}))
    return path


@pytest.fixture(scope='module')
def writer(shared_broker):
    return Writer(shared_broker.address, 'protobuf')


NUMBERS = itertools.count()


def ingest(spark, broker, topic, work, schema):
    number = next(NUMBERS)
    job = IngestJob(broker.address, [topic], work / f'to{number}', work / f'state{number}',
                    values=ValueFormat('protobuf', schema))
    result = job.run(spark)
    rows = spark.read.parquet(str(work / f'to{number}')).orderBy('offset').collect()
    return result, rows


ORDER = message((1, 42), (2, 'a'), (3, message((1, 7))), (4, b'\x01\x02'), (5, 2**64 - 1), (6, 2**32 - 1))
EMPTY = {'id': None, 'name': None, 'item': None, 'numbers': [], 'large': None, 'small': None}
GOOD = {
    'every field, unsigned numbers as such': (ORDER, {
        'id': 42, 'name': 'a', 'item': {'id': 7, 'text': None}, 'numbers': [1, 2], 'large': 2**64 - 1,
        'small': 2**32 - 1}),
    'fields that the schema does not know beside one that it knows': (message((1, 1), (15, 5), (16, 'x')),
                                                                      {**EMPTY, 'id': 1}),
    'a message of no field': (b'', EMPTY),
    'a message within that has none': (message((3, b'')), {**EMPTY, 'item': {'id': None, 'text': None}}),
    'only a list': (message((4, b'\x07')), {**EMPTY, 'numbers': [7]}),
    'cut between two fields': (ORDER[:2], {**EMPTY, 'id': 42}),
}
BAD = {
    'cut within a field': ORDER[:-1],
    'cut within the message within': message((3, b'\x08')),
    'a byte behind the end': ORDER + b'\x00',
    'a prefix of a schema registry': b'\x00\x00\x00\x00\x07\x00' + ORDER,
    'another type under a number that is known': message((1, 'a')),
    'a text that is no UTF-8': message((2, b'\xff\xfe')),
    'no field that is known': message((15, 5)),
    'JSON': b'{"id": 42}',
    'noise': b'\xff\xff\xff',
}


def test_values_that_are_no_message_of_the_type_are_kept_as_they_are(spark, shared_broker, writer, descriptors,
                                                                     tmp_path):
    """Two earlier errors: unsigned numbers were negative, and a message of another type could count as read, which lost
    its bytes. The second error occurred with types that have a list or a map, because Spark returns an empty list or
    map instead of null.
    """
    topic = create_topic(shared_broker.address, 1)
    for value in [*(value for value, _ in GOOD.values()), *BAD.values()]:
        writer.write(topic, 1, partitions=1, value=value)
    result, rows = ingest(spark, shared_broker, topic, tmp_path, f'{descriptors}:shop.Order')
    assert (result.rows, result.undecoded) == (len(GOOD) + len(BAD), len(BAD))
    found = {name: (row.value and row.value.asDict(True), row.value_undecoded and bytes(row.value_undecoded))
             for name, row in zip([*GOOD, *BAD], rows, strict=True)}
    assert found == {**{name: (row, None) for name, (_, row) in GOOD.items()},
                     **{name: (None, value) for name, value in BAD.items()}}


def test_a_record_without_a_value_has_no_message(spark, shared_broker, writer, descriptors, tmp_path):
    topic = create_topic(shared_broker.address, 1)
    writer.producer.begin_transaction()
    writer.producer.produce(topic, None, key='gone', partition=0)
    writer.producer.commit_transaction()
    result, rows = ingest(spark, shared_broker, topic, tmp_path, f'{descriptors}:shop.Order')
    assert result.undecoded == 0
    assert [(row.value, row.value_undecoded) for row in rows] == [(None, None)]


@pytest.mark.parametrize(('name', 'words'), [
    ('shop.Nothing', 'Unable to locate Message shop.Nothing'),
    ('shop.Tree', 'Found recursive reference in Protobuf schema'),
])
def test_a_message_that_cannot_be_a_type_is_said(spark, shared_broker, writer, descriptors, tmp_path, name, words):
    topic = create_topic(shared_broker.address, 1)
    writer.write(topic, 1, partitions=1)
    with pytest.raises(IngestError, match=f'--value-schema: found a schema .* protobuf values: {words}'):
        ingest(spark, shared_broker, topic, tmp_path, f'{descriptors}:{name}')


def test_a_file_that_holds_no_descriptors_is_said(spark, shared_broker, writer, tmp_path):
    topic = create_topic(shared_broker.address, 1)
    writer.write(topic, 1, partitions=1)
    with pytest.raises(IngestError, match=r'--value-schema: found a schema .* protobuf values: Error parsing'):
        ingest(spark, shared_broker, topic, tmp_path, f'{__file__}:shop.Order')
