"""The log of a Delta table: checkpoints of all forms, hints that mislead, cleanups, and a table that was replaced."""
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_steps import Job, rows
from deltalake import DeltaTable

from kbroker_tools.spark.lake.delta_log import DeltaLog
from kbroker_tools.spark.lake.table_format import Attempt, TableUnavailable
from kbroker_tools.spark.ledger import IngestError


@pytest.fixture
def job(tmp_path):
    """Return a job whose table has a checkpoint at version 3 and two commits after it."""
    job = Job(tmp_path / 'table')
    job.run(5)
    job.run(5)
    DeltaTable(job.table.name).create_checkpoint()
    job.run(5)
    job.run(5)
    return job


def log_of(job):
    return Path(job.table.store.root, '_delta_log')


def txns(job, version=5):
    return DeltaLog(job.table.store).txns('id', version)


def checkpoint(job):
    """Remove the checkpoint and the commits that it replaces. Return the rows of the checkpoint."""
    path = log_of(job) / f'{3:020d}.checkpoint.parquet'
    found = pq.read_table(path)
    path.unlink()
    for version in range(4):
        (log_of(job) / f'{version:020d}.json').unlink()
    return found


def write_parts(job, found, version=3, parts=2, of=None):
    """Write rows as a checkpoint in several files."""
    each = -(-found.num_rows // parts)
    for number in range(parts):
        name = f'{version:020d}.checkpoint.{number + 1:010d}.{of or parts:010d}.parquet'
        pq.write_table(found.slice(number * each, each), log_of(job) / name)


def hint(job, **content):
    (log_of(job) / '_last_checkpoint').write_text(json.dumps(content))


def test_a_checkpoint_and_the_commits_after_it_have_what_all_commits_have(job):
    expected = txns(job)
    assert {version for name, version in expected.items() if name.endswith(':run')} == {4}
    (log_of(job) / '_last_checkpoint').unlink()
    assert txns(job) == expected
    (log_of(job) / f'{3:020d}.checkpoint.parquet').unlink()
    assert txns(job) == expected


@pytest.mark.parametrize('has_hint', [True, False])
def test_a_checkpoint_in_parts(job, has_hint):
    expected = txns(job)
    write_parts(job, checkpoint(job))
    hint(job, version=3, parts=2, size=9)
    if not has_hint:
        (log_of(job) / '_last_checkpoint').unlink()
    assert txns(job) == expected


def test_a_checkpoint_that_lacks_a_part_is_not_used(job):
    expected = txns(job)
    found = pq.read_table(log_of(job) / f'{3:020d}.checkpoint.parquet')
    write_parts(job, found, version=4, of=3)
    hint(job, version=4, parts=3, size=9)
    assert txns(job) == expected


@pytest.mark.parametrize('kind', ['parquet', 'json'])
def test_a_checkpoint_with_a_unique_name(job, kind):
    expected = txns(job)
    found = checkpoint(job)
    path = log_of(job) / f'{3:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.{kind}'
    if kind == 'parquet':
        pq.write_table(found.select(['txn', 'metaData']), path)
    else:
        path.write_text('{"checkpointMetadata":{"version":3}}\n' + ''.join(
            json.dumps({'txn': each}) + '\n' for each in found.column('txn').to_pylist() if each))
    hint(job, version=3, v2Checkpoint={'path': path.name})
    assert txns(job) == expected


def test_a_checkpoint_without_txn_actions(job):
    before = txns(job)
    pq.write_table(pa.table({'protocol': [1]}), log_of(job) / f'{3:020d}.checkpoint.parquet')
    assert txns(job).keys() < before.keys()  # those of the commits after it


@pytest.mark.parametrize('content', ['', '{', '[]', '{"version": "x"}', '{"version": 2}', '{"version": 99}',
                                     '{"version": 3, "parts": 7}'])
def test_a_hint_that_misleads_is_ignored(job, content):
    expected = txns(job)
    (log_of(job) / '_last_checkpoint').write_text(content)
    assert txns(job) == expected


def test_a_checkpoint_newer_than_the_version_is_not_used(job):
    assert {version for name, version in txns(job, 2).items() if name.endswith(':run')} == {1}


def test_commits_that_are_gone_are_an_error_that_names_the_first(job):
    (log_of(job) / f'{4:020d}.json').unlink()
    with pytest.raises(OSError, match='found no commit of version 4, expected all commits up to version 5'):
        txns(job)


@pytest.mark.parametrize('name, content', [
    (f'{5:020d}.json', '{"add":{"path":'), (f'{5:020d}.json', '{"txn":{"appId":"x"}}'), (f'{5:020d}.json', '\0' * 100),
    (f'{3:020d}.checkpoint.parquet', 'PAR1'), (f'{3:020d}.checkpoint.parquet', '')])
def test_a_log_that_is_damaged_is_one_line_that_names_the_table(job, name, content):
    (log_of(job) / name).write_text(content)
    with pytest.raises((IngestError, TableUnavailable), match=f'^{job.table.name}: [^\\n]*$') as error:
        Job(job.table.name).load()
    assert '<unknown>' not in str(error.value)


def test_a_log_that_was_shortened_since_the_last_load_is_read_from_its_checkpoint(job):
    log = DeltaLog(job.table.store)
    log.txns('id', 2)
    for version in range(4):
        (log_of(job) / f'{version:020d}.json').unlink()
    assert log.txns('id', 5) == txns(job)


def test_a_table_that_was_dropped_and_created_again_is_a_new_one(job):
    assert job.load().record.run == 4
    shutil.rmtree(job.table.store.root)
    assert job.load().record is None
    job.run(2)
    assert job.load().record.offsets == {('orders', 0): 2}
    assert job.load().rolled_back is None


def test_a_string_with_other_line_ends_does_not_end_an_action(tmp_path):
    job = Job(tmp_path / 'table', ['topic'])
    state = job.load()
    record, _ = job.prepare(state, 1)
    topic = 'a\u2028b\x85c\x0bd'
    files = job.table.writer(state, attempt_of(record)).write(rows(0, 1, topic=topic), 'b')
    job.table.commit(state, record, files)
    assert job.load().record == record
    assert len(job.table.committed_files(job.load(), attempt_of(record))) == 1
    assert DeltaTable(job.table.name).to_pyarrow_table().column('topic').to_pylist() == [topic]


def attempt_of(record):
    return Attempt(record.job, record.run, record.attempt)
