"""Other programs on a Delta table of a job: RESTORE, OPTIMIZE, VACUUM, cleanup of the log, other columns and features,
and tables to which an ingest must not append."""
import json
from pathlib import Path

import pyarrow as pa
import pytest
from delta_steps import SCHEMA, Job
from deltalake import DeltaTable, Field, QueryBuilder, write_deltalake

from kbroker_tools.spark.lake.table_format import Attempt
from kbroker_tools.spark.ledger import IngestError


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path / 'table')


def table(job):
    return DeltaTable(job.table.name)


def put_commit(job, *actions):
    """Commit actions that delta-rs does not write."""
    path = Path(job.table.store.root, f'_delta_log/{table(job).version() + 1:020d}.json')
    path.write_text(''.join(f'{json.dumps(each)}\n' for each in actions))


def metadata_of(job):
    """Return the action with the metadata of the new table, in a list."""
    lines = Path(job.table.store.root, f'_delta_log/{0:020d}.json').read_text().splitlines()
    return [action for action in map(json.loads, lines) if 'metaData' in action]


def shorten_log(job):
    """Delete the commits before the newest checkpoint, as a cleanup does after the retention of the log."""
    table(job).create_checkpoint()
    table(job).alter.set_table_properties({'delta.logRetentionDuration': 'interval 0 seconds'})
    table(job).cleanup_metadata()


def test_a_restore_after_the_newest_run_is_noticed_until_the_next_run(job):
    first = int(job.run(5))
    job.run(5)
    table(job).restore(first)
    table(job).optimize.compact()
    state = job.load()
    assert state.rolled_back.startswith('version 4 is a RESTORE after run 2 of job default: rows of it may be gone')
    assert state.record.offsets == {('orders', 0): 10}
    job.run(5)
    assert job.load().rolled_back is None
    assert job.offsets() == [*range(5), *range(10, 15)]


def test_a_restore_to_a_version_before_the_job_keeps_the_facts_of_the_job(job):
    job.load()
    job.run(5)
    before = job.load().record
    table(job).restore(0)
    state = job.load()
    assert 'RESTORE' in state.rolled_back
    assert state.record == before
    job.run(5)
    assert job.load().record.offsets == {('orders', 0): 10}
    assert job.load().record.topic_ids == before.topic_ids


def test_a_restore_is_noticed_if_the_log_no_longer_has_the_run(job):
    version = int(job.run(5))
    job.run(5)
    table(job).create_checkpoint()
    table(job).restore(version)
    for each in range(4):
        Path(job.table.store.root, f'_delta_log/{each:020d}.json').unlink()
    assert 'RESTORE' in job.load().rolled_back


def test_a_removed_property_is_refused(job):
    job.run(5)
    write_deltalake(job.table.name, table(job).to_pyarrow_table(), mode='overwrite')
    assert job.load().record is not None
    put_commit(job, {'commitInfo': {'operation': 'UNSET TBLPROPERTIES'}}, *metadata_of(job))
    with pytest.raises(IngestError, match='found no property, but run 1 of the job is in the txn actions'):
        job.load()


def test_optimize_and_vacuum_between_runs(job):
    for _ in range(3):
        job.run(5)
    table(job).optimize.compact()
    table(job).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert job.load().record.offsets == {('orders', 0): 15}
    job.run(5)
    assert job.offsets() == list(range(20))
    assert job.load().rolled_back is None


def test_vacuum_deletes_files_that_no_commit_names_and_keeps_markers(job):
    job.run(5)
    state = job.load()
    record, _ = job.prepare(state, 5)
    attempt = Attempt('default', record.run, record.attempt)
    job.table.store.put(f'{job.table.markers}/{attempt.name}', b'{}')
    table(job).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert [*job.table.store.list(job.table.directory(attempt))] == []
    assert [*job.table.store.list(job.table.markers)] == [f'_kbroker/{attempt.name}']
    assert job.offsets() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize('is_new_process', [False, True])
def test_offsets_survive_a_checkpoint_and_the_cleanup_of_the_log(job, is_new_process, tmp_path):
    for _ in range(3):
        job.run(5)
    before = job.load().record
    shorten_log(job)
    assert [path for path in job.table.store.list('_delta_log') if path.endswith('2.json')] == []
    if is_new_process:
        job = Job(tmp_path / 'table')
    assert job.load().record == before
    job.run(5)
    assert job.offsets() == list(range(20))


def test_files_of_an_attempt_while_the_log_reaches_back_to_it(job):
    job.run(5)
    record = job.load().record
    winner, loser = Attempt('default', 1, record.attempt), Attempt('default', 1)
    (path,) = job.table.committed_files(job.load(), winner)
    assert path.startswith(job.table.directory(winner))
    assert job.table.committed_files(job.load(), loser) == set()
    job.run(5)
    assert job.table.committed_files(job.load(), winner) == {path}
    assert job.table.committed_files(job.load(), loser) == set()
    table(job).optimize.compact()  # a version before still has the file
    assert job.table.committed_files(job.load(), winner) == {path}
    shorten_log(job)
    assert job.table.committed_files(job.load(), winner) is None
    assert job.table.committed_files(job.load(), loser) is None
    assert job.table.committed_files(job.load(), Attempt('default', 3)) == set()


def test_a_column_that_another_program_added_is_null_in_new_rows(job):
    job.run(5)
    table(job).alter.add_columns([Field('note', 'string')])
    job.run(5)
    assert job.load().schema.names == [*SCHEMA.names, 'note']
    assert table(job).to_pyarrow_table().column('note').null_count == 10
    assert job.offsets() == list(range(10))


def test_a_column_that_must_not_be_null_and_has_no_value_is_refused(tmp_path):
    DeltaTable.create(tmp_path / 'table', pa.schema([*SCHEMA, pa.field('note', pa.string(), nullable=False)]))
    with pytest.raises(IngestError, match='column note is NOT NULL in the table'):
        Job(tmp_path / 'table').run(5)


def test_columns_and_fields_of_structs_are_added(job):
    struct = pa.schema([*SCHEMA, pa.field('decoded', pa.struct([('id', pa.int64())]))])
    job.load()
    job.table.add_columns(job.load(), struct)
    wider = pa.schema([*SCHEMA, pa.field('decoded', pa.struct([('id', pa.int64()), ('name', pa.string())]))])
    job.table.add_columns(job.load(), wider)
    assert job.load().schema == wider
    version = job.load().version
    job.table.add_columns(job.load(), struct)
    assert job.load().version == version


def test_an_ingest_into_a_table_with_deletion_vectors(tmp_path):
    DeltaTable.create(tmp_path / 'table', SCHEMA, configuration={'delta.enableDeletionVectors': 'true'})
    job = Job(tmp_path / 'table')
    job.run(5)
    job.run(5)
    found = QueryBuilder().register('rows', table(job)).execute('select "offset" from rows').read_all()
    assert sorted(found.column('offset').to_pylist()) == list(range(10))


@pytest.mark.parametrize('name', ['delta.appendOnly', 'delta.enableChangeDataFeed'])
def test_an_ingest_into_a_table_that_allows_appends(tmp_path, name):
    DeltaTable.create(tmp_path / 'table', SCHEMA, configuration={name: 'true'})
    job = Job(tmp_path / 'table')
    job.run(5)
    assert job.offsets() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize('name, value', [
    ('delta.columnMapping.mode', 'name'), ('delta.setTransactionRetentionDuration', 'interval 1 days')])
def test_a_table_to_which_an_append_would_lose_rows_or_offsets_is_refused(job, name, value):
    job.load()
    (metadata,) = metadata_of(job)
    metadata['metaData']['configuration'] = {name: value}
    schema = json.loads(metadata['metaData']['schemaString'])
    for number, field in enumerate(schema['fields'] if 'columnMapping' in name else ()):
        field['metadata'] = {'delta.columnMapping.id': number, 'delta.columnMapping.physicalName': field['name']}
    metadata['metaData']['schemaString'] = json.dumps(schema)
    put_commit(job, {'protocol': {'minReaderVersion': 2, 'minWriterVersion': 5}}, metadata)
    with pytest.raises(IngestError, match=f'found {name}={value}, expected a table without column mapping'):
        job.load()


def test_a_table_with_constraints_is_refused(job):
    job.load()
    table(job).alter.add_constraint({'positive': '"offset" >= 0'})
    with pytest.raises(IngestError, match=r'found delta\.constraints\.positive='):
        job.load()


def test_a_table_with_a_writer_feature_that_is_unknown_is_refused(job):
    job.load()
    put_commit(job, {'protocol': {'minReaderVersion': 3, 'minWriterVersion': 7, 'readerFeatures': [],
                                  'writerFeatures': ['rowTracking']}})
    with pytest.raises(IngestError, match='found writer feature rowTracking'):
        job.load()


def test_a_table_with_rows_of_another_program_has_no_record(tmp_path):
    write_deltalake(tmp_path / 'table', pa.Table.from_pylist([{'offset': 7}], schema=SCHEMA))
    job = Job(tmp_path / 'table')
    assert job.load().record is None
    job.run(3)
    assert job.offsets() == [0, 1, 2, 7]


def test_a_clone_without_txn_actions_is_refused(job, tmp_path):
    job.run(5)
    clone = DeltaTable.create(tmp_path / 'clone', SCHEMA)
    clone.alter.set_table_properties(table(job).metadata().configuration, raise_if_not_exists=False)
    with pytest.raises(IngestError, match='found no txn actions of the job: a clone'):
        Job(tmp_path / 'clone').load()


def test_a_property_of_another_form_is_refused(tmp_path):
    made = DeltaTable.create(tmp_path / 'table', SCHEMA)
    for text in ('no json', '[]', '{"version": 9, "previous": null}', '{"version": 1}'):
        made.alter.set_table_properties({'kbroker.ingest.default': text}, raise_if_not_exists=False)
        with pytest.raises(IngestError, match=r'property kbroker\.ingest\.default: found .*, expected the facts'):
            Job(tmp_path / 'table').load()
