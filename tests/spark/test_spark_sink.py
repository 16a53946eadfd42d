"""The sink through Spark: jobs, micro-batches, and the deaths of a driver around the decision."""
import sys
from collections import Counter
from contextlib import closing

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException

from kbroker.client import Admin, Consumer
from kbroker.client.admin import LATEST, NewTopic
from kbroker_tools.spark import KafkaLogDataSource
from kbroker_tools.spark.sink.options import parse_sink_options
from kbroker_tools.spark.sink.protocol import Wanted, plan
from kbroker_tools.spark.sink.store import BrokerStore
from kbroker_tools.spark.sink.values import driver_id, tasks_of
from kbroker_tools.spark.sink.writer import StreamWriter

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers do not find the modules of tests


class DyingWriter(StreamWriter):
    """A driver that dies at the commit of one batch, before or after its decision."""

    def __init__(self, options, schema, dies):
        super().__init__(options, schema)
        self.dies, self.at = dies

    def commit(self, messages, batchId):
        if batchId == self.at and self.dies == 'before':
            raise RuntimeError('died before')
        super().commit(messages, batchId)
        if batchId == self.at and self.dies == 'after':
            raise RuntimeError('died after')


class DyingSource(KafkaLogDataSource):
    @classmethod
    def name(cls):
        return 'kbroker-dying'

    def streamWriter(self, schema, overwrite):
        given = dict(self.options)
        dies = given.pop('dies'), int(given.pop('at'))
        return DyingWriter(parse_sink_options(given, is_stream=True), schema, dies)


@pytest.fixture
def kafka(shared_broker):
    with Admin(shared_broker.address) as admin:
        yield admin


def create(admin, topic, partitions=4, **configs):
    assert admin.create_topics([NewTopic(topic, partitions, 1, configs=configs)])[topic] is None


def committed(admin, topic, partitions=4):
    """Return the committed records. A commit is answered before its markers are written, so the end is the log's end.
    """
    found = []
    assigned = [(topic, partition) for partition in range(partitions)]
    ends = admin.list_offsets(dict.fromkeys(assigned, LATEST))
    with Consumer(admin.cluster, isolation_level='read_committed', auto_offset_reset='earliest') as consumer:
        consumer.assign(assigned)
        while any((consumer.position(*each) or 0) < ends[each].offset for each in assigned):
            for batch in consumer.poll(500):
                found += [(batch.partition, record) for record in batch.records()]
    return found


def options(broker, topic, **more):
    return {'kafka.bootstrap.servers': broker.address, 'topic': topic, 'transactionalIdPrefix': f'p-{topic}', **more}


def test_a_job_writes_every_column_and_its_repetition_nothing(spark, shared_broker, kafka):
    create(kafka, 'job')
    frame = spark.range(0, 100, numPartitions=3).selectExpr(
        "concat('k', id) AS key", 'CAST(CAST(id AS STRING) AS BINARY) AS value', 'CAST(id % 4 AS INT) AS partition',
        'timestamp_millis(1700000000000 + id) AS timestamp',
        "array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers")
    write = frame.write.format('kbroker').mode('append')
    for _ in range(2):
        write.options(**options(shared_broker, 'job', idempotencyKey='monday')).save()
    found = committed(kafka, 'job')
    assert sorted((partition, record.key, record.value, record.timestamp_ms, record.headers)
                  for partition, record in found) == sorted(
        (number % 4, b'k%d' % number, b'%d' % number, 1_700_000_000_000 + number, [('h', b'x')])
        for number in range(100))
    write.options(**options(shared_broker, 'job', idempotencyKey='tuesday')).save()
    assert len(committed(kafka, 'job')) == 200


@pytest.mark.parametrize(('way', 'writers'), [
    ({'commit': 'prepared'}, 3), ({'commit': 'auto', 'maxStagedBytes': '30k'}, 1), ({'commit': 'auto'}, 0)])
def test_tasks_of_a_job_write_in_transactions_of_their_own(spark, shared_broker, kafka, way, writers):
    topic = f'tasks-{writers}'
    create(kafka, topic)
    frame = spark.range(0, 3000, numPartitions=3).selectExpr(
        "CAST(id AS STRING) AS key", "IF(id < 1000, concat(id, uuid()), CAST(id AS STRING)) AS value")
    given = options(shared_broker, topic, idempotencyKey='monday', **way)
    for _ in range(2):
        frame.write.format('kbroker').mode('append').options(**given).save()
        assert sorted(int(record.key) for _, record in committed(kafka, topic)) == list(range(3000))
        beginning = tasks_of(given['transactionalIdPrefix'])
        ids = [row.transactional_id for _, row in kafka.list_transactions()
               if row.transactional_id.startswith(beginning)]
        assert len(ids) == writers


def test_at_least_once_needs_no_prefix(spark, shared_broker, kafka):
    create(kafka, 'at-least-once')
    spark.range(0, 100, numPartitions=2).selectExpr('CAST(id AS STRING) AS value').write.format('kbroker').mode(
        'append').options(**{'kafka.bootstrap.servers': shared_broker.address, 'topic': 'at-least-once',
                             'delivery': 'at_least_once'}).save()
    assert sorted(int(record.value) for _, record in committed(kafka, 'at-least-once')) == list(range(100))


def run_stream(spark, options, checkpoint, batches, source='kbroker'):
    """Run micro-batches of 40 rows until `batches` have been committed."""
    frame = (spark.readStream.format('rate-micro-batch').option('rowsPerBatch', 40).option('numPartitions', 2).load()
             .selectExpr('CAST(value AS STRING) AS value'))
    query = frame.writeStream.format(source).options(**options).option('checkpointLocation', str(checkpoint)).start()
    try:
        while query.isActive and (query.lastProgress is None or query.lastProgress['batchId'] < batches - 1):
            query.awaitTermination(0.1)
        if not query.isActive:
            raise query.exception()
    finally:
        query.stop()


@pytest.mark.parametrize(('dies', 'way'), [('before', 'prepared'), ('after', 'auto')])
def test_a_driver_that_dies_around_the_decision_leaves_each_row_once(spark, shared_broker, kafka, tmp_path, dies, way):
    topic = f'dies-{dies}-{way}'
    create(kafka, topic)
    spark.dataSource.register(DyingSource)
    given = options(shared_broker, topic, commit=way)
    with pytest.raises(StreamingQueryException, match=f'died {dies}'):
        run_stream(spark, {**given, 'dies': dies, 'at': '1'}, tmp_path, 3, 'kbroker-dying')
    run_stream(spark, given, tmp_path, 3)
    with closing(BrokerStore(parse_sink_options(given, is_stream=True))) as store:
        plan(store, given['transactionalIdPrefix'], bool, Wanted())  # the query may have been stopped during a commit
    counts = Counter(int(record.value) for _, record in committed(kafka, topic))
    assert set(counts.values()) == {1}
    assert sorted(counts) == list(range(len(counts))) and len(counts) >= 120
    found = kafka.describe_transactions([driver_id(given['transactionalIdPrefix'])])
    assert [row.transaction_state for _, row in found.values()] == ['Empty']
    assert not kafka.list_transactions(['Ongoing'], transactional_id_pattern=f'{given["transactionalIdPrefix"]}~.*')
