"""Other programs on the Iceberg table of a job: rollbacks, compaction, the expiry of snapshots, changes of columns."""
import pyarrow as pa
import pytest
from pyiceberg.table.update import RemoveSnapshotRefUpdate
from pyiceberg.types import StringType
from support.lake.catalogs import maintain, sql_catalog
from support.lake.iceberg_runs import COLUMNS, offsets_in, prepare, record_of, rows_of, run

from kbroker_tools.spark.lake.iceberg import IcebergTable
from kbroker_tools.spark.lake.table_format import Attempt, Refused
from kbroker_tools.spark.ledger import IngestError


@pytest.fixture
def table(tmp_path):
    table = IcebergTable('lake.orders', sql_catalog(tmp_path), {})
    table.create(COLUMNS, [])
    return table


def handle_of(table):
    return table.load('default').handle


def compact(table):
    """Write all rows again, into new files."""
    handle = handle_of(table)
    handle.overwrite(handle.scan().to_arrow())


def expire(table):
    """Delete all snapshots but the current one."""
    handle = handle_of(table)
    current = handle.current_snapshot().snapshot_id
    old = [each.snapshot_id for each in handle.snapshots() if each.snapshot_id != current]
    handle.maintenance.expire_snapshots().by_ids(old).commit()


def test_a_rollback_is_noticed_until_the_next_run(table):
    run(table, 0)
    older = handle_of(table).current_snapshot().snapshot_id
    run(table, 1)
    handle_of(table).manage_snapshots().rollback_to_snapshot(older).commit()
    state = table.load('default')
    assert state.record.run == 2
    assert 'sequence number 1, and is older than run 2 of job default, which has 2' in state.rolled_back
    run(table, 2)       # the user accepted the rollback
    assert table.load('default').rolled_back is None
    assert offsets_in(table) == [0, 2]


def test_a_rollback_is_noticed_after_a_commit_of_another_program(table):
    run(table, 0)
    older = handle_of(table).current_snapshot().snapshot_id
    run(table, 1)
    handle_of(table).manage_snapshots().rollback_to_snapshot(older).commit()
    handle_of(table).append(rows_of(7))
    assert 'the table was rolled back, and then changed' in table.load('default').rolled_back


def test_a_rollback_to_no_snapshot_is_noticed(table):
    run(table, 0)
    handle = handle_of(table)
    handle.catalog.commit_table(handle, (), (RemoveSnapshotRefUpdate(ref_name='main'),))
    assert 'no snapshot, but run 1 of job default has committed one' in table.load('default').rolled_back


def test_a_rollback_of_one_job_is_not_one_of_another(table):
    run(table, 0, job='other')
    older = handle_of(table).current_snapshot().snapshot_id
    run(table, 1)
    handle_of(table).manage_snapshots().rollback_to_snapshot(older).commit()
    assert table.load('default').rolled_back
    assert table.load('other').rolled_back is None


def test_the_record_survives_compaction_and_the_expiry_of_snapshots(table):
    attempts = [run(table, 0), run(table, 1)]
    compact(table)
    assert table.load('default').rolled_back is None
    expire(table)
    state = table.load('default')
    assert state.record.attempt == attempts[1].id
    assert state.rolled_back is None
    assert table.committed_files(state, attempts[1]) == set()
    run(table, 2)
    assert offsets_in(table) == [0, 1, 2]


def test_files_that_a_retained_snapshot_names_are_committed(table):
    first = run(table, 0)
    second = run(table, 1)
    assert len(table.committed_files(table.load('default'), first)) == 1
    expire(table)           # the files of both runs are in the table, and only the summary of the second run
    state = table.load('default')
    assert len(table.committed_files(state, first)) == len(table.committed_files(state, second)) == 1
    compact(table)
    expire(table)
    state = table.load('default')
    assert table.committed_files(state, first) == table.committed_files(state, second) == set()


@pytest.mark.jvm
@pytest.mark.soak
def test_the_library_of_iceberg_reads_and_maintains_the_table(tmp_path):
    table = IcebergTable('lake.days', sql_catalog(tmp_path), {})
    table.create(COLUMNS, ['topic', 'date'])
    attempts = [run(table, 0), run(table, 1, 2, day=1)]
    before = [table.committed_files(table.load('default'), each) for each in attempts]
    found = maintain(tmp_path, 'lake.days', '2026-03-02T00:00:00+00:00')
    assert found == [f'{table.store.root}/{each}' for each in before[1]]
    state = table.load('default')
    assert len(state.handle.snapshots()) == 1
    assert state.rolled_back is None
    assert [table.committed_files(state, each) for each in attempts] == before
    run(table, 3)
    assert offsets_in(table) == [0, 1, 2, 3]


def test_only_manifests_that_can_name_an_attempt_are_read(table, monkeypatch):
    from pyiceberg.manifest import ManifestFile
    attempts = [run(table, number) for number in range(5)]
    state = table.load('default')
    read = []
    fetch = ManifestFile.fetch_manifest_entry
    monkeypatch.setattr(ManifestFile, 'fetch_manifest_entry',
                        lambda self, *arguments, **options: read.append(1) or fetch(self, *arguments, **options))
    for attempt in attempts:
        assert len(table.committed_files(state, attempt)) == 1
    assert len(read) == 5
    assert table.committed_files(state, Attempt('default', 6)) == set()
    assert table.committed_files(state, Attempt('default', 5)) == set()
    assert len(read) == 5


def test_a_record_that_another_program_removed_is_missed(table):
    run(table, 0)
    handle_of(table).append(rows_of(7))
    with handle_of(table).transaction() as change:
        change.remove_properties('kbroker.ingest.default')
    with pytest.raises(IngestError, match=r'found no such property, but snapshot \d+ has rows of the job'):
        table.load('default')
    assert table.load('other').record is None


def test_files_are_parquet_in_a_table_of_another_format(table):
    with handle_of(table).transaction() as change:
        change.set_properties({'write.format.default': 'orc'})
    run(table, 0)
    assert offsets_in(table) == [0]
    assert handle_of(table).inspect.files().column('file_format').to_pylist() == ['PARQUET']


def test_a_column_of_others_is_null_in_new_rows(table):
    run(table, 0)
    with handle_of(table).update_schema() as change:
        change.add_column('note', StringType())
    run(table, 1)
    assert handle_of(table).scan().to_arrow().column('note').to_pylist() == [None, None]
    assert 'note' in table.load('default').schema.names


def test_a_column_that_was_added_while_a_run_wrote_is_null_in_its_rows(table):
    mine = prepare(table, 0)
    with handle_of(table).update_schema() as change:
        change.add_column('note', StringType())
    with pytest.raises(Refused):
        table.commit(*mine)
    table.commit(table.load('default'), *mine[1:])
    assert handle_of(table).scan().to_arrow().column('note').to_pylist() == [None]


def test_rows_that_lack_a_required_column_are_one_line(table):
    with handle_of(table).update_schema(allow_incompatible_changes=True) as change:
        change.add_column('note', StringType(), required=True, default_value='x')
        change.update_column('key', required=True)
    state, attempt = table.load('default'), Attempt('default', 1)
    writer = table.writer(state, attempt)
    with pytest.raises(IngestError, match=r'table lake\.orders: ') as error:
        writer.write(rows_of(0), 'task-0')
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('change', [lambda update: update.rename_column('key', 'k'),
                                    lambda update: update.delete_column('key')])
def test_a_column_that_was_renamed_or_dropped_while_a_run_wrote_refuses_the_commit(table, change):
    mine = prepare(table, 0)
    with handle_of(table).update_schema(allow_incompatible_changes=True) as update:
        change(update)
    with pytest.raises(Refused):
        table.commit(*mine)
    assert 'key' not in table.load('default').schema.names
    assert 'key' in table.columns(COLUMNS, []).names


def nested(*fields):
    return pa.schema([*COLUMNS.remove(1), ('value', pa.struct(fields))])


def test_columns_and_fields_of_structs_are_added(tmp_path):
    table = IcebergTable('lake.nested', sql_catalog(tmp_path / 'nested'), {})
    old = nested(('id', pa.int64()), ('at', pa.struct([('city', pa.string())])))
    table.create(old, [])
    new = nested(('id', pa.int64()), ('at', pa.struct([('city', pa.string()), ('zip', pa.string())])),
                 ('note', pa.string())).append(pa.field('value_undecoded', pa.binary()))
    table.add_columns(table.load('default'), new)
    state, attempt = table.load('default'), Attempt('default', 1)
    assert state.schema == table.columns(new, [])
    row = rows_of(0).to_pylist()[0] | {'value': {'id': 1, 'at': {'city': 'c', 'zip': 'z'}, 'note': 'n'}}
    table.commit(state, record_of(attempt, 1),
                 table.writer(state, attempt).write(pa.Table.from_pylist([row], new), 'task-0'))
    assert handle_of(table).scan().to_arrow().column('value').to_pylist() == [row['value']]
    table.add_columns(table.load('default'), old)       # adds nothing


def test_columns_are_not_added_to_a_table_that_has_changed(table):
    state = table.load('default')
    with handle_of(table).update_schema() as change:
        change.add_column('note', StringType())
    with pytest.raises(Refused):
        table.add_columns(state, COLUMNS.append(pa.field('other', pa.string())))
