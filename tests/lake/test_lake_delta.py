"""Runs of a job on a Delta table: the record of the job, commits that race or lose their reply, and other programs."""
import os
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from delta_steps import CLUSTER, SCHEMA, TOPIC_ID, Job
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kbroker_tools.spark.lake.delta_log import DeltaLog
from kbroker_tools.spark.lake.table_format import Refused, ReplyLost
from kbroker_tools.spark.ledger import IngestError


def fail(error):
    raise error


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path / 'table')


def test_a_table_that_does_not_exist_has_no_state_and_a_new_one_no_record(job):
    assert job.table.load('default') is None
    assert job.load().record is None


def test_the_record_of_a_run_is_the_one_that_the_next_load_returns(job):
    state = job.load()
    record, files = job.prepare(state, 5)
    assert job.table.commit(state, record, files) == '2'
    assert job.load().record == record
    assert job.offsets() == [0, 1, 2, 3, 4]
    assert job.run(5) == '3'
    assert job.offsets() == list(range(10))
    assert job.load().record.run == 2


@pytest.mark.parametrize('changes', [{'cluster_id': None}, {'topic_ids': {}}, {'cluster_id': None, 'topic_ids': {}}])
def test_a_source_without_ids(job, changes):
    state = job.load()
    record, files = job.prepare(state, 5, **changes)
    job.table.commit(state, record, files)
    assert job.load().record == record
    job.run(5)  # the source has its ids now
    record = job.load().record
    assert (record.cluster_id, record.topic_ids, record.offsets) == (CLUSTER, {'orders': TOPIC_ID}, {('orders', 0): 10})


def test_jobs_on_one_table_have_their_own_offsets(job, tmp_path):
    other = Job(tmp_path / 'table', job='other')
    job.run(5)
    other.run(3)
    job.run(2)
    assert job.load().record.offsets == {('orders', 0): 7}
    assert other.load().record.offsets == {('orders', 0): 3}


def test_the_property_is_written_only_when_the_facts_change(job):
    versions = [job.run(1) for _ in range(3)]
    assert versions == ['2', '3', '4']
    assert job.run(1, topic_ids={'orders': TOPIC_ID, 'events': CLUSTER}) == '6'
    assert job.load().record.topic_ids == {'orders': TOPIC_ID, 'events': CLUSTER}


def test_of_two_drivers_with_the_same_state_one_is_refused(job):
    first, second = job.load(), job.load()
    commits = [(state, *job.prepare(state, 5)) for state in (first, second)]
    job.table.commit(*commits[0])
    with pytest.raises(Refused):
        job.table.commit(*commits[1])
    assert job.load().record == commits[0][1]
    assert job.offsets() == [0, 1, 2, 3, 4]


def test_a_refused_commit_can_be_committed_on_the_state_after_another_program(job):
    job.run(5)
    state = job.load()
    record, files = job.prepare(state, 5)
    DeltaTable(job.table.name).optimize.compact()
    DeltaTable(job.table.name).delete('offset = 0')
    with pytest.raises(Refused):
        job.table.commit(state, record, files)
    job.table.commit(job.load(), record, files)
    assert job.offsets() == list(range(1, 10))


def test_a_lost_reply_is_decided_by_the_next_load(job, monkeypatch):
    commit = DeltaTable.create_write_transaction

    def lose(*arguments, **options):
        commit(*arguments, **options)
        raise OSError('Generic S3 error: the connection was reset')
    monkeypatch.setattr(DeltaTable, 'create_write_transaction', lose)
    state = job.load()
    record, files = job.prepare(state, 5)
    with pytest.raises(ReplyLost, match='the connection was reset'):
        job.table.commit(state, record, files)
    assert job.load().record == record
    assert job.offsets() == [0, 1, 2, 3, 4]


def test_a_request_that_was_lost_leaves_the_state_as_before(job, monkeypatch):
    state = job.load()
    record, files = job.prepare(state, 5)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, 'create_write_transaction', lambda *_, **__: fail(OSError('HTTP error')))
        with pytest.raises(ReplyLost):
            job.table.commit(state, record, files)
    assert job.load().record is None
    job.table.commit(job.load(), record, files)
    assert job.offsets() == [0, 1, 2, 3, 4]


def test_a_lasting_error_is_reported_only_if_nothing_was_committed(job, monkeypatch):
    job.run(5)
    commit = DeltaTable.create_write_transaction
    for is_committed, expected in ((False, IngestError), (True, ReplyLost)):
        state = job.load()
        record, files = job.prepare(state, 5)

        def denied(*arguments, is_committed=is_committed, **options):
            if is_committed:
                commit(*arguments, **options)
            raise DeltaError('403 Forbidden')
        with monkeypatch.context() as patched:
            patched.setattr(DeltaTable, 'create_write_transaction', denied)
            with pytest.raises(expected, match='403 Forbidden; check the rights'):
                job.table.commit(state, record, files)


def test_facts_of_a_driver_that_died_before_its_files_are_not_valid(job, monkeypatch):
    """The property is a commit before the commit of the files."""
    for number in range(2):  # the first run of a job, and a run with other facts
        before = job.load().record
        state = job.load()
        record, files = job.prepare(state, 5, shape={'columns': [f'column {number}']})
        with monkeypatch.context() as patched:
            patched.setattr(DeltaTable, 'create_write_transaction', lambda *_, **__: fail(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                job.table.commit(state, record, files)
        assert job.load().version != state.version
        assert job.load().record == before
        other = job.prepare(job.load(), 3, shape={'columns': ['other']})
        job.table.commit(job.load(), *other)
        assert job.load().record == other[0]


def test_a_driver_with_other_facts_cannot_come_between_property_and_files(job, monkeypatch):
    job.run(5)
    commit = DeltaTable.create_write_transaction
    other = Job(job.table.name)

    def between(*arguments, **options):
        monkeypatch.setattr(DeltaTable, 'create_write_transaction', commit)
        other.run(3, shape={'columns': ['other']})
        commit(*arguments, **options)
    monkeypatch.setattr(DeltaTable, 'create_write_transaction', between)
    with pytest.raises(Refused):
        job.run(5, shape={'columns': ['this']})
    assert job.load().record.shape == {'columns': ['other']}
    assert job.offsets() == list(range(8))


def test_two_drivers_create_the_table_at_once(job):
    job.table.create(SCHEMA, [])
    Job(job.table.name).table.create(SCHEMA, ['topic'])
    assert job.load().partition_by == []


@pytest.mark.parametrize('partition_by', [['value'], ['timestamp']])
def test_a_column_that_cannot_partition_a_delta_table_is_refused(job, partition_by):
    with pytest.raises(IngestError, match=f'--partition-by: found {partition_by[0]} of type'):
        job.table.create(SCHEMA, partition_by)


def test_columns_that_delta_does_not_have_are_refused(job):
    with pytest.raises(IngestError, match='found column time of type time64'):
        job.table.create(pa.schema([('time', pa.time64('us'))]), [])


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / 'file').write_text('')
    table = Job(tmp_path / 'file' / 'table').table
    with pytest.raises(Exception, match='file/table'):
        table.load('default')
        table.create(SCHEMA, [])


def test_a_location_has_one_form_for_all_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Job('a table').run(5)
    for form in ('a table/', f'{tmp_path}/a table', f'file://{tmp_path}/a%20table'):
        assert Job(form).offsets() == [0, 1, 2, 3, 4]


def test_the_files_of_the_log_are_synced_before_a_commit_and_after_it(job, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, 'fsync', lambda descriptor: (
        synced.append(os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))), fsync(descriptor)))
    commit = DeltaTable.create_write_transaction
    monkeypatch.setattr(DeltaTable, 'create_write_transaction', lambda *arguments, **options: (
        synced.append('commit'), commit(*arguments, **options)))
    job.run(1)
    table = DeltaTable(job.table.name)
    table.create_checkpoint()
    state = Job(job.table.name).load()
    record, files = job.prepare(state, 1)
    synced.clear()
    Job(job.table.name).table.commit(state, record, files)
    at = synced.index('commit')
    assert {f'{2:020d}.json', f'{2:020d}.checkpoint.parquet', '_last_checkpoint', '_delta_log'} <= {*synced[:at]}
    assert f'{1:020d}.json' not in synced
    assert {f'{3:020d}.json', '_delta_log'} <= {*synced[at:]}


def test_a_commit_that_cannot_be_synced_is_no_success_but_in_the_table(job, monkeypatch):
    state = job.load()
    record, files = job.prepare(state, 5)
    sync = DeltaLog.sync
    monkeypatch.setattr(DeltaLog, 'sync', lambda log, version: (
        fail(OSError('input/output error')) if version == 2 else sync(log, version)))
    with pytest.raises(OSError, match='input/output error'):
        job.table.commit(state, record, files)
    assert job.load().record == record


def test_drivers_that_race_commit_each_row_once(job):
    """Each driver loads, writes and commits, and begins again if another driver was first."""
    job.load()

    def drive(_):
        mine = Job(job.table.name)
        for _ in range(5):
            while True:
                try:
                    mine.run(2)
                    break
                except Refused:
                    pass
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(drive, range(3)))
    assert job.offsets() == list(range(30))
    assert job.load().record.run == 15
