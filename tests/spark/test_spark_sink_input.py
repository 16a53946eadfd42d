"""The sink without Spark: options, columns and rows, and the state of the broker that is checked before any write."""
import json
import pickle
import re
from contextlib import closing
from types import SimpleNamespace

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from sink_steps import VALUE, batch, commit, create, end_offset, options, planned, staged, values_in
from support.brokers.broker_process import ROOT

from kbroker.base.errors import ConfigError
from kbroker.client import Admin, FatalProducerError, KafkaError, Producer
from kbroker.client.admin import LATEST, IsolationLevel
from kbroker.client.stream_settings import ProducerSettings
from kbroker_tools.commands.transactions import main
from kbroker_tools.spark import KafkaLogDataSource
from kbroker_tools.spark.messages import ColumnError
from kbroker_tools.spark.options import OptionError
from kbroker_tools.spark.sink import protocol
from kbroker_tools.spark.sink.ledger import Ledger
from kbroker_tools.spark.sink.options import ROWS, parse_sink_options
from kbroker_tools.spark.sink.protocol import Wanted
from kbroker_tools.spark.sink.rows import RowChecks, Stage, check_schema, send_rows, staged_batches
from kbroker_tools.spark.sink.store import BrokerStore
from kbroker_tools.spark.sink.topics import NewTopics
from kbroker_tools.spark.sink.values import QUERY, Commit, Decision, SinkError, Staged, Unit, driver_id
from kbroker_tools.spark.sink.writer import PlanError, TaskResult

PAGE = (ROOT / 'docs' / 'spark.md').read_text()
NEEDED = {'kafka.bootstrap.servers': 'b:1', 'transactionalIdPrefix': 'p', 'topic': 't'}

# option: (a valid text, its value, an invalid text)
TEXTS = {
    'topic': ('orders', 'orders', 'a,b'),
    'transactionalIdPrefix': ('etl', 'etl', 'etl~1'),
    'idempotencyKey': ('2026-11-22', '2026-11-22', ''),
    'ledgerTopic': ('commits', 'commits', '..'),
    'transactionTimeout': ('2m', 120_000, 'soon'),
    'maxDriverBytes': ('1g', 1 << 30, '0'),
    'delivery': ('exactly_once', True, 'twice'),
    'commit': ('prepared', Commit.PREPARED, 'executor'),
    'maxStagedBytes': ('64k', 1 << 16, '-1'),
    'maxPrepared': ('10000', 10_000, '10001'),
    'twoPhase': ('off', False, 'true'),
    'decisionMargin': ('10s', 10_000, '1 minute'),
    'ifWritten': ('error', True, 'fail'),
    'createTopics': ('true', NewTopics(), 'maybe'),
    'topicPartitions': ('6', 6, '0'),
    'topicReplicationFactor': ('3', 3, '32768'),
}


# ---- options and columns

@pytest.mark.parametrize('row', ROWS, ids=lambda row: row.name)
def test_an_option_of_the_sink_takes_what_it_says_and_refuses_the_rest(row):
    good, value, bad = TEXTS[row.name]
    needed = NEEDED | {'auto': {'commit': 'auto'}, 'tasks': {'commit': 'auto'}, 'topics': {'createTopics': 'true'}}.get(
        row.place, {}) | ({'idempotencyKey': 'a'} if row.name == 'ifWritten' else {})
    parsed = parse_sink_options(needed | {row.name: good}, is_stream=False)
    found = parsed.new_topics if row.place == 'topics' else parsed
    assert value in vars(found).values()
    assert f'`{row.name}`' in PAGE
    with pytest.raises(OptionError, match=f'option {row.name}: found .*, expected '):
        parse_sink_options(needed | {row.name: bad}, is_stream=False)


@pytest.mark.parametrize(('given', 'text'), [
    ({'topics': 'x'}, 'topics: no such option of the sink, did you mean topic'),
    ({'kafka.linger': 'x'}, r'kafka\.linger: no such setting of a producer, did you mean kafka\.linger\.ms'),
    ({'kafka.transactional.id': 'x'}, r'kafka\.transactional\.id: found .x., but it cannot be set'),
    ({'kafka.acks': '1'}, r'kafka\.acks: found .1., but it cannot be set'),
    ({'ledgerTopic': 't'}, 'topic: found .t., which is the ledger'),
    ({'kafka.enable.idempotence': 'false'}, r'kafka\.enable\.idempotence: found .false., but it cannot be set'),
    ({'kafka.retries': '0'}, r'kafka\.enable\.idempotence: .* retries above 0'),
    ({'kafka.linger.ms': 'soon'}, r'kafka\.linger\.ms: '),
    ({'idempotencyKey': 'a'}, 'idempotencyKey: not allowed here: it is for df.write only'),
    ({'ifWritten': 'error'}, 'ifWritten: not allowed here: it is for df.write only'),
    ({'twoPhase': 'on'}, 'twoPhase: not allowed here: it is for commit=prepared or commit=auto'),
    ({'maxStagedBytes': '1m', 'commit': 'prepared'}, 'maxStagedBytes: not allowed here: it is for commit=auto'),
    ({'delivery': 'at_least_once', 'commit': 'auto'}, 'commit: not allowed here: it is for delivery=exactly_once'),
    ({'delivery': 'at_least_once', 'maxDriverBytes': '1m'}, 'maxDriverBytes: not allowed here: it is for delivery='),
    ({'commit': 'auto', 'decisionMargin': '999ms'}, 'decisionMargin: found .999ms., expected at least 1000 ms'),
    ({'commit': 'auto', 'transactionTimeout': '1m', 'decisionMargin': '1m'}, 'decisionMargin: found 60000 ms, exp'),
])
def test_a_wrong_option_of_the_sink_is_refused(given, text):
    with pytest.raises(OptionError, match=f'option {text}'):
        parse_sink_options(NEEDED | given, is_stream=True)


def test_settings_that_say_what_the_sink_does_anyway_are_accepted():
    binary = 'org.apache.kafka.common.serialization.ByteArraySerializer'
    given = {'kafka.acks': 'all', 'kafka.enable.idempotence': 'TRUE', 'kafka.key.serializer': binary}
    assert parse_sink_options(NEEDED | given, is_stream=True).kafka == {'bootstrap.servers': 'b:1'}


@pytest.mark.parametrize(('given', 'batch_bytes', 'buffer_bytes', 'linger_ms'), [
    ({}, 262_144, 8_388_608, 100),
    ({'kafka.batch.size': '16384', 'kafka.linger.ms': '5'}, 16_384, 8_388_608, 5),
    ({'kafka.batch.size': '2097152'}, 2_097_152, 16_777_216, 100),
    ({'kafka.max.request.size': '100000'}, 100_000, 8_388_608, 100),
    ({'kafka.max.request.size': '10000000'}, 262_144, 20_000_000, 100),
    ({'kafka.buffer.memory': '1000000'}, 262_144, 1_000_000, 100),
])
def test_batches_are_large_and_few_wait_unless_a_setting_says_otherwise(given, batch_bytes, buffer_bytes, linger_ms):
    found = ProducerSettings.from_properties(parse_sink_options(NEEDED | given, is_stream=True).producer())
    assert (found.batch_size_bytes, found.buffer_memory_bytes, found.linger_ms) == (
        batch_bytes, buffer_bytes, linger_ms)


@pytest.mark.parametrize('missing', ['kafka.bootstrap.servers', 'transactionalIdPrefix'])
def test_the_sink_needs_a_broker_and_a_prefix(missing):
    given = {name: text for name, text in NEEDED.items() if name != missing}
    with pytest.raises(OptionError, match=f'option {missing}: found none'):
        parse_sink_options(given, is_stream=True)


def test_the_plan_of_a_job_has_the_decision_of_its_own_key_only():
    for key, found in (({'idempotencyKey': 'a'}, ['job.a']), ({}, [])):
        writer = KafkaLogDataSource(NEEDED | key).writer(VALUE, False)
        assert [owner for owner in ('job.', 'job.a', 'job.ab', 'query.a') if writer.is_owner(owner)] == found


def test_pyspark_prints_no_traceback_of_a_plan_that_fails(capsys):
    given = NEEDED | {'kafka.bootstrap.servers': '127.0.0.1:1', 'kafka.default.api.timeout.ms': '100'}
    with pytest.raises(PlanError, match=r'^ClientError: 127\.0\.0\.1:1 cannot be reached'):
        CloudPickleSerializer().dumps(KafkaLogDataSource(given).streamWriter(VALUE, False))
    assert capsys.readouterr().err == ''


def test_only_appending_writes_exist():
    source = KafkaLogDataSource(NEEDED)
    for make in (source.writer, source.streamWriter):
        with pytest.raises(ConfigError, match=r"expected .*\('append'\)"):
            make(VALUE, True)
        assert make(VALUE, False).options.topic == 't'


def test_the_columns_are_those_of_spark_s_sink_with_the_time():
    headers = ArrayType(StructType([StructField('key', StringType()), StructField('value', BinaryType())]))
    kinds = {'key': StringType(), 'value': BinaryType(), 'topic': StringType(), 'partition': IntegerType(),
             'timestamp': TimestampType(), 'headers': headers}
    check_schema(StructType([StructField(name, kind) for name, kind in kinds.items()]), None)
    for fields, topic, text in (
            ({'key': BinaryType()}, 't', 'found the columns key, expected value among them'),
            ({'value': LongType()}, 't', 'column value of type bigint, expected binary or string'),
            ({'value': BinaryType(), 'offset': LongType()}, 't', "column 'offset', expected some of key, value"),
            ({'value': BinaryType()}, None, 'found neither the option nor a column topic')):
        with pytest.raises((ColumnError, OptionError), match=text):
            check_schema(StructType([StructField(name, kind) for name, kind in fields.items()]), topic)


def test_a_column_that_a_join_has_twice_is_refused_before_the_tasks():
    with pytest.raises(ColumnError, match='found column value 2 times, expected it once'):
        check_schema(StructType([StructField('value', BinaryType()), StructField('value', StringType())]), 't')


# ---- rows

def sent(batch, topic):
    """Return the rows that the producer receives, as (topic, partition, key, value, headers, timestamp)."""
    found = []

    def send_batch(topic, values, keys, headers, *, partition, timestamps):
        columns = [column if column is not None else [None] * len(values)
                   for column in (keys and keys.to_pylist(), values.to_pylist(), headers, timestamps)]
        found.extend((topic, partition, *row) for row in zip(*columns, strict=True))

    send_rows(SimpleNamespace(send_batch=send_batch), batch, topic)
    return found


def test_staged_rows_are_the_rows():
    headers = pa.array([None, [{'key': 'h', 'value': None}]], pa.list_(pa.struct([('key', pa.string()),
                                                                                 ('value', pa.binary())])))
    checks = RowChecks(None, 1000)
    stage = Stage()
    stage.add(checks.checked(batch(key=['k', None], value=pa.array([None, b'v']), topic=['a', 'b'], headers=headers,
                    partition=pa.array([None, 5], pa.int32()),
                    timestamp=pa.array([1_234_567, 7_000], pa.timestamp('us', 'UTC')))))
    staged, = staged_batches(stage.chunks)
    assert sent(staged, None) == [('a', None, b'k', None, [], 1234), ('b', 5, None, b'v', [('h', None)], 7)]
    assert (checks.rows, checks.highest_partitions) == (2, {'a': -1, 'b': 5})
    replaced = RowChecks('t', 1000).checked(batch(topic=['a', None], value=['x', 'y']))
    assert sent(replaced, 't') == [('t', None, None, b'x', None, None), ('t', None, None, b'y', None, None)]


def test_rows_are_sent_by_topic_and_partition_in_their_order():
    rows = batch(value=[b'%d' % number for number in range(6)], topic=list('baabba'),
                 partition=pa.array([1, 0, None, 1, 0, 0], pa.int32()))
    assert [row[:2] + row[3:4] for row in sent(rows, None)] == [
        ('a', 0, b'1'), ('a', 0, b'5'), ('a', None, b'2'), ('b', 0, b'4'), ('b', 1, b'0'), ('b', 1, b'3')]
    assert sent(rows.slice(0, 0), None) == []


def test_a_row_without_a_time_gets_the_present_one():
    times = pa.array([5, None, 7], pa.int64())[1:]
    first, second = sent(batch(value=['x', 'y'], timestamp=times), 't')
    assert first[-1] > 1_700_000_000_000 and second[-1] == 7


@pytest.mark.parametrize(('topic', 'columns', 'text'), [
    (None, {'topic': ['a', None], 'value': ['x', 'y']}, 'found null in the column topic'),
    ('t', {'value': ['x'], 'partition': pa.array([-1], pa.int32())}, 'found partition -1 in a row of topic t'),
    ('t', {'value': ['x', 'y' * 2000]}, r'a row of 2,\d+ bytes, expected at most 9\d\d: raise kafka.max.request.size'),
    ('t', {'value': ['x', 'y'], 'timestamp': pa.array([0, -1], pa.timestamp('ms', 'UTC'))},
     'found a row with the timestamp -1 ms, expected none before 1970'),
    ('t', {'value': ['x'], 'headers': [[{'key': None, 'value': b''}]]}, 'a header whose key is null'),
])
def test_a_row_that_cannot_be_written_is_refused_in_its_task(topic, columns, text):
    with pytest.raises(SinkError, match=text):
        RowChecks(topic, 1000).checked(batch(**columns))


# ---- a broker

@pytest.fixture
def admin(shared_broker):
    with Admin(shared_broker.address) as admin:
        yield admin


def test_of_two_drivers_with_one_prefix_the_older_one_writes_nothing(shared_broker, admin, monkeypatch):
    create(admin, 'two', 1)
    given = options(shared_broker, 'two')
    older = planned(given)
    newer = planned(given)
    with pytest.raises(SinkError, match="another query or driver has taken the prefix 'two'"):
        commit(given, 0, staged(monkeypatch, older, 0, 'old'))
    result = staged(monkeypatch, newer, 0, 'new')
    commit(given, 0, result)
    with pytest.raises(SinkError, match='another query or driver has taken'):
        commit(given, 0, result)
    assert values_in(shared_broker, 'two') == [b'new']
    again = staged(monkeypatch, planned(given), 0, 'replayed')
    assert again.staged.is_skipped and again.staged.rows == 0
    commit(given, 0, again)
    commit(given, 1, staged(monkeypatch, planned(given), 1, 'next'))
    assert values_in(shared_broker, 'two') == [b'new', b'next']


def test_a_row_for_a_missing_partition_or_topic_is_refused_before_anything_is_written(start_broker, monkeypatch):
    strict = start_broker({'auto.create.topics.enable': 'false'})
    admin = Admin(strict.address)
    create(admin, 'gone', 1)
    given = options(strict, 'gone')
    with pytest.raises(SinkError, match=r"found no topic 'missing', expected it to exist"):
        planned(given | {'topic': 'missing'})
    task = planned(given)
    staged(monkeypatch, task, 0, 'x')       # gives the task a context
    result = task.run_task(Unit(QUERY + 'q', 0), iter([batch(value=['x'], partition=pa.array([1], pa.int32()))]))
    with pytest.raises(SinkError, match='found partition 1 in a row of topic gone, which has 1 partitions'):
        commit(given, 0, result)
    assert end_offset(admin, 'gone') == 0
    assert admin.delete_topics(['gone'])['gone'] is None
    with pytest.raises(SinkError, match=r"found no topic 'gone'"):
        commit(given, 0, staged(monkeypatch, task, 0, 'x'))
    assert admin.describe_transactions([driver_id('gone')])[driver_id('gone')].state == 'Empty'
    admin.close()


def test_a_topic_is_created_by_its_first_use_as_for_any_producer(shared_broker, monkeypatch):
    """The sink once refused a missing topic even if the broker creates topics, which it also does for Spark's own
    sink."""
    given = options(shared_broker, 'made-by-the-option')
    commit(given, 0, staged(monkeypatch, planned(given), 0, 'x'))
    assert values_in(shared_broker, 'made-by-the-option') == [b'x']
    given = {name: text for name, text in options(shared_broker, 'by-a-column').items() if name != 'topic'}
    schema = StructType([*VALUE.fields, StructField('topic', StringType())])
    task = pickle.loads(pickle.dumps(KafkaLogDataSource(given).streamWriter(schema, False)))
    staged(monkeypatch, planned(options(shared_broker, 'another')), 0)     # gives the task a context
    result = task.run_task(Unit(QUERY + 'q', 0), iter([batch(value=['y'], topic=['made-by-a-column'])]))
    KafkaLogDataSource(given).streamWriter(schema, False).commit([result], 0)
    assert values_in(shared_broker, 'made-by-a-column') == [b'y']


def test_a_unit_that_was_written_before_says_that_nothing_is_written_now(shared_broker, admin, monkeypatch, caplog):
    """A job that its idempotencyKey skipped once ended without a message."""
    create(admin, 'said', 1)
    given = options(shared_broker, 'said')
    for _ in range(2):
        commit(given, 5, staged(monkeypatch, planned(given), 5, 'x'))
    (record,) = caplog.records
    assert re.fullmatch(r"micro-batch 5 of query q with the prefix 'said' was written before \(1 rows, \S+ \S+Z\), so "
                        'nothing was written now', record.getMessage())


def test_each_step_of_a_driver_keeps_its_imports_out_of_the_collections_of_pyspark(shared_broker, admin, monkeypatch):
    """A job of 8 rows once took 44 ms of processor time in Python, of which 27 ms were collections."""
    frozen = []
    for module in ('datasource', 'sink.writer'):
        monkeypatch.setattr(f'kbroker_tools.spark.{module}.freeze_imports', lambda: frozen.append(True))
    create(admin, 'frozen', 1)
    given, counts = options(shared_broker, 'frozen'), []
    writer = KafkaLogDataSource(given).streamWriter(VALUE, False)
    counts.append(len(frozen))
    task = pickle.loads(pickle.dumps(writer))
    counts.append(len(frozen))
    result = staged(monkeypatch, task, 0, 'x')
    before = len(frozen)
    writer.commit([result], 0)
    assert counts == [1, 2] and len(frozen) == before + 1


def test_finish_spark_shows_when_each_job_was_written(shared_broker, admin):
    create(admin, 'shown', 1)
    given = options(shared_broker, 'shown', idempotencyKey='monday')
    task = pickle.loads(pickle.dumps(KafkaLogDataSource(given).writer(VALUE, False)))
    task.commit([TaskResult(Staged(task.plan, task.unit))])
    arguments = ['finish-spark', '--bootstrap-server', shared_broker.address, '--prefix', 'shown', '--dry-run']
    row = json.loads(CliRunner().invoke(main, [*arguments, '--json']).stdout)
    assert (row['owner'], row['rows']) == ('job.monday', 0) and row['time_ms'] > 1_700_000_000_000
    assert re.search(r'job\.monday\s+0\s+0\s+\d{4}-\S+ \S+Z\s', CliRunner().invoke(main, arguments).stdout)


def test_a_job_that_was_written_before_is_an_error_if_wanted(shared_broker, admin):
    create(admin, 'strict', 1)
    given = options(shared_broker, 'strict', idempotencyKey='monday', ifWritten='error')
    task = pickle.loads(pickle.dumps(KafkaLogDataSource(given).writer(VALUE, False)))
    task.commit([TaskResult(Staged(task.plan, task.unit))])
    with pytest.raises(PlanError, match=r"job 'monday' with the prefix 'strict' was written before \(0 rows, \S+ \S+Z\)"
                       ', and ifWritten=error. For another job, give another idempotencyKey'):
        pickle.dumps(KafkaLogDataSource(given).writer(VALUE, False))
    pickle.dumps(KafkaLogDataSource(given | {'idempotencyKey': 'tuesday'}).writer(VALUE, False))


def test_a_row_that_the_topic_refuses_leaves_nothing_of_its_micro_batch(shared_broker, admin, monkeypatch):
    create(admin, 'small', 1, max_message_bytes='1000')
    given = options(shared_broker, 'small')
    with pytest.raises(KafkaError, match='MESSAGE_TOO_LARGE'):
        commit(given, 0, staged(monkeypatch, planned(given), 0, 'x', 'y' * 5000))
    assert values_in(shared_broker, 'small') == []
    assert not admin.list_transactions(['Ongoing'], transactional_id_pattern='small~.*')


def test_a_plan_for_another_cluster_is_refused(shared_broker, admin, monkeypatch):
    create(admin, 'moved', 1)
    given = options(shared_broker, 'moved')
    task = planned(given)
    object.__setattr__(task.plan, 'cluster_id', 'elsewhere')
    with pytest.raises(SinkError, match='and the write was planned for cluster elsewhere'):
        commit(given, 0, staged(monkeypatch, task, 0, 'x'))


def test_a_ledger_that_would_forget_is_refused(shared_broker, admin):
    create(admin, 'kept', 1)
    create(admin, 'forgetful', 1, cleanup_policy='delete')
    with pytest.raises(SinkError, match=r'forgetful has cleanup\.policy=delete, expected compact'):
        planned(options(shared_broker, 'kept', ledgerTopic='forgetful'))


def test_decisions_behind_an_open_transaction_of_another_prefix_are_waited_for(shared_broker, admin):
    create(admin, 'waits', 1)
    given = parse_sink_options(options(shared_broker, 'waits', ledgerTopic='held'), is_stream=True)
    with closing(BrokerStore(given)) as store, Producer(shared_broker.address, transactional_id='holder') as holder:
        found, unit = protocol.plan(store, 'waits', bool, Wanted()), Unit(QUERY + 'q', 3)
        holder.init_transactions()
        holder.begin_transaction()
        holder.send('held', b'{}', b'another~query.1', partition=0)
        holder.flush()
        store.write([Staged(found, unit)], Decision('waits', unit, 0, found.pair), bool)
        partition = ('held', 0)
        assert admin.list_offsets({partition: LATEST}, IsolationLevel.READ_COMMITTED)[partition].offset == 0
        clock = SimpleNamespace(monotonic_ms=iter((0, 10**9)).__next__)     # the limit passes at the first poll
        with pytest.raises(KafkaError, match=r'not readable up to offset .*why-stuck held'):
            Ledger(admin.cluster, 'held', clock).decisions('waits')
        holder.abort_transaction()
        assert [each.unit for each in store.decisions('waits')] == [unit]


def test_a_broker_killed_around_the_decision_neither_loses_nor_doubles_a_micro_batch(broker, monkeypatch):
    def kill_broker():
        broker.kill9()
        broker.start()

    with Admin(broker.address) as admin:
        create(admin, 'killed', 1)
    given = options(broker, 'killed')
    first = planned(given)
    kill_broker()
    commit(given, 0, staged(monkeypatch, first, 0, 'first'))
    kill_broker()
    again, second = (staged(monkeypatch, planned(given), number, 'second') for number in (0, 1))
    assert (again.staged.is_skipped, second.staged.is_skipped) == (True, False)
    with closing(Producer(broker.address, transactional_id=driver_id('killed'))) as dying:
        dying.transactions.resume(second.staged.plan.pair)
        dying.begin_transaction()
        dying.send('killed', b'open', partition=0)
        dying.flush()
        kill_broker()
        replayed = staged(monkeypatch, planned(given), 1, 'replayed')
        with pytest.raises(FatalProducerError):
            dying.commit_transaction()
    commit(given, 1, replayed)
    assert values_in(broker, 'killed') == [b'first', b'replayed']


def test_finish_spark_settles_the_transaction_of_a_dead_driver(shared_broker, admin):
    create(admin, 'dead', 1)
    given = parse_sink_options(options(shared_broker, 'dead'), is_stream=True)

    def finish(prefix):
        return CliRunner().invoke(main, ['finish-spark', '--bootstrap-server', shared_broker.address, '--prefix',
                                         prefix])

    assert finish('dead').exit_code == 1
    with closing(BrokerStore(given)) as store:
        for batch_id in (0, 1):
            found = protocol.plan(store, 'dead', bool, Wanted())
            unit = Unit(QUERY + 'q', batch_id)
            decision = Decision('dead', unit, 0, found.pair)
            if batch_id == 0:
                store.write([Staged(found, unit)], decision, bool)
        dying = Producer(shared_broker.address, transactional_id=driver_id('dead'))
        dying.transactions.resume(found.pair)
        dying.begin_transaction()
        dying.send('dead', b'undecided', partition=0)
        dying.flush()
    result = finish('dead')
    assert result.exit_code == 0 and 'in state Ongoing' in result.output and 'query.q' in result.output
    assert not admin.list_transactions(['Ongoing'], transactional_id_pattern='dead~.*')
    assert values_in(shared_broker, 'dead') == []
    assert 'has no open transaction' in finish('dead').output
    with closing(dying), pytest.raises(FatalProducerError):
        dying.commit_transaction()
