"""An ingest into a table: what a run does, what it refuses, and what it makes of a commit that fails."""
import errno
import itertools
import os
import pathlib
import pickle
import signal
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from support.lake.catalogs import sql_catalog
from support.spark.ingest_topics import Writer, add_partitions, consumed, create_topic, delete_topic

from kbroker_tools.spark.ingest_source import IngestSource
from kbroker_tools.spark.lake.columns import check_columns, is_extended
from kbroker_tools.spark.lake.delta import DeltaLakeTable
from kbroker_tools.spark.lake.iceberg import IcebergTable
from kbroker_tools.spark.lake.job import TableJob
from kbroker_tools.spark.lake.rows import LEAST_BYTES, Rows, TableWork, bundled
from kbroker_tools.spark.lake.runners import ProcessRunner
from kbroker_tools.spark.lake.table_format import Attempt, Refused, ReplyLost, TableUnavailable
from kbroker_tools.spark.ledger import IngestError
from kbroker_tools.spark.options import OptionError, parse_options

NUMBERS = itertools.count()
COLUMNS = ('partition', 'offset', 'key', 'value')


@pytest.fixture(scope='module')
def writer(shared_broker):
    return Writer(shared_broker.address, 'lake-job')


@pytest.fixture
def runner():
    runner = ProcessRunner(1)
    yield runner
    runner.stop()


class Failing:
    """A table whose commits fail in planned ways, before or after they are sent."""

    def commit(self, state, record, files):
        self.commits += 1
        if self.before:
            self.act(self.before.pop(0))
        version = super().commit(state, record, files)
        if self.after:
            self.act(self.after.pop(0))
        return version

    @staticmethod
    def act(what):
        if isinstance(what, Exception):
            raise what
        what()


def planning(table, *, before=(), after=()):
    table.before, table.after, table.commits = list(before), list(after), 0
    return table


class IcebergTables:
    """Tables of a catalog in SQLite."""

    def __init__(self, directory):
        self.settings = sql_catalog(directory)

    def table(self, name='orders', kind=IcebergTable):
        return kind(f'lake.{name}', self.settings, {})

    def failing(self, **planned):
        return planning(self.table(kind=type('FailingIceberg', (Failing, IcebergTable), {})), **planned)

    def rows(self, *columns, name='orders'):
        found = self.table(name).load('default').handle.scan().to_arrow()
        return sorted(zip(*(found.column(each).to_pylist() for each in columns or COLUMNS), strict=True))

    def go_back(self):
        """Undo the newest commit."""
        table = self.table().load('default').handle
        with table.manage_snapshots() as change:
            change.set_current_snapshot(table.history()[0].snapshot_id)

    def delete_partition(self):
        self.table().load('default').handle.delete('partition = 0')

    def drop_column(self):
        with self.table().load('default').handle.update_schema() as change:
            change.delete_column('timestampType')


class DeltaTables:
    """Tables in a directory."""

    def __init__(self, directory):
        self.directory = directory / 'delta'

    def table(self, name='orders', kind=DeltaLakeTable):
        return kind(str(self.directory / name), {})

    def failing(self, **planned):
        return planning(self.table(kind=type('FailingDelta', (Failing, DeltaLakeTable), {})), **planned)

    def opened(self, name='orders'):
        return DeltaTable(str(self.directory / name))

    def rows(self, *columns, name='orders'):
        found = pa.table(QueryBuilder().register('t', self.opened(name)).execute('select * from t'))
        return sorted(zip(*(found.column(each).to_pylist() for each in columns or COLUMNS), strict=True))

    def go_back(self):
        """Undo the newest commit."""
        table = self.opened()
        table.restore(table.version() - 1)

    def delete_partition(self):
        self.opened().delete('partition = 0')

    def drop_column(self):
        table = self.opened()
        fields = [field for field in table.schema().fields if field.name != 'timestampType']
        rows = pa.table(QueryBuilder().register('t', table).execute(
            f'select {", ".join(f"`{field.name}`" for field in fields)} from t'))
        write_deltalake(table, rows, mode='overwrite', schema_mode='overwrite')


@pytest.fixture(params=[IcebergTables, DeltaTables], ids=['iceberg', 'delta'])
def tables(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture
def topic(shared_broker):
    return create_topic(shared_broker.address, name=f'lake-job{next(NUMBERS)}')


def job_of(shared_broker, tables, *topics, table=None, options=(), **more):
    source = IngestSource(shared_broker.address, topics, dict(options))
    return TableJob(source, table or tables.table(), **more)


def run(job, runner):
    return job.run(runner, lambda ended, total: None)


def files_in(tmp_path):
    """Return the names of all data files and markers."""
    return sorted(path.name for path in tmp_path.rglob('*') if path.suffix == '.parquet'
                  or path.parent.name in ('kbroker-attempts', '_kbroker'))


def test_runs_add_what_a_consumer_receives_and_only_once(shared_broker, writer, topic, tables, runner, tmp_path):
    job = job_of(shared_broker, tables, topic)
    for ends in (['commit', 'abort', 'commit'], [], ['abort'], ['commit']):
        for end in ends:
            writer.write(topic, 20, end)
        result = run(job, runner)
        assert (result.run is None) == (not ends)
        assert tables.rows() == consumed(shared_broker.address, topic)
    assert (result.rows, result.lag, result.undecoded) == (20, 0, None)
    assert not [name for name in files_in(tmp_path) if 'parquet' not in name]


def test_an_audit_has_the_rows_of_aborted_transactions_and_no_others(shared_broker, writer, topic, tables, runner):
    writer.write(topic, 4, 'abort', value='gone')
    writer.write(topic, 4, 'commit')
    job = job_of(shared_broker, tables, topic, is_aborted=True, options={'includeTransactions': 'true'})
    assert run(job, runner).rows == 4
    assert [row[:1] for row in tables.rows('value', 'offset')] == [(b'gone',)] * 4
    assert {row for row in tables.rows('outcome')} == {('aborted',)}
    writer.write(topic, 2, 'abort')
    assert run(job, runner).rows == 2


def test_a_transaction_that_is_open_waits_for_a_later_run_of_either_kind(shared_broker, writer, topic, tables, runner):
    job, audit = (job_of(shared_broker, tables, topic, table=tables.table(name),
                         is_aborted=name == 'audit') for name in ('orders', 'audit'))
    writer.write(topic, 4, None)
    assert (run(job, runner).rows, run(audit, runner).rows) == (0, 0)
    writer.end('abort')
    assert (run(job, runner).rows, run(audit, runner).rows) == (0, 4)


def test_two_jobs_write_to_one_table_each_with_its_offsets(shared_broker, writer, topic, tables, runner):
    writer.write(topic, 10)
    for name in ('one', 'two'):
        assert run(job_of(shared_broker, tables, topic, name=name), runner).rows == 10
        assert run(job_of(shared_broker, tables, topic, name=name), runner).rows == 0
    assert len(tables.rows()) == 20


def test_a_job_gets_another_topic_and_more_partitions(shared_broker, writer, topic, tables, runner):
    writer.write(topic, 10)
    run(job_of(shared_broker, tables, topic), runner)
    other = create_topic(shared_broker.address, name=f'{topic}-other')
    writer.write(other, 6)
    add_partitions(shared_broker.address, topic, 3)
    more = Writer(shared_broker.address, 'lake-job-more')   # it knows the new partition
    more.write(topic, 9, partitions=3)
    assert run(job_of(shared_broker, tables, topic, other), runner).rows == 15


@pytest.mark.parametrize('threads', [0, 2])
def test_a_file_has_about_the_bytes_that_the_job_asks_for(shared_broker, writer, topic, tables, threads):
    for _ in range(5):
        writer.write(topic, 1, value='x' * 60_000)
    assert run(job_of(shared_broker, tables, topic, target_bytes=50_000, options={'batchBytes': '1'}),
               ProcessRunner(1, threads)).files == 5
    assert tables.rows() == consumed(shared_broker.address, topic)


# ---- refusals

def test_a_topic_that_does_not_exist_creates_no_table(shared_broker, tables, runner):
    with pytest.raises(OptionError, match="topic 'nowhere', which does not exist"):
        run(job_of(shared_broker, tables, 'nowhere'), runner)
    assert tables.table().load('default') is None


def test_a_topic_that_was_recreated_is_refused(shared_broker, writer, topic, tables, runner):
    writer.write(topic, 2)
    run(job_of(shared_broker, tables, topic), runner)
    delete_topic(shared_broker.address, topic)
    create_topic(shared_broker.address, name=topic)
    with pytest.raises(IngestError, match=f'topic {topic} was recreated.*give another --job or table'):
        run(job_of(shared_broker, tables, topic), runner)


@pytest.mark.parametrize(('change', 'message'), [
    ({'options': {'includeHeaders': 'true'}}, 'job default has columns .*headers.*, or --evolve add for more columns'),
    ({'is_aborted': True}, 'job default has rows committed, but this run has aborted; give another --job'),
    ({'options': {'isolation': 'read_uncommitted'}}, 'job default has isolation read_committed, but this run has'),
    ({'partition_by': ['topic']}, 'found partitioning by nothing, but --partition-by has topic'),
])
def test_other_options_than_those_of_the_last_run_are_refused(shared_broker, writer, topic, tables, runner, change,
                                                              message):
    writer.write(topic, 2)
    run(job_of(shared_broker, tables, topic), runner)
    with pytest.raises(IngestError, match=message):
        run(job_of(shared_broker, tables, topic, **change), runner)


def test_a_job_that_may_add_columns_does_so(shared_broker, writer, topic, tables, runner):
    writer.write(topic, 2)
    run(job_of(shared_broker, tables, topic), runner)
    writer.write(topic, 2)
    more = job_of(shared_broker, tables, topic, options={'includeHeaders': 'true'}, may_add_columns=True)
    assert run(more, runner).rows == 2
    assert len(tables.rows()) == 4


@pytest.mark.parametrize('name', ['', 'a b', 'a/b', 'x' * 101, 'ä'])
def test_a_job_has_a_name_that_files_can_have(shared_broker, tables, name):
    with pytest.raises(IngestError, match='--job: found'):
        job_of(shared_broker, tables, 'topic', name=name)


def test_a_table_of_another_cluster_is_refused(shared_broker, broker, writer, topic, tables, runner):
    writer.write(topic, 2)
    job = job_of(shared_broker, tables, topic)
    run(job, runner)
    create_topic(broker.address, name=topic)
    with pytest.raises(IngestError, match=r'job default has ingested cluster \S+, but \S+ is cluster'):
        run(job_of(broker, tables, topic), runner)


def test_a_rollback_is_refused_until_it_is_accepted(shared_broker, writer, topic, tables, runner):
    job = job_of(shared_broker, tables, topic)
    for _ in range(2):
        writer.write(topic, 10)
        run(job, runner)
    tables.go_back()
    writer.write(topic, 10)
    with pytest.raises(IngestError, match='--accept-rollback continues'):
        run(job, runner)
    assert run(job_of(shared_broker, tables, topic, accepts_rollback=True), runner).rows == 10
    assert len(tables.rows()) == 20
    writer.write(topic, 10)
    assert run(job, runner).rows == 10


# ---- commits that fail

@pytest.mark.parametrize('error', [Refused('moved'), ReplyLost('no reply')])
def test_a_commit_that_did_not_arrive_is_sent_again_with_the_same_files(shared_broker, writer, topic, tables, runner,
                                                                        tmp_path, error):
    writer.write(topic, 10)
    job = job_of(shared_broker, tables, topic, table=tables.failing(before=[error]))
    assert run(job, runner).rows == 10
    assert job.table.commits == 2
    assert tables.rows() == consumed(shared_broker.address, topic)
    assert len(files_in(tmp_path)) == 1


def test_a_commit_whose_reply_is_lost_counts_once(shared_broker, writer, topic, tables, runner, tmp_path):
    writer.write(topic, 10)
    job = job_of(shared_broker, tables, topic, table=tables.failing(after=[ReplyLost('no reply')]))
    assert run(job, runner).version == job.table.load('default').version
    assert job.table.commits == 1
    assert tables.rows() == consumed(shared_broker.address, topic)
    assert len(files_in(tmp_path)) == 1


def test_a_lost_reply_and_a_table_that_cannot_be_read_leave_the_files(shared_broker, writer, topic, tables, runner,
                                                                      tmp_path):
    writer.write(topic, 10)
    table = tables.failing(after=[ReplyLost('no reply')])
    job = job_of(shared_broker, tables, topic, table=table)

    loads, load_now = itertools.count(), table.load

    def load(name):
        if next(loads) > 1:
            raise TableUnavailable('the tables is down')
        return load_now(name)

    table.load = load
    with pytest.raises(TableUnavailable, match='in the table, or not; the next run finds out'):
        run(job, runner)
    del table.load
    assert len(files_in(tmp_path)) == 2
    assert run(job, runner).rows == 0
    assert tables.rows() == consumed(shared_broker.address, topic)
    assert len(files_in(tmp_path)) == 1


def test_a_lost_reply_and_a_run_of_another_driver_after_it_keep_the_rows_of_both(shared_broker, writer, topic, tables,
                                                                                  runner, tmp_path):
    """The record of the next run once looked as if the other driver had been first, and the committed files were
    deleted."""
    def lose():
        writer.write(topic, 10)
        assert run(job_of(shared_broker, tables, topic), runner).rows == 10
        raise ReplyLost('no reply for a long time')

    writer.write(topic, 10)
    job = job_of(shared_broker, tables, topic, table=tables.failing(after=[lose]))
    assert run(job, runner).rows == 10
    assert tables.rows() == consumed(shared_broker.address, topic)
    assert len(files_in(tmp_path)) == 2
    writer.write(topic, 10)
    assert run(job, runner).rows == 10
    assert tables.rows() == consumed(shared_broker.address, topic)


def test_an_unknown_outcome_and_a_run_of_another_driver_after_it_keep_the_rows_of_both(shared_broker, writer, topic,
                                                                                        tables, runner, tmp_path):
    table = tables.failing()
    load_now = table.load

    def refuse(name):
        table.load = load_now
        raise TableUnavailable('the catalog is down')

    def lose():
        writer.write(topic, 10)
        assert run(job_of(shared_broker, tables, topic), runner).rows == 10
        table.load = refuse
        raise ReplyLost('no reply for a long time')

    table.after = [lose]
    writer.write(topic, 10)
    assert run(job_of(shared_broker, tables, topic, table=table), runner).run is None
    assert tables.rows() == consumed(shared_broker.address, topic)
    assert len(files_in(tmp_path)) == 2
def test_a_catalog_that_can_only_be_read_ends_the_run_soon(shared_broker, writer, topic, tables, runner, tmp_path):
    """The files stay, because a commit may still arrive. The next run deletes them."""
    writer.write(topic, 10)
    job = job_of(shared_broker, tables, topic, table=tables.failing(before=[ReplyLost('read-only')] * 8))
    job._pause_s = 0
    with pytest.raises(TableUnavailable, match='8 commits failed, and their rows are not in the table: read-only'):
        run(job, runner)
    assert run(job, runner).rows == 10
    assert tables.rows() == consumed(shared_broker.address, topic)
    assert len(files_in(tmp_path)) == 1


def test_a_table_that_cannot_be_read_after_the_commit_is_a_note(shared_broker, writer, topic, tables, runner, tmp_path):
    writer.write(topic, 10)
    table = tables.table()
    job = job_of(shared_broker, tables, topic, table=table)
    loads, load_now = itertools.count(), table.load

    def load(name):
        if next(loads) > 1:
            raise TableUnavailable('the catalog is down')
        return load_now(name)

    table.load = load
    result = run(job, runner)
    assert result.rows == 10
    assert 'the commits are done, and the table cannot be read now: the catalog is down' in result.notes[0]
    table.load = load_now
    assert run(job, runner).notes == []
    assert len(files_in(tmp_path)) == 1


def test_a_run_that_another_driver_wins_deletes_its_files_and_starts_again(shared_broker, writer, topic, tables,
                                                                           runner, tmp_path):
    writer.write(topic, 10)
    other = job_of(shared_broker, tables, topic)
    run(job_of(shared_broker, tables, topic), runner)
    writer.write(topic, 10)
    table = tables.failing(before=[lambda: run(other, runner)])
    assert run(job_of(shared_broker, tables, topic, table=table), runner).run is None
    assert tables.rows() == consumed(shared_broker.address, topic)
    assert len(files_in(tmp_path)) == 2


def test_another_program_that_writes_in_between_moves_the_commit_and_not_the_rows(shared_broker, writer, topic,
                                                                                 tables, runner):
    writer.write(topic, 10)
    run(job_of(shared_broker, tables, topic), runner)
    writer.write(topic, 10)

    table = tables.failing(before=[tables.delete_partition])
    assert run(job_of(shared_broker, tables, topic, table=table), runner).rows == 10
    assert table.commits == 2
    assert len(tables.rows()) == 15


def test_a_column_that_is_dropped_in_between_is_refused_and_nothing_is_committed(shared_broker, writer, topic, tables,
                                                                                runner):
    writer.write(topic, 10)
    run(job_of(shared_broker, tables, topic), runner)
    writer.write(topic, 10)

    table = tables.failing(before=[tables.drop_column])
    with pytest.raises(IngestError, match='found no column timestampType'):
        run(job_of(shared_broker, tables, topic, table=table), runner)
    assert len(tables.rows()) == 10


def test_a_task_that_fails_leaves_nothing(shared_broker, writer, topic, tables, runner, tmp_path, monkeypatch):
    writer.write(topic, 10)
    job = job_of(shared_broker, tables, topic)

    class Broken:
        def __init__(self, inner):
            self.inner = inner

        def write(self, rows, name):
            self.inner.write(rows, name)
            raise OSError(errno.ENOSPC, 'no space left')

    writer_now = job.table.writer
    monkeypatch.setattr(job.table, 'writer', lambda *of: Broken(writer_now(*of)))
    with pytest.raises(OSError, match='no space left'):
        run(job, runner)
    assert files_in(tmp_path) == []
    monkeypatch.undo()
    assert run(job, runner).rows == 10


def test_a_run_whose_files_another_driver_deletes_starts_again(shared_broker, writer, topic, tables, runner, tmp_path,
                                                               monkeypatch):
    """The driver that commits a run deletes the files of all other attempts at it. Their tasks and commits may fail."""
    def lose(*_):
        monkeypatch.undo()
        run(job_of(shared_broker, tables, topic), runner)
        raise TableUnavailable('file not found')

    writer.write(topic, 10)
    job = job_of(shared_broker, tables, topic)
    monkeypatch.setattr(job.table, 'writer', lambda *of: SimpleNamespace(write=lose))
    assert run(job, runner).run is None
    assert tables.rows() == consumed(shared_broker.address, topic)
    assert len(files_in(tmp_path)) == 1
    writer.write(topic, 10)
    assert run(job_of(shared_broker, tables, topic, table=tables.failing(before=[lose])), runner).run is None
    assert tables.rows() == consumed(shared_broker.address, topic)
    assert len(files_in(tmp_path)) == 2


# ---- processes

class Die:
    """Work that kills its process until it has been tried a number of times."""

    def __init__(self, directory, times):
        self.directory, self.times = directory, times

    def run(self, tasks, name):
        (self.directory / name).touch()
        if tasks == ['dies'] and len(list(self.directory.iterdir())) <= self.times:
            os.kill(os.getpid(), signal.SIGKILL)
        return tasks


def test_a_process_that_is_killed_is_replaced(tmp_path):
    runner = ProcessRunner(2)
    try:
        assert runner.run(Die(tmp_path, 1), [['dies'], ['lives']], lambda ended, total: None) == [['dies'], ['lives']]
    finally:
        runner.stop()


@pytest.mark.soak
def test_a_process_that_is_killed_every_time_ends_the_run(tmp_path):
    runner = ProcessRunner(2)
    with pytest.raises(IngestError, match=r'was killed, 4 times; .* fewer --workers or a smaller --target-file-size'):
        runner.run(Die(tmp_path, 100), [['dies'], ['lives']], lambda ended, total: None)
    runner.stop()


# ---- pieces

class Task:
    def __init__(self, size_bytes):
        self.size_bytes = size_bytes


@pytest.mark.parametrize(('sizes', 'options', 'bundles'), [
    ([], {}, []),
    ([1] * 1000, {}, [1000]),
    ([LEAST_BYTES] * 4, {'minPartitions': '2'}, [2, 2]),
    ([LEAST_BYTES * 9, 1, 1], {}, [3]),
    ([LEAST_BYTES * 20, LEAST_BYTES, 1], {}, [1, 2]),
])
def test_small_tasks_share_a_bundle(sizes, options, bundles):
    options = parse_options({'path': '/log', **options})
    assert [len(each) for each in bundled([Task(size) for size in sizes], options)] == bundles


@pytest.mark.parametrize(('rows', 'chunks'), [(1, 1), (20_000, 5)])
def test_small_batches_are_combined_before_they_are_written(rows, chunks, monkeypatch):
    batch = pa.RecordBatch.from_pydict({'offset': list(range(rows))})
    written = []
    monkeypatch.setattr(Rows, 'read', lambda self, tasks, totals: iter([batch] * 5))
    writer = SimpleNamespace(write=lambda rows, name: written.append(rows) or [])
    TableWork(Rows(parse_options({'path': '/', 'subscribe': 't'})), writer, 1 << 30).run([], 'name')
    assert [(table.num_rows, table.column('offset').num_chunks) for table in written] == [(rows * 5, chunks)]


class ThreadedWriter:
    """A writer whose files end only when `may_end` is set. Each thread has a copy, so its state is in the class."""

    def write(self, rows, name):
        self.running.append(name)
        try:
            assert self.may_end.wait(60), 'the task neither read on nor waited for a file'
            if self.error is not None:
                raise self.error
            return [name.encode()]
        finally:
            self.running.remove(name)


@pytest.fixture
def threaded_writer():
    ThreadedWriter.may_end, ThreadedWriter.running, ThreadedWriter.error = threading.Event(), [], None
    return ThreadedWriter


def work_of(monkeypatch, read, write_threads):
    """Return work that writes a file for each batch that `read` yields."""
    monkeypatch.setattr(Rows, 'read', lambda self, tasks, totals: read())
    return TableWork(Rows(parse_options({'path': '/', 'subscribe': 't'})), ThreadedWriter(), 1, write_threads)


def batches(count):
    return (pa.RecordBatch.from_pydict({'offset': [number]}) for number in range(count))


@pytest.mark.parametrize('threads', [1, 2, 3])
def test_a_task_reads_the_rows_of_one_more_file_than_it_has_threads_before_it_waits(threads, threaded_writer,
                                                                                    monkeypatch):
    reads, reads_at_waits, result = [], [], Future.result

    def read():
        for batch in batches(9):
            reads.append(batch)
            yield batch

    def wait(future):
        reads_at_waits.append(len(reads))
        threaded_writer.may_end.set()
        return result(future)

    monkeypatch.setattr(Future, 'result', wait)
    found = work_of(monkeypatch, read, threads).run([], 'name')
    assert found.files == [b'name-%05d' % number for number in range(9)]
    assert reads_at_waits[0] == threads + 2     # the last read showed that a file had its rows


@pytest.mark.parametrize('threads', [0, 2])
def test_the_last_file_is_written_by_the_thread_that_reads(threads, threaded_writer, monkeypatch):
    """Most runs of a job that follows a topic write one file. They start no thread."""
    threaded_writer.may_end.set()
    work = work_of(monkeypatch, lambda: batches(1), threads)
    monkeypatch.setattr(threading.Thread, 'start', lambda self: pytest.fail('a thread was started'))
    assert work.run([], 'name').files == [b'name-00000']


def test_a_thread_that_fails_ends_the_task_and_its_other_threads(threaded_writer, monkeypatch):
    threaded_writer.error = OSError(errno.ENOSPC, 'No space left on device')
    threaded_writer.may_end.set()
    with pytest.raises(OSError, match='No space left'):
        work_of(monkeypatch, lambda: batches(9), 2).run([], 'name')
    assert threaded_writer.running == []


def test_no_thread_writes_after_a_task_that_could_not_read(threaded_writer, monkeypatch):
    """A driver deletes the files of a failed attempt. A thread that wrote on would leave one behind."""
    def read():
        yield from batches(3)
        threaded_writer.may_end.set()
        raise TableUnavailable('the broker is gone')

    with pytest.raises(TableUnavailable):
        work_of(monkeypatch, read, 2).run([], 'name')
    assert threaded_writer.running == []


def test_attempts_are_found_by_the_names_of_their_markers():
    attempt = Attempt('a-b.c', 12)
    assert Attempt.named(attempt.name) == attempt
    for name in ('', 'a', 'a-1', 'a-x-' + 'f' * 32, '-000001-' + 'f' * 32, 'a-000001-short'):
        assert Attempt.named(name) is None


def schema(**columns):
    return pa.schema(columns)


@pytest.mark.parametrize(('found', 'wanted'), [
    (schema(a=pa.large_string()), schema(a=pa.string())),
    (schema(a=pa.timestamp('us', '+00:00')), schema(a=pa.timestamp('us', 'UTC'))),
    (schema(a=pa.struct({'x': pa.int32(), 'y': pa.large_binary()})), schema(a=pa.struct({'y': pa.binary()}))),
    (schema(a=pa.large_list(pa.field('item', pa.int32(), False))), schema(a=pa.list_(pa.int32()))),
    (schema(a=pa.map_(pa.large_string(), pa.int32())), schema(a=pa.map_(pa.string(), pa.int32()))),
])
def test_columns_are_the_same_whatever_library_names_them(found, wanted):
    check_columns('t', found, wanted)
    assert not is_extended(found, wanted)


@pytest.mark.parametrize(('found', 'wanted', 'message'), [
    (schema(b=pa.int32()), schema(a=pa.int32()), 'found no column a, expected it with type int32'),
    (schema(a=pa.int64()), schema(a=pa.int32()), 'found column a with type int64, expected int32'),
    (schema(a=pa.struct({'x': pa.int32()})), schema(a=pa.struct({'y': pa.int32()})), 'found no column a.y'),
    (schema(a=pa.list_(pa.int64())), schema(a=pa.list_(pa.int32())), 'found column a.element with type int64'),
    (schema(a=pa.list_(pa.int64())), schema(a=pa.int64()), 'found column a with type list<element: int64>'),
])
def test_a_column_that_is_missing_or_has_another_type_is_refused(found, wanted, message):
    with pytest.raises(IngestError, match=message):
        check_columns('t', found, wanted)


def test_rows_can_be_sent_to_a_task():
    rows = Rows(parse_options({'path': str(pathlib.Path('/log')), 'includeHeaders': 'true'}))
    assert pickle.loads(pickle.dumps(rows)).schema == rows.schema
    assert rows.schema.names[-1] == 'headers'
