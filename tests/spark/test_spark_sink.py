"""The sink through Spark: jobs, micro-batches, and commits that fail around the decision."""
import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest
from support.brokers.broker_process import ROOT
from support.clients.committed_records import committed_records
from support.spark.sink_query import COMMIT_RAISES_AFTER, COMMIT_RAISES_BEFORE, ROWS, THE_END, error_of, start_query
from support.spark.spark_machine import quick_start

from kbroker.client import Admin
from kbroker.client.admin import NewTopic
from kbroker_tools.spark.sink.values import tasks_of

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]
PARTITIONS = 4
WRITES_TWICE = '''
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()
spark.conf.set('spark.sql.pyspark.worker.logging.enabled', 'true')
write = (spark.range(0, 10).selectExpr('CAST(id AS STRING) AS value').write.format('kbroker').mode('append')
         .options(**json.loads(sys.argv[1])))
write.save()
write.save()
for row in spark.tvf.python_worker_logs().where("logger LIKE 'kbroker%'").collect():
    print(row.level, row.msg)
try:
    write.option('ifWritten', 'error').save()
except Exception as error:
    print(str(error).splitlines()[0])
'''


@pytest.fixture
def kafka(shared_broker):
    with Admin(shared_broker.address) as admin:
        yield admin


def create(admin, topic):
    assert admin.create_topics([NewTopic(topic, PARTITIONS)])[topic] is None


def committed(admin, topic):
    return committed_records(admin, topic, PARTITIONS)


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
        ids = [row.transactional_id for row in kafka.list_transactions()
               if row.transactional_id.startswith(beginning)]
        assert len(ids) == writers


@pytest.mark.soak
def test_a_job_that_was_written_before_is_a_line_on_stderr_and_a_row_of_sparks_worker_logs(shared_broker, tmp_path):
    """A log record alone would reach either the terminal or the table of Spark, but not both."""
    given = options(shared_broker, 'again', idempotencyKey='monday', createTopics='true', topicPartitions='3')
    program = tmp_path / 'program.py'
    program.write_text(WRITES_TWICE)
    paths = os.pathsep.join(map(str, (ROOT, ROOT / 'kbroker_tools/spark/autoload')))
    done = subprocess.run(
        [sys.executable, program, json.dumps(given)], capture_output=True, text=True, cwd=tmp_path, timeout=500,
        check=False, env=os.environ | quick_start() | {'PYTHONPATH': paths, 'PYSPARK_PYTHON': sys.executable,
                                                       'SPARK_LOCAL_IP': '127.0.0.1'})
    skipped, refused = done.stdout.splitlines()
    assert re.fullmatch(r"WARNING job 'monday' with the prefix 'p-again' was written before \(10 rows, \S+ \S+Z\), so "
                        'nothing was written now. For another job, give another idempotencyKey', skipped), done
    assert skipped.replace('WARNING', 'WARNING kbroker:') in done.stderr.splitlines()
    assert "SinkError: job 'monday' with the prefix 'p-again' was written before (10 rows" in refused


def test_at_least_once_needs_no_prefix(spark, shared_broker, kafka):
    create(kafka, 'at-least-once')
    spark.range(0, 100, numPartitions=2).selectExpr('CAST(id AS STRING) AS value').write.format('kbroker').mode(
        'append').options(**{'kafka.bootstrap.servers': shared_broker.address, 'topic': 'at-least-once',
                             'delivery': 'at_least_once'}).save()
    assert sorted(int(record.value) for _, record in committed(kafka, 'at-least-once')) == list(range(100))


@pytest.mark.parametrize(('column', 'more', 'text'), [
    ("'k' AS key", {'transactionalIdPrefix': 'a~b'}, "option transactionalIdPrefix: found 'a~b', expected 1 to 200"),
    ("'k' AS key", {'commit': 'prepared', 'twoPhase': 'on'}, 'found a broker without two-phase commit'),
    ("'k' AS key", {'ledgerTopic': 'forgetful'}, r'forgetful has cleanup\.policy=delete, expected compact'),
    ('CAST(NULL AS STRING) AS topic', {'topic': None}, 'found null in the column topic'),
    ('9 AS partition', {}, 'found partition 9 in a row of topic refused, which has 4 partitions'),
    ('9 AS partition', {'commit': 'prepared'}, 'found partition 9 in a row of topic refused, which has 4 partitions'),
], ids=['option', 'plan', 'ledger', 'task', 'commit', 'task that writes'])
def test_bad_input_is_a_message_without_a_traceback_and_leaves_nothing_open(
        spark, shared_broker, kafka, column, more, text):
    kafka.create_topics([NewTopic('refused', PARTITIONS), NewTopic('forgetful', 1)])    # the first case creates them
    given = {name: value for name, value in (options(shared_broker, 'refused') | more).items() if value is not None}
    frame = spark.range(0, 10, numPartitions=1).selectExpr('CAST(id AS STRING) AS value', column)
    with pytest.raises(Exception) as error:
        frame.write.format('kbroker').mode('append').options(**given).save()
    first_lines = ' '.join(str(error.value).splitlines()[:2])
    assert re.search(text, first_lines) and 'Traceback' not in str(error.value)
    assert not kafka.list_transactions(['Ongoing'])
    assert committed(kafka, 'refused') == []


@pytest.mark.parametrize(('fault', 'way'), [(COMMIT_RAISES_BEFORE, 'prepared'), (COMMIT_RAISES_AFTER, 'auto')])
def test_a_commit_that_fails_around_the_decision_leaves_each_row_once(
        spark, shared_broker, kafka, tmp_path, fault, way):
    topic = f'{fault.replace(" ", "-")}-{way}'
    create(kafka, topic)
    given = options(shared_broker, topic, commit=way, fault=fault, flag=str(tmp_path / 'flag'))
    checkpoint = str(tmp_path / 'checkpoint')
    assert f'FaultError: {fault}' in error_of(start_query(spark, given, checkpoint, 3))
    assert THE_END in error_of(start_query(spark, given, checkpoint, 3))
    assert not kafka.list_transactions(['Ongoing'], transactional_id_pattern=f'{given["transactionalIdPrefix"]}~.*')
    counts = Counter(int(record.value) for _, record in committed(kafka, topic))
    assert counts == dict.fromkeys(range(3 * ROWS), 1)
