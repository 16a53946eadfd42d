"""Iceberg tables: the offsets and the files of a run in one commit, which is sent once."""
import os
import pathlib
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.lake.catalogs import sql_catalog
from support.lake.iceberg_runs import COLUMNS, offsets_in, prepare, record_of, rows_of, run

from kbroker_tools.spark.lake import iceberg_private
from kbroker_tools.spark.lake.iceberg import IcebergTable
from kbroker_tools.spark.lake.table_format import Attempt, JobRecord, Refused
from kbroker_tools.spark.ledger import IngestError

NAME = 'kbroker.ingest.default'


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
    assert state.handle.current_snapshot().summary[NAME] == state.handle.properties[NAME]


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
    assert table.load('third').record is None


def test_of_two_drivers_one_commits(table, catalog):
    other = IcebergTable('lake.orders', catalog, {})
    mine, theirs = prepare(table, 0, 1), prepare(other, 0, 1)
    other.commit(*theirs)
    with pytest.raises(Refused):
        table.commit(*mine)
    assert offsets_in(table) == [0, 1]
    state = table.load('default')
    lost, won = (Attempt('default', 1, record.attempt) for _, record, _ in (mine, theirs))
    assert state.record.attempt == won.id
    assert table.committed_files(state, lost) == set()
    assert len(table.committed_files(state, won)) == 1
    assert len(list(table.store.list(table.directory(lost)))) == 1


def test_the_files_of_a_refused_commit_can_be_committed_on_the_new_state(table):
    _, record, files = mine = prepare(table, 0, 1)
    run(table, 7, job='other')
    with pytest.raises(Refused):
        table.commit(*mine)
    table.commit(table.load('default'), record, files)
    assert offsets_in(table) == [0, 1, 7]


def test_a_commit_to_another_branch_refuses_the_sequence_number_and_not_the_run(table):
    run(table, 0)
    _, record, files = mine = prepare(table, 1)
    handle = table.load('default').handle
    handle.manage_snapshots().create_branch(handle.current_snapshot().snapshot_id, 'audit').commit()
    handle.append(rows_of(9), branch='audit')
    with pytest.raises(Refused, match='sequence number'):
        table.commit(*mine)
    table.commit(table.load('default'), record, files)
    assert offsets_in(table) == [0, 1]
    assert table.load('default').rolled_back is None


def test_the_files_of_an_attempt_are_in_its_directory(table):
    attempt = run(table, 0, 1)
    directory = table.directory(attempt)
    assert list(table.store.list(directory)) == [f'{directory}/task-0-0.parquet']
    assert table.committed_files(table.load('default'), attempt) == set(table.store.list(directory))


def test_each_row_of_a_table_is_in_the_files_of_one_write(table):
    handle = table.load('default').handle
    with handle.transaction() as change:
        change.set_properties({'write.target-file-size-bytes': '1000'})
    state, attempt = table.load('default'), Attempt('default', 1)
    files = table.writer(state, attempt).write(rows_of(*range(100)), 'task-0')
    table.commit(state, record_of(attempt, 100), files)
    assert len(files) > 2
    assert offsets_in(table) == list(range(100))
    assert len(table.committed_files(table.load('default'), attempt)) == len(files)


def test_files_have_the_field_ids_and_the_statistics_of_the_table(table):
    attempt = run(table, 3, 5)
    path = pathlib.Path(table.store.root) / next(iter(table.store.list(table.directory(attempt))))
    file = pq.ParquetFile(path)
    handle = table.load('default').handle
    ids = [int(field.metadata[b'PARQUET:field_id']) for field in file.schema_arrow]
    assert ids == [field.field_id for field in handle.schema().fields]
    assert file.metadata.row_group(0).column(1).compression == 'ZSTD'
    bounds = handle.inspect.files().column('readable_metrics').to_pylist()[0]
    assert (bounds['offset']['lower_bound'], bounds['offset']['upper_bound']) == (3, 5)
    assert bounds['value']['lower_bound'] is None


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
    assert len(state.handle.inspect.files()) == 2


def test_a_partitioning_by_others_has_the_text_of_iceberg(table):
    with table.load('default').handle.update_spec() as change:
        change.add_field('partition', 'bucket[4]')
        change.add_field('timestamp', 'hour')
    assert table.load('default').partition_by == ['bucket[4](partition)', 'hour(timestamp)']


def test_files_of_an_older_partitioning_are_not_committed(table):
    _, record, files = prepare(table, 0)
    with table.load('default').handle.update_spec() as change:
        change.add_identity('topic')
    with pytest.raises(IngestError, match='changed the partitioning while this run wrote'):
        table.commit(table.load('default'), record, files)


def test_nested_columns(catalog):
    schema = pa.schema([*COLUMNS.remove(1), ('value', pa.struct([('id', pa.int64()), ('tags', pa.list_(pa.string()))])),
                        ('headers', pa.list_(pa.struct([('key', pa.string()), ('value', pa.binary())])))])
    table = IcebergTable('lake.nested', catalog, {})
    table.create(schema, [])
    state, attempt = table.load('default'), Attempt('default', 1)
    row = rows_of(0).to_pylist()[0] | {'value': {'id': 7, 'tags': ['a', None]}, 'headers': [{'key': 'k', 'value': b''}]}
    files = table.writer(state, attempt).write(pa.Table.from_pylist([row], schema), 'task-0')
    table.commit(state, record_of(attempt, 1), files)
    found = table.load('default').handle.scan().to_arrow()
    assert found.select(['value', 'headers']).to_pylist() == [{name: row[name] for name in ('value', 'headers')}]
    assert state.schema == table.columns(schema, [])


def test_a_type_that_iceberg_lacks_is_named(table):
    with pytest.raises(IngestError, match=r'lake\.orders: a column has no type in Iceberg'):
        table.columns(pa.schema([('value', pa.duration('s'))]), [])


def test_a_writer_can_be_sent_to_a_task(table):
    run(table, 0)
    state, attempt = table.load('default'), Attempt('default', 2)
    sent = pickle.dumps(table.writer(state, attempt))
    files = pickle.loads(sent).write(rows_of(1, 2), 'task-0')
    table.commit(state, record_of(attempt, 3), files)
    assert offsets_in(table) == [0, 1, 2]
    assert NAME.encode() not in sent


def test_local_files_are_synced_before_a_commit_names_them(table, monkeypatch):
    synced = set()
    monkeypatch.setattr(iceberg_private, '_synced', set())
    monkeypatch.setattr(os, 'fsync', lambda descriptor: synced.add(os.readlink(f'/proc/self/fd/{descriptor}')))
    attempt = run(table, 0, 1)
    root = table.store.root
    state = table.load('default')
    snapshot = state.handle.current_snapshot()
    files = {f'{root}/{each}' for each in table.committed_files(state, attempt)}
    manifests = {each.manifest_path for each in snapshot.manifests(state.handle.io)}
    assert files | manifests | {snapshot.manifest_list, state.handle.metadata_location} <= synced
    assert {f'{root}/data/kbroker/{attempt.name}', f'{root}/data/kbroker', f'{root}/data', root} <= synced


def test_the_summary_of_a_snapshot_lacks_the_offsets_of_many_partitions(table):
    state, attempt = table.load('default'), Attempt('default', 1)
    offsets = {('orders', partition): 10 ** 9 + partition for partition in range(1000)}
    table.commit(state, JobRecord('default', 'cluster', {}, {}, offsets, 1, attempt.id), [])
    state = table.load('default')
    assert state.record.offsets == offsets
    assert state.rolled_back is None
    assert len(state.handle.current_snapshot().summary[NAME]) < 200


def test_nothing_is_printed(table, capfd):
    with table.load('default').handle.transaction() as change:
        change.set_properties({'write.parquet.row-group-size-bytes': '1000'})   # pyiceberg warns of this property
    run(table, 0)
    assert capfd.readouterr() == ('', '')
