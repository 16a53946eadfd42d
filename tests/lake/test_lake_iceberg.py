"""Iceberg tables: the offsets and the files of a run in one commit, which is sent once."""
import datetime
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.lake.catalogs import sql_catalog

from kbroker_tools.spark.lake.iceberg import IcebergTable
from kbroker_tools.spark.lake.table_format import Attempt, JobRecord, Refused

COLUMNS = pa.schema([('key', pa.binary()), ('value', pa.binary()), ('topic', pa.string()), ('partition', pa.int32()),
                     ('offset', pa.int64()), ('timestamp', pa.timestamp('us', 'UTC')), ('timestampType', pa.int32())])
DAY = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)


def rows_of(*offsets, topic='orders', day=0):
    at = DAY + datetime.timedelta(days=day)
    return pa.Table.from_pylist([{'key': None, 'value': b'v%d' % offset, 'topic': topic, 'partition': 0,
                                  'offset': offset, 'timestamp': at, 'timestampType': 0} for offset in offsets],
                                COLUMNS)


def record_of(attempt, end, job='default'):
    return JobRecord(job, 'cluster', {'orders': 'id-1'}, {'values': 'bytes'}, {('orders', 0): end}, attempt.run,
                     attempt.id)


def run(table, *offsets, job='default', day=0):
    """Write and commit one run. Return its attempt."""
    state = table.load(job)
    attempt = Attempt(job, (state.record.run if state.record else 0) + 1)
    files = table.writer(state, attempt).write(rows_of(*offsets, day=day), 'task-0') if offsets else []
    table.commit(state, record_of(attempt, max(offsets, default=0) + 1, job), files)
    return attempt


def offsets_in(table):
    return sorted(table.load('default').handle.scan().to_arrow().column('offset').to_pylist())


@pytest.fixture
def catalog(tmp_path):
    return sql_catalog(tmp_path)


@pytest.fixture
def table(catalog):
    table = IcebergTable('lake.orders', catalog, {})
    assert table.load('default') is None
    table.create(COLUMNS, [])
    return table


def test_a_commit_has_the_files_and_the_record(table):
    assert table.load('default').record is None
    attempt = run(table, 0, 1, 2)
    state = table.load('default')
    assert state.record == record_of(attempt, 3)
    assert offsets_in(table) == [0, 1, 2]
    name = 'kbroker.ingest.default'
    assert state.handle.current_snapshot().summary[name] == state.handle.properties[name]


def test_a_run_without_rows_moves_the_offsets(table):
    run(table)
    run(table, 0, 1)
    run(table)
    assert table.load('default').record.run == 3
    assert offsets_in(table) == [0, 1]


def test_jobs_of_one_table_have_their_own_records(table):
    first, second = run(table, 0, 1), run(table, 2, 3, job='other')
    assert table.load('default').record.attempt == first.id
    assert table.load('other').record.attempt == second.id


def test_of_two_drivers_one_commits(table, catalog):
    other = IcebergTable('lake.orders', catalog, {})
    states = [each.load('default') for each in (table, other)]
    attempts = [Attempt('default', 1), Attempt('default', 1)]
    files = [each.writer(state, attempt).write(rows_of(0, 1), 'task-0')
             for each, state, attempt in zip((table, other), states, attempts, strict=True)]
    other.commit(states[1], record_of(attempts[1], 2), files[1])
    with pytest.raises(Refused):
        table.commit(states[0], record_of(attempts[0], 2), files[0])
    assert offsets_in(table) == [0, 1]
    state = table.load('default')
    assert state.record.attempt == attempts[1].id
    assert table.committed_files(state, attempts[0]) == set()
    assert len(table.committed_files(state, attempts[1])) == 1


def test_the_files_of_an_attempt_are_in_its_directory(table):
    attempt = run(table, 0, 1)
    state = table.load('default')
    directory = table.directory(attempt)
    assert list(table.store.list(directory)) == [f'{directory}/task-0-0.parquet']
    assert table.committed_files(state, attempt) == set(table.store.list(directory))


def test_files_have_the_field_ids_of_the_table_and_are_compressed_with_zstd(table):
    attempt = run(table, 0, 1)
    path = pathlib.Path(table.store.root) / next(table.store.list(table.directory(attempt)))
    file = pq.ParquetFile(path)
    ids = [int(field.metadata[b'PARQUET:field_id']) for field in file.schema_arrow]
    assert ids == [field.field_id for field in table.load('default').handle.schema().fields]
    assert file.metadata.row_group(0).column(1).compression == 'ZSTD'


def test_a_table_is_partitioned_by_topic_and_by_the_day_of_the_timestamp(catalog):
    table = IcebergTable('lake.days', catalog, {})
    table.create(COLUMNS, ['topic', 'date'])
    table.create(COLUMNS, ['topic', 'date'])       # another driver was faster
    run(table, 0, 1)
    attempt = run(table, 2, 3, day=1)
    state = table.load('default')
    assert state.partition_by == ['topic', 'date']
    assert state.schema == table.columns(COLUMNS, ['topic', 'date'])
    directory = table.directory(attempt)
    assert table.committed_files(state, attempt) == {
        f'{directory}/topic=orders/timestamp_day=2026-03-02/task-0-0.parquet'}
    found = state.handle.scan(row_filter="timestamp >= '2026-03-02T00:00:00+00:00'").to_arrow()
    assert sorted(found.column('offset').to_pylist()) == [2, 3]
