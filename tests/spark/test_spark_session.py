"""The data source inside Spark: lookup by name, planning, streams and restarts."""
import json
import re
import shutil
import sys
from collections import Counter

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType
from spark_rows import LogFiles, damage, rows

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.producer import Producer
from kbroker.client.stream_settings import ProducerSettings
from kbroker_tools.spark import KafkaLogDataSource
from kbroker_tools.spark import startup as spark_startup
from kbroker_tools.spark.skipped import Skipped

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

KAFKA_SCHEMA = ('struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,'
                'timestampType:int')


def read(spark, **options):
    return spark.read.format('kbroker').options(**options)


def values_of(frame):
    return [bytes(row.value).decode() for row in frame.select('value', 'offset').orderBy('offset').collect()]


@pytest.fixture
def twenty(log):
    for number in range(20):
        log.write(str(number), headers=[('h', b'x')])
    return log.flush()


def test_the_schema_is_that_of_spark_s_own_connector(spark, twenty):
    path = str(twenty.path)
    assert read(spark).load(path).schema.simpleString() == f'{KAFKA_SCHEMA}>'
    assert read(spark, includeHeaders='true').load(path).schema.simpleString() == (
        f'{KAFKA_SCHEMA},headers:array<struct<key:string,value:binary>>>')
    wide = read(spark, includeTransactions='true').load(path)
    assert wide.columns[-8:] == ['producer_id', 'producer_epoch', 'sequence', 'is_transactional', 'outcome',
                                 'leader_epoch', 'compression', 'batch_base_offset']
    assert wide.where('is_transactional').count() == 0


def test_every_column_through_spark_is_what_the_worker_gave(spark, twenty):
    options = {'path': str(twenty.path), 'includeHeaders': 'true', 'includeTransactions': 'true'}
    twenty.write('', None, key=None, producer_id=3, codec=4)
    twenty.end(3)
    twenty.flush()
    found = read(spark, **options).load().orderBy('offset').toArrow().to_pylist()
    assert found == rows(**options) and len(found) == 22


def test_a_narrower_schema_and_sql(spark, twenty):
    assert read(spark).schema('value binary').load(str(twenty.path)).count() == 20
    assert read(spark).schema('offset bigint, headers array<struct<key:string,value:binary>>').load(
        str(twenty.path)).agg({'offset': 'sum'}).first()[0] == 190
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW log USING kbroker OPTIONS (path '{twenty.path}')")
    assert spark.sql('SELECT max(offset) FROM log').first()[0] == 19


def test_two_filters_on_one_frame_do_not_meet(spark, twenty):
    """With pushFilters, Spark 4.3.0 would reuse the plan of the first filter for the second filter. This test would
    detect that."""
    for pushdown in ('true', 'false'):
        spark.conf.set('spark.sql.python.filterPushdown.enabled', pushdown)
        try:
            frame = read(spark).load(str(twenty.path))
            assert [frame.where('offset > 12').count(), frame.count()] == [7, 20]
            assert frame.where('offset > 12').union(frame.where('offset > 3')).count() == 23
        finally:
            spark.conf.unset('spark.sql.python.filterPushdown.enabled')


def test_this_pyspark_passes_no_limit_to_a_source_in_python(spark, twenty):
    """A source has nothing to do for LIMIT but to be lazy. If this fails, PySpark has a method for limits: use it in
    RecordsReader."""
    known = {'partitions', 'pushFilters', 'read'}
    assert {name for name in dir(DataSourceReader) if not name.startswith('_')} == known
    assert read(spark).load(str(twenty.path)).limit(3).count() == 3


def test_a_frame_reads_what_was_there_when_it_was_planned(spark, twenty):
    frame = read(spark).load(str(twenty.path))
    assert frame.count() == 20
    twenty.write('later')
    twenty.flush()
    assert frame.count() == 20
    assert read(spark).load(str(twenty.path)).count() == 21


def test_many_paths_and_none_with_rows(spark, tmp_path):
    for topic in 'ab':
        LogFiles(tmp_path / topic, topic).flush()
    frame = read(spark).load([str(tmp_path / 'a'), str(tmp_path / 'b')])
    assert frame.count() == 0
    LogFiles(tmp_path / 'c', 'c').write('x')
    assert values_of(read(spark).load([str(tmp_path / name) for name in 'abc'])) == ['x']


@pytest.mark.parametrize(('options', 'text'), [
    ({'splitByte': '1m'}, 'option splitbyte: no such option, did you mean splitBytes?'),
    ({'startingOffsets': '{"topic":{"7":0}}'}, 'found topic-7, expected some of topic-0'),
    ({'maxOffsetsPerTrigger': '5'}, 'option maxOffsetsPerTrigger: not allowed here: it is for spark.readStream'),
])
def test_errors_arrive_in_the_driver(spark, twenty, options, text):
    with pytest.raises(Exception) as error:
        read(spark, **options).load(str(twenty.path)).count()
    assert text in str(error.value)
    assert 'Traceback' not in str(error.value)


@pytest.mark.parametrize('use', [
    lambda spark, options: spark.read.format('kbroker').options(**options, subscribe='t').load().count(),
    lambda spark, options: spark.range(1).selectExpr("'x' AS value").write.format('kbroker').mode('append').options(
        **options, topic='t', transactionalIdPrefix='p').save(),
], ids=['reader', 'sink'])
def test_a_broker_that_is_not_there_is_a_message_without_a_traceback(spark, use):
    with pytest.raises(Exception) as error:
        use(spark, {'kafka.bootstrap.servers': '127.0.0.1:1', 'kafka.default.api.timeout.ms': '100'})
    first = str(error.value).splitlines()[0]
    assert re.search(r'ClientError: 127\.0\.0\.1:1 cannot be reached', first)
    assert 'Traceback' not in str(error.value)


def test_sql_reads_by_a_view_and_refuses_a_table_whose_options_would_be_lost(spark, twenty):
    words = f"USING kbroker OPTIONS (path '{twenty.path}')"
    spark.sql(f'CREATE OR REPLACE TEMPORARY VIEW of_a_log {words}')
    assert spark.sql('SELECT count(*) AS rows FROM of_a_log').collect()[0].rows == 20
    with pytest.raises(Exception, match='use CREATE TEMPORARY VIEW'):
        spark.sql(f'CREATE TABLE table_of_a_log {words}')


def test_a_table_with_columns_is_created_and_its_queries_fail(spark, twenty):
    """Spark does not pass the options of a table to the source, so its queries fail. This test detects a Spark version
    that passes them."""
    spark.sql(f"CREATE TABLE with_columns (value STRING) USING kbroker OPTIONS (path '{twenty.path}')")
    try:
        for query in ('SELECT * FROM with_columns', "INSERT INTO with_columns VALUES ('x')"):
            with pytest.raises(Exception, match=r'option .*: ') as error:
                spark.sql(query).collect()
            assert 'Traceback' not in str(error.value)
    finally:
        spark.sql('DROP TABLE with_columns')


# ---- streams

def all_of(batches):
    return [row for batch in batches for row in batch]


class Stream:
    """A streaming query into memory, in successive runs with the trigger AvailableNow and the same checkpoint."""

    def __init__(self, spark, tmp_path, **options):
        self.spark = spark
        self.checkpoint = tmp_path / 'checkpoint'
        self.options = {'startingOffsets': 'earliest', **options}
        self.batches = {}
        self.progress = []
        self.replayed = set()

    def run(self):
        """Run the query. Return the sorted values of each micro-batch."""
        new = {}

        def keep(frame, number):
            new[number] = sorted(bytes(row.value).decode() for row in frame.collect())
        query = (self.spark.readStream.format('kbroker').options(**self.options).load().select('value').writeStream
                 .foreachBatch(keep).option('checkpointLocation', str(self.checkpoint)).trigger(availableNow=True)
                 .start())
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()
        self.progress = [json.loads(each.json) for each in query.recentProgress]
        self.replayed = new.keys() & self.batches.keys()
        for number in self.replayed:
            assert new[number] == self.batches[number]
        self.batches |= new
        return list(new.values())

    def forget(self, count):
        """Remove the commits of the last `count` micro-batches from the checkpoint, as if Spark had crashed before it
        wrote them."""
        for name in sorted((path.name for path in (self.checkpoint / 'commits').iterdir() if path.name.isdecimal()),
                           key=int)[-count:]:
            (self.checkpoint / 'commits' / name).unlink()
            (self.checkpoint / 'commits' / f'.{name}.crc').unlink(missing_ok=True)


def test_a_stream_goes_on_where_it_stopped_and_replays_the_same_rows(spark, log, tmp_path):
    for number in range(10):
        log.write(f'{number:02}')
    log.write('aborted', producer_id=1)
    log.end(1, commit=False)
    log.write('open', producer_id=2)
    log.flush()
    stream = Stream(spark, tmp_path, path=str(log.path), maxOffsetsPerTrigger='5')
    first = stream.run()
    assert [len(each) for each in first] == [5, 5, 0] and all_of(first) == [f'{number:02}' for number in range(10)]
    source = stream.progress[0]['sources'][0]
    assert (source['endOffset'], source['latestOffset']) == ({'topic': {'0': 5}}, {'topic': {'0': 12}})
    assert stream.run() == []
    # Rows that were appended after the crash belong to later micro-batches.
    log.end(2)
    log.write('later')
    log.flush()
    stream.forget(2)
    assert stream.run() == [[], ['later', 'open']] and stream.replayed == {2}
    stream.forget(1)
    assert stream.run() == [['later', 'open']] and stream.replayed == {3}
    stream.forget(2)
    assert stream.run() == [['later', 'open']] and stream.replayed == {3}


def test_a_stream_counts_what_it_passes_over_once_a_micro_batch(spark, log, tmp_path):
    for number in range(4):
        log.write(f'aborted {number}', producer_id=1)
        log.end(1, commit=False)
        log.write(f'value {number}')
    log.flush()
    path = log.segments()[0]
    damage(path, path.read_bytes().index(b'value 2'), b'V')
    skipped_to = tmp_path / 'told'
    stream = Stream(spark, tmp_path, path=str(log.path), maxOffsetsPerTrigger='5', failOnDataLoss='false',
                    skippedTo=str(skipped_to))
    assert all_of(stream.run()) == ['value 0', 'value 1', 'value 3']
    for is_again in (False, True):
        if is_again:
            stream.forget(1)
            stream.run()
            assert stream.replayed
        found = Skipped.read(skipped_to)
        assert [(loss.first_offset, loss.lost_offsets) for loss in found.losses] == [(8, 1)]
        assert found.aborted == {('topic', 0): 4}
    log.write('aborted', producer_id=1)
    log.end(1, commit=False)
    log.flush()
    stream.run()
    summed = spark.read.json(str(skipped_to)).selectExpr('sum(lost_offsets)', 'sum(aborted_transactions)')
    assert tuple(summed.collect()[0]) == (1, 5)


def test_a_stream_takes_up_new_partitions_and_misses_old_ones(spark, tmp_path):
    log = LogFiles(tmp_path / 'logs', 'a')
    log.write('a0')
    log.flush()
    stream = Stream(spark, tmp_path, path=str(log.path), subscribePattern='[a-z]')
    assert all_of(stream.run()) == ['a0']
    other = LogFiles(tmp_path / 'other', 'b')
    other.write('b0')
    other.flush()
    shutil.copytree(other.partition, log.path / 'b-0')
    assert all_of(stream.run()) == ['b0']
    shutil.rmtree(log.path / 'b-0')
    with pytest.raises(Exception, match='b-0: the checkpoint has offsets of it, but it does not exist'):
        stream.run()
    stream.options['failOnDataLoss'] = 'false'
    log.write('a1')
    log.flush()
    assert all_of(stream.run()) == ['a1']


def test_a_stream_in_bytes(spark, log, tmp_path):
    for number in range(12):
        log.write(f'{number:01000}')
    log.flush()
    found = Stream(spark, tmp_path, path=str(log.path), maxBytesPerTrigger='4k').run()
    assert len(found) >= 3 and Counter(all_of(found)) == Counter(f'{number:01000}' for number in range(12))


# ---- with a broker

def test_streams_from_a_broker_and_from_its_directory_see_the_same(spark, start_broker, tmp_path):
    broker = start_broker()
    cluster = Cluster(ClientConfig.from_settings({'bootstrap.servers': broker.address}))
    admin = Admin(cluster)
    assert admin.create_topics([NewTopic('grows', 1, 1)])['grows'] is None
    streams = [Stream(spark, tmp_path / name, subscribe='grows', **options) for name, options in (
        ('broker', {'kafka.bootstrap.servers': broker.address}), ('files', {'path': str(broker.directory)}))]

    def write(*values, partition=0, commit=True):
        producer = Producer(cluster, ProducerSettings.from_properties({'transactional.id': f'writer-{values[0]}'}))
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.send('grows', value.encode(), partition=partition)
        producer.flush()
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)()
        return producer

    write('a', 'b')
    write('aborted', commit=False)
    assert [all_of(stream.run()) for stream in streams] == [['a', 'b']] * 2
    for stream in streams:      # the aborted transaction and the markers have offsets, too
        source = stream.progress[-1]['sources'][0]
        assert source['endOffset'] == source['latestOffset'] == {'grows': {'0': 5}}
    assert admin.create_partitions({'grows': 2})['grows'] is None
    cluster.forget()
    write('c', partition=1)
    producer = write('open', commit=None)
    assert [all_of(stream.run()) for stream in streams] == [['c']] * 2
    producer.commit_transaction()
    broker.restart()
    assert [all_of(stream.run()) for stream in streams] == [['open']] * 2
    assert admin.delete_topics(['grows'])['grows'] is None
    for stream in streams:
        with pytest.raises(Exception, match=r'grows-0, grows-1: the checkpoint has offsets|found no partition in'):
            stream.run()
    cluster.close()


def test_a_stream_waits_for_enough(log):
    source = KafkaLogDataSource({'path': str(log.path), 'minOffsetsPerTrigger': '3', 'startingOffsets': 'earliest',
                                 'maxTriggerDelay': '1h'})
    reader = source.streamReader(StructType([StructField('value', BinaryType())]))
    start = reader.initialOffset()
    log.write('a')
    log.flush()
    first = reader.latestOffset(start, ReadAllAvailable())
    assert (start, first) == ({'topic': {'0': 0}}, {'topic': {'0': 1}})  # the first trigger never waits
    log.write('b', 'c')
    log.flush()
    assert reader.latestOffset(first, ReadAllAvailable()) == first
    assert reader.reportLatestOffset() == {'topic': {'0': 3}}
    log.write('d')
    log.flush()
    assert reader.latestOffset(first, ReadAllAvailable()) == {'topic': {'0': 4}}


def test_a_plan_without_a_task_has_no_rows(spark, log):
    log.write('1')
    log.flush()
    path = str(log.path)
    assert read(spark, path=path, startingOffsets='{"topic":{"0":-1}}').load().collect() == []
    LogFiles(log.path, '__transaction_state').flush()
    assert read(spark, path=path, table='transactions').load().collect() == []


def test_a_session_that_does_not_know_the_source_gets_it_registered(spark, monkeypatch):
    registered = []
    monkeypatch.setattr(type(spark.dataSource), 'register', lambda self, source: registered.append(source))
    spark_startup.ensure_source(spark)
    assert registered == []
    monkeypatch.setattr(spark_startup, 'SOURCE', 'a-source-that-spark-does-not-know')
    spark_startup.ensure_source(spark)
    assert registered == [KafkaLogDataSource]


def test_a_session_of_another_python_that_does_not_know_the_source_is_an_error_that_names_the_setting(
        spark, monkeypatch, tmp_path):
    (tmp_path / 'python3').symlink_to('/bin/true')
    monkeypatch.setenv('PATH', str(tmp_path))
    monkeypatch.setattr(spark.sparkContext, 'pythonExec', 'python3')
    spark_startup.ensure_source(spark)      # Spark found it all the same
    monkeypatch.setattr(spark_startup, 'SOURCE', 'a-source-that-spark-does-not-know')
    with pytest.raises(PySparkRuntimeError, match=f'run {tmp_path}/python3, which has no kbroker; set '
                                                  f'PYSPARK_PYTHON={sys.executable} '):
        spark_startup.ensure_source(spark)
