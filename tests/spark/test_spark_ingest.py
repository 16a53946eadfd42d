"""`IngestJob` in one Spark session, compared with a read_committed consumer."""
import json
import os

import pyarrow.parquet
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from spark_rows import LogFiles
from support.runner import pages
from support.spark.ingest_topics import (
    Writer,
    add_partitions,
    consumed,
    create_topic,
    delete_records,
    delete_topic,
    ingested,
    progress_of,
)

from kbroker_tools.spark.failures import one_line
from kbroker_tools.spark.ingest import CODECS, IngestJob, Written
from kbroker_tools.spark.ledger import IngestError
from kbroker_tools.spark.options import OptionError
from kbroker_tools.spark.values import ValueFormat, has_a_field

pytestmark = pytest.mark.jvm


@pytest.fixture(scope='module')
def writer(shared_broker):
    return Writer(shared_broker.address, 'ingest')


@pytest.fixture(scope='module')
def other_writer(shared_broker):
    return Writer(shared_broker.address, 'ingest-other')


@pytest.fixture(params=['broker', 'directory'])
def source(request, shared_broker):
    """Return the source of the log: the address of the broker, or its directory."""
    return shared_broker.address if request.param == 'broker' else str(shared_broker.directory)


class Ingest:
    def __init__(self, spark, root, source, topic, **more):
        self.spark, self.to, self.state = spark, root / 'to', root / 'state'
        self.job = IngestJob(source, [topic], self.to, self.state, **more)

    def run(self):
        return self.job.run(self.spark)

    @property
    def rows(self):
        return ingested(self.to)


def test_each_committed_row_is_there_once_run_after_run(spark, shared_broker, writer, other_writer, source, tmp_path):
    topic = create_topic(shared_broker.address)
    ingest = Ingest(spark, tmp_path, source, topic)
    writer.write(topic, 50)
    writer.write(topic, 30, 'abort')
    first = ingest.run()
    assert (first.run, first.rows, first.lag) == (1, 50, 0)
    # Offsets without a row: 30 aborted records, and the markers of each transaction in each partition.
    assert first.skipped_offsets == 34
    assert (first.aborted_transactions, first.lost_offsets) == (2, 0)  # one in each partition

    other_writer.write(topic, 10, None)
    writer.write(topic, 20)
    assert ingest.run().run is None  # all of it is above the open transaction
    assert ingest.run().run is None
    other_writer.end('commit')
    second = ingest.run()
    assert (second.rows, second.aborted_transactions) == (30, 0)
    assert ingest.run().run is None
    assert ingest.rows == consumed(shared_broker.address, topic)
    assert len(ingest.rows) == 80


def test_broker_and_directory_are_one_source_when_the_cluster_is_one(spark, shared_broker, writer, tmp_path):
    topic = create_topic(shared_broker.address)
    writer.write(topic, 10)
    Ingest(spark, tmp_path, shared_broker.address, topic).run()
    writer.write(topic, 10)
    ingest = Ingest(spark, tmp_path, str(shared_broker.directory), topic)
    assert ingest.run().rows == 10
    assert ingest.rows == consumed(shared_broker.address, topic)


def test_partitions_that_are_added_are_read_from_their_start(spark, shared_broker, writer, tmp_path):
    topic = create_topic(shared_broker.address, 1)
    ingest = Ingest(spark, tmp_path, shared_broker.address, topic)
    writer.write(topic, 10, partitions=1)
    ingest.run()
    add_partitions(shared_broker.address, topic, 3)
    Writer(shared_broker.address, 'ingest-grown').write(topic, 30, partitions=3)
    assert ingest.run().rows == 30
    assert ingest.rows == consumed(shared_broker.address, topic)


@pytest.mark.parametrize(('kind', 'codec'), [(kind, codec) for kind in CODECS
                                              for codec in CODECS[kind]])
def test_files_are_written_with_each_codec_of_their_format(spark, tmp_path, kind, codec):
    """The default codec of Parquet once could not be changed. Where the snappy library cannot be loaded, no row was
    ever written."""
    files = LogFiles(tmp_path / 'log', 'coded')
    files.write(*(['the same value'] * 200))
    files.flush()
    ingest = Ingest(spark, tmp_path, str(tmp_path / 'log'), 'coded', format=kind, compression=codec)
    assert ingest.run().rows == 200
    assert spark.read.format(kind).load(str(ingest.to)).count() == 200
    if kind == 'parquet':
        (path,) = ingest.to.glob('run=*/*.parquet')
        column = pyarrow.parquet.read_metadata(path).row_group(0).column(0)
        assert column.compression == {'none': 'UNCOMPRESSED', 'lz4_raw': 'LZ4'}.get(codec, codec.upper())


@pytest.mark.parametrize(('kind', 'codec', 'text'), [
    ('parquet', 'bzip2', "--compression: found 'bzip2', expected one for parquet files: none, snappy, gzip, lz4_raw"),
    ('avro', 'zstd', "--compression: found 'zstd', expected one for avro files: none, bzip2, deflate, snappy")])
def test_a_codec_that_the_format_lacks_is_refused_before_anything_is_read(spark, tmp_path, kind, codec, text):
    with pytest.raises(IngestError, match=text):
        Ingest(spark, tmp_path, str(tmp_path), 'topic', format=kind, compression=codec).run()


def test_records_lost_to_retention_are_reported_and_skipped_only_on_request(spark, shared_broker, writer, tmp_path):
    topic = create_topic(shared_broker.address, 1)
    writer.write(topic, 10, partitions=1)
    Ingest(spark, tmp_path, shared_broker.address, topic).run()
    writer.write(topic, 10, partitions=1)
    delete_records(shared_broker.address, topic, 0, 15)
    with pytest.raises(IngestError, match=f'{topic}-0: the next offset to ingest is 11, but retention moved '
                                          'the log start to 15'):
        Ingest(spark, tmp_path, shared_broker.address, topic).run()
    ingest = Ingest(spark, tmp_path, shared_broker.address, topic, options={'failOnDataLoss': 'false'})
    result = ingest.run()
    assert (result.rows, result.lost_offsets, result.skipped_offsets) == (6, 4, 1)
    assert result.losses == [f'{topic}-0: the log starts at offset 15; lost are records among the 4 offsets 11 to 14']
    assert [offset for _, offset, _, _ in ingest.rows] == [*range(10), *range(15, 21)]


@pytest.mark.parametrize('records', [5, 40])
def test_a_recreated_topic_is_another_topic(spark, shared_broker, writer, source, tmp_path, records):
    """The new topic is shorter, or longer, than the part of the old one that was read."""
    topic = create_topic(shared_broker.address, 1)
    writer.write(topic, 20, partitions=1)
    ingest = Ingest(spark, tmp_path, source, topic)
    ingest.run()
    before = ingest.rows
    delete_topic(shared_broker.address, topic)
    create_topic(shared_broker.address, 1, topic)
    fresh = Writer(shared_broker.address, f'fresh-{tmp_path.name}')
    fresh.write(topic, records, partitions=1)
    with pytest.raises(IngestError, match=f'topic {topic} was recreated'):
        ingest.run()
    assert ingest.rows == before


def test_a_run_that_fails_leaves_everything_as_it_was(spark, shared_broker, writer, tmp_path, monkeypatch):
    topic = create_topic(shared_broker.address)
    writer.write(topic, 10)
    ingest = Ingest(spark, tmp_path, shared_broker.address, topic)
    ingest.run()
    before = (ingest.rows, progress_of(ingest.state))
    writer.write(topic, 10)
    with monkeypatch.context() as patch:
        # The patch simulates executors that write into a directory of the same name on another machine, so no file is
        # visible here.
        patch.setattr('kbroker_tools.spark.ingest.IngestJob._write', lambda self, *_: Written(10, 0, None))
        with pytest.raises(IngestError, match='found 0 rows in 0 files, and the tasks wrote 10'):
            ingest.run()
    assert (ingest.rows, progress_of(ingest.state)) == before
    assert not list(ingest.to.glob('_staging-*'))
    assert ingest.run().rows == 10
    assert ingest.rows == consumed(shared_broker.address, topic)


def test_directories_by_topic_and_date_and_files_of_few_rows(spark, shared_broker, writer, tmp_path):
    topic = create_topic(shared_broker.address)
    writer.write(topic, 40)
    ingest = Ingest(spark, tmp_path, shared_broker.address, topic, partition_by=['topic', 'partition', 'date'],
                    max_rows_per_file=7)
    ingest.run()
    (ingest.to / '_staging-000002-abandoned').mkdir()
    read = spark.read.parquet(str(ingest.to))
    assert read.columns[-4:] == ['run', 'topic', 'partition', 'date']
    assert sorted((row.partition, row.offset, bytes(row.key), bytes(row.value)) for row in read.collect()) == consumed(
        shared_broker.address, topic)
    files = list(ingest.to.glob('run=000001/topic=*/partition=*/date=*/*.parquet'))
    assert len(files) == 6  # for the twenty rows of each partition three files of at most seven rows


def test_values_that_are_no_json_of_the_schema_are_kept_as_they_are(spark, shared_broker, writer, tmp_path):
    topic = create_topic(shared_broker.address, 1)
    good = ['{"id": 1, "name": "a"}', ' {"name": "b", "more": true}', '{}', '{"id": 4} rest']
    bad = ['{"id": "one", "name": "c"}', '[{"id": 1}]', '{"id": 1', 'null', '7', '', b'\xff\xfe']
    for value in [*good, *bad]:
        writer.write(topic, 1, partitions=1, value=value)
    ingest = Ingest(spark, tmp_path, shared_broker.address, topic,
                    values=ValueFormat('json', 'id bigint, name string'))
    assert ingest.run().rows == 11
    rows = spark.read.parquet(str(ingest.to)).orderBy('offset').collect()
    assert [row.value and tuple(row.value) for row in rows] == [(1, 'a'), (None, 'b'), (None, None), (4, None),
                                                               *[None] * 7]
    assert [row.value_undecoded and bytes(row.value_undecoded) for row in rows[:4]] == [None] * 4
    assert [bytes(row.value_undecoded) for row in rows[4:]] == [
        value if isinstance(value, bytes) else value.encode() for value in bad]


AVRO = '''{"type": "record", "name": "R", "fields": [
    {"name": "id", "type": ["null", "long"]},
    {"name": "next", "type": ["null", {"type": "record", "name": "N", "fields": [
        {"name": "id", "type": ["null", "long"]}, {"name": "more", "type": ["null", "int"]}]}]}]}'''


def test_values_that_are_no_avro_of_the_schema_are_kept_as_they_are(spark, shared_broker, writer, tmp_path):
    """Spark's from_avro alone returns a row of nulls for unreadable bytes, and ignores bytes after the datum."""
    topic = create_topic(shared_broker.address, 1)
    good = [b'\x02\x54\x00', b'\x00\x00', b'\x00\x02\x02\x0e\x00']
    with_registry_prefix = b'\x00\x00\x00\x00\x07' + good[0]
    bad = [b'\x02\x54', good[0] + b'\x00', with_registry_prefix, b'\x08\x00', b'', b'{"id": 42}']
    for value in [*good, *bad]:
        writer.write(topic, 1, partitions=1, value=value)
    ingest = Ingest(spark, tmp_path, shared_broker.address, topic, format='avro', values=ValueFormat('avro', AVRO))
    result = ingest.run()
    assert (result.rows, result.undecoded) == (9, 6)
    rows = spark.read.format('avro').load(str(ingest.to)).orderBy('offset').collect()
    assert [row.value and row.value.asDict(True) for row in rows] == [
        {'id': 42, 'next': None}, {'id': None, 'next': None}, {'id': None, 'next': {'id': 7, 'more': None}},
        *[None] * 6]
    assert [row.value_undecoded and bytes(row.value_undecoded) for row in rows] == [None] * 3 + bad


def test_avro_of_one_plain_value(spark, shared_broker, writer, tmp_path):
    topic = create_topic(shared_broker.address, 1)
    for value in (b'\x02a', b'\x02', b''):
        writer.write(topic, 1, partitions=1, value=value)
    ingest = Ingest(spark, tmp_path, shared_broker.address, topic, values=ValueFormat('avro', '"string"'))
    assert ingest.run().undecoded == 2
    rows = spark.read.parquet(str(ingest.to)).orderBy('offset').collect()
    assert [row.value for row in rows] == ['a', None, None]


def test_a_struct_without_any_field_is_distinguished_from_one_with_fields(spark):
    """If the struct has no field, the Protobuf message counts as unreadable. For an unreadable message, or a message of
    another type, Spark returns a row of nulls with empty lists and maps. Empty lists and maps once counted as fields.
    """
    frame = spark.createDataFrame(
        [(1, None, None, None), (None, 'a', [], {}), (None, None, [1], None), (None, None, None, {1: 1}),
         (None, None, [], {}), (None, None, None, None)], 'id int, name string, list array<int>, map map<int,int>')
    struct = f.struct('id', 'name', 'list', 'map')
    assert [row[0] for row in frame.select(has_a_field(frame, struct)).collect()] == [True] * 4 + [False] * 2


@pytest.mark.parametrize(('values', 'words'), [
    (ValueFormat('json', 'id bigint,'), "--value-schema: found 'id bigint,', which is not a schema"),
    (ValueFormat('avro', 'id long'), "--value-schema: found 'id long', which is not JSON, expected an Avro schema"),
    (ValueFormat('avro', '{"type":"recrd"}'), '--value-schema: found a schema by which Spark cannot read avro '
                                              'values: '),
    (ValueFormat('avro', '{"type":"record","name":"R","fields":[{"name":"id","type":"Other"}]}'),
     'avro values: .*Other'),
    pytest.param(ValueFormat('protobuf', __file__ + ':a.B'), 'need a Spark package that is missing: give --conf '
                 r'spark\.jars\.packages=org\.apache\.spark:spark-protobuf_2\.13:', marks=pytest.mark.skipif(
                     'KBROKER_SPARK_PROTOBUF_JAR' in os.environ, reason='the package is there')),
    (ValueFormat('protobuf', 'B'), "found 'B', expected DESCRIPTOR-FILE"),
])
def test_a_schema_that_cannot_be_used_is_said(spark, shared_broker, writer, tmp_path, values, words, capfd):
    topic = create_topic(shared_broker.address, 1)
    writer.write(topic, 1, partitions=1)
    ingest = Ingest(spark, tmp_path, shared_broker.address, topic, values=values)
    with pytest.raises(IngestError, match=words):
        ingest.run()
    assert capfd.readouterr().out == ''


@pytest.mark.parametrize(('more', 'words'), [
    ({'options': {'startingOffsets': 'latest'}}, 'option startingOffsets: an ingest sets it itself'),
    ({'options': {'PATH': '/data'}}, 'option PATH: an ingest sets it itself'),
    ({'options': {'valueformat': 'avro'}}, 'option valueformat: an ingest sets it itself, from --value-format'),
    ({'options': {'schema.registry.url': 'http://x'}}, 'option schema.registry.url: an ingest sets it itself, from'),
    ({'options': {'isolatoin': 'x'}}, 'no such option, did you mean isolation'),
    ({'partition_by': ['day']}, "found 'day', expected some of date, key, value, topic"),
])
def test_what_cannot_be_asked_for_is_refused_before_anything_is_touched(tmp_path, more, words):
    job = IngestJob('broker:9092', ['t'], tmp_path / 'to', tmp_path / 'state', **more)
    with pytest.raises((IngestError, OptionError), match=words):
        job.run(None)
    assert not list(tmp_path.iterdir())


def test_the_facts_of_a_run_lie_with_it(spark, shared_broker, writer, tmp_path):
    topic = create_topic(shared_broker.address, 1)
    writer.write(topic, 3, partitions=1, value='12345')
    ingest = Ingest(spark, tmp_path, shared_broker.address, topic)
    result = ingest.run()
    facts = json.loads((ingest.to / 'run=000001' / '_ingest.json').read_text())
    assert facts['offsets'] == {topic: {'0': 4}} == progress_of(ingest.state)['offsets']
    assert (facts['rows'], facts['size_bytes']) == (result.rows, result.size_bytes) == (3, 18)


def test_damage_that_a_task_meets_is_said_in_one_line(spark, broker, tmp_path):
    topic = create_topic(broker.address, 1)
    Writer(broker.address, 'damage').write(topic, 10, partitions=1)
    broker.stop()
    path = broker.directory / f'{topic}-0' / '00000000000000000000.log'
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    ingest = Ingest(spark, tmp_path, str(broker.directory), topic)
    with pytest.raises(PySparkException) as caught:
        ingest.run()
    words = one_line(caught.value)
    assert words.startswith(f'{path}, position 0: ')
    assert 'nspect it with kbroker-dump-log, or read with failOnDataLoss=false' in words
    assert '\n' not in words
    assert ingest.rows == []
    assert progress_of(ingest.state)['run'] == 0
    assert not list(ingest.to.glob('_staging-*'))


def test_the_queries_of_the_page_of_spark_find_what_they_should(spark, broker, tmp_path, capsys):
    # Blocks that write, and those that need a registry, are tested with the sink and with the registry.
    *blocks, skipped = (block for block in pages.blocks('docs/spark.md', 'py')
                        if not any(word in block for word in ('writeStream', '.write.format', 'valueFormat')))
    assert len(blocks) == 3
    create_topic(broker.address, 1, 'orders')
    writer = Writer(broker.address, 'page')
    writer.write('orders', 5, partitions=1)
    writer.write('orders', 5, None, partitions=1)
    found = {'spark': spark}
    for block in blocks:
        exec(block.replace('/var/lib/kbroker', str(broker.directory)), found)
    assert [row['count'] for row in found['per_day'].collect()] == [5]
    assert found['late'].where('timestamp is not null').count() == 5
    assert found['hanging'].collect() == []  # it is open, and its coordinator has its row
    found['known'] = found['known'].where('false')
    exec(blocks[1].split('\n\n')[1].partition('\n')[2].replace('/var/lib/kbroker', str(broker.directory)), found)
    assert [(row.topic, row.transaction_first_offset) for row in found['hanging'].collect()] == [('orders', 6)]

    skipped_to = tmp_path / 'told'
    writer.end('abort')
    delete_records(broker.address, 'orders', 0, 2)
    frame = spark.read.format('kbroker').options(**{
        'kafka.bootstrap.servers': broker.address, 'skippedTo': str(skipped_to), 'failOnDataLoss': 'false',
        'startingOffsets': '{"orders":{"0":1}}'}, subscribe='orders').load()
    assert frame.count() == 3
    exec(skipped.replace('/shared/skipped', str(skipped_to)), found)
    assert capsys.readouterr().out.splitlines()[3] == f'|{1:>17}|{1:>25}|'
