"""Spark's own Delta beside a job: it reads the table of the job, and OPTIMIZE, VACUUM, DELETE, RESTORE and clones come
between runs."""
import pytest
from delta_steps import DAY_US, Job
from support.lake.spark_delta import delta_spark

from kbroker_tools.spark.lake.table_format import Attempt
from kbroker_tools.spark.ledger import IngestError

pytestmark = [pytest.mark.jvm, pytest.mark.soak]


@pytest.fixture(scope='module')
def spark(tmp_path_factory):
    with delta_spark(tmp_path_factory.mktemp('spark')) as spark:
        yield spark


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path / 'table', ['topic', 'date'])


def one(spark, job, expression, where='true'):
    """Return the value of an expression over the rows of the table."""
    (row,) = spark.rows(f'select {expression} as found from delta.`{job.table.name}` where {where}')
    return row.get('found')


def change(spark, job, statement):
    return spark.rows(statement.format(table=f'delta.`{job.table.name}`'))


def offsets(spark, job):
    return one(spark, job, 'sort_array(collect_list(offset))')


def test_spark_reads_all_rows_and_skips_files_without_losing_any(spark, job):
    for _ in range(3):
        job.run(5, every_us=DAY_US // 8 + 1)
    assert offsets(spark, job) == list(range(15))
    assert one(spark, job, 'count(*)', 'offset >= 12') == 3
    assert one(spark, job, 'count(*)', "topic = 'orders'") == 15
    assert one(spark, job, 'count(*)', "date = date'1970-01-02'") == 7
    assert one(spark, job, 'count(*)', "timestamp = timestamp'1970-01-01 03:00:00.000001Z'") == 1
    assert one(spark, job, 'count(*)', "timestamp > timestamp'1970-01-02 17:59:59.999Z'") == 1
    assert one(spark, job, 'count(*)', 'date = cast(to_utc_timestamp(timestamp, current_timezone()) as date)') == 15


def test_optimize_vacuum_and_deletion_vectors_between_runs(spark, job):
    for _ in range(3):
        job.run(5)
    change(spark, job, 'optimize {table}')
    change(spark, job, 'vacuum {table} retain 0 hours')
    job.run(5)
    assert offsets(spark, job) == list(range(20))
    change(spark, job, "alter table {table} set tblproperties ('delta.enableDeletionVectors'='true')")
    change(spark, job, 'delete from {table} where offset < 7')
    job.run(5)
    assert offsets(spark, job) == list(range(7, 25))
    assert job.load().rolled_back is None


def test_a_checkpoint_of_spark_in_its_second_form_and_a_log_that_ends_there(spark, job):
    job.run(5)
    change(spark, job, "alter table {table} set tblproperties ('delta.checkpointPolicy'='v2', "
                       "'delta.checkpointInterval'='2')")
    for day in (1, 2, 3):
        change(spark, job, f"insert into {{table}} (topic, date) values ('other', date'2020-01-0{day}')")
    assert any('.checkpoint.' in path for path in job.table.store.list('_delta_log'))
    before = job.load().record
    fresh = Job(job.table.name, job.partition_by)
    assert fresh.load().record == before
    fresh.run(5)
    assert offsets(spark, job) == list(range(10))


def test_vacuum_deletes_files_that_no_commit_names(spark, job):
    job.run(5)
    state = job.load()
    record, _ = job.prepare(state, 5)
    change(spark, job, 'vacuum {table} retain 0 hours')
    assert [*job.table.store.list(job.table.directory(Attempt('default', record.run, record.attempt)))] == []
    assert offsets(spark, job) == [0, 1, 2, 3, 4]


def test_a_restore_by_spark_is_noticed_until_the_next_run(spark, job):
    first = job.run(5)
    job.run(5)
    for version in (first, 0):  # the second takes the property of the job back, too
        before = job.load().record
        change(spark, job, f'restore table {{table}} to version as of {version}')
        state = job.load()
        assert 'RESTORE' in state.rolled_back
        assert state.record == before
        job.run(5)
        assert job.load().rolled_back is None
    assert offsets(spark, job) == list(range(15, 20))


def test_a_shallow_clone_by_spark_is_refused(spark, job, tmp_path):
    job.run(5)
    spark.rows(f'create table delta.`{tmp_path}/clone` shallow clone delta.`{job.table.name}`')
    with pytest.raises(IngestError, match='found no txn actions of the job: a clone'):
        Job(tmp_path / 'clone', job.partition_by).load()


@pytest.mark.parametrize('change_of, message', [
    ("set tblproperties ('delta.enableRowTracking'='true')", 'found writer feature rowTracking'),
    ("set tblproperties ('delta.columnMapping.mode'='name')", r'found delta\.columnMapping\.mode=name'),
    ("set tblproperties ('delta.enableInCommitTimestamps'='true')", 'found writer feature inCommitTimestamp'),
    ('add constraint positive check (offset >= 0)', r'found delta\.constraints\.positive'),
    ('cluster by (offset)', 'found writer feature clustering'),
])
def test_features_that_an_append_would_break_are_refused(spark, tmp_path, change_of, message):
    job = Job(tmp_path / 'table')
    job.run(5)
    change(spark, job, f'alter table {{table}} {change_of}')
    with pytest.raises(IngestError, match=message):
        job.load()
