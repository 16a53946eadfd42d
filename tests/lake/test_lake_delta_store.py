"""A Delta table in an object store that fails, loses replies, repeats requests or refuses rights."""
import re

import pytest
from delta_steps import Job, rows
from support.lake.object_store import BUCKET, Fault

from kbroker_tools.spark.lake import leftovers
from kbroker_tools.spark.lake.table_format import Attempt, Refused, ReplyLost, TableUnavailable
from kbroker_tools.spark.ledger import IngestError

QUICK = {'max_retries': '0', 'retry_timeout': '5s'}
COMMIT = r'^PUT /lake/[\w-]+/_delta_log/\d+\.json'


@pytest.fixture
def job(object_store, request):
    name = re.sub(r'\W', '-', request.node.name)[:60]
    yield Job(f's3://{BUCKET}/{name}', ['topic', 'date'], {**object_store.of_delta(), **QUICK})
    object_store.have()


def test_runs_with_a_marker_a_probe_and_leftovers(job, object_store):
    for run in (1, 2):
        state = job.load()
        record, files = job.prepare(state, 5)
        attempt = Attempt('default', run, record.attempt)
        leftovers.begin(job.table, attempt)
        job.table.writer(state, attempt).write(rows(0, 5), 'failed')
        job.table.commit(state, record, files)
        assert leftovers.finish(job.table, job.load(), attempt) == []
    assert job.offsets() == list(range(10))
    keys = [key.partition('/')[2] for key in object_store.keys(job.table.store.root.partition('/')[2])]
    assert [key for key in keys if key.startswith('_kbroker')] == []
    assert len([key for key in keys if key.startswith('kbroker/')]) == 2


def test_a_commit_whose_reply_is_lost_is_found_by_the_next_load(job, object_store):
    job.run(5)
    state = job.load()
    record, files = job.prepare(state, 5)
    object_store.have(Fault(COMMIT, 'lose'))
    with pytest.raises(ReplyLost):
        job.table.commit(state, record, files)
    assert job.load().record == record
    assert job.offsets() == list(range(10))


def test_a_commit_that_arrives_twice_is_refused_the_second_time_and_found(job, object_store):
    job.run(5)
    state = job.load()
    record, files = job.prepare(state, 5)
    object_store.have(Fault(COMMIT, 'twice'))
    with pytest.raises((Refused, ReplyLost)):
        job.table.commit(state, record, files)
    assert job.load().record == record
    assert job.offsets() == list(range(10))


def test_a_commit_that_fails_is_not_in_the_table(job, object_store):
    job.run(5)
    state = job.load()
    record, files = job.prepare(state, 5)
    object_store.have(Fault(COMMIT, 'fail'))
    with pytest.raises(ReplyLost):
        job.table.commit(state, record, files)
    assert job.load().record == state.record
    job.table.commit(job.load(), record, files)
    assert job.offsets() == list(range(10))


def test_a_commit_without_rights_is_an_error_that_names_them(job, object_store):
    job.run(5)
    state = job.load()
    record, files = job.prepare(state, 5)
    object_store.have(Fault(COMMIT, 'fail', status='403 Forbidden'))
    with pytest.raises(IngestError, match=r'cannot commit: the store refused: .*check the rights'):
        job.table.commit(state, record, files)
    assert job.load().record == state.record


def test_of_two_commits_of_one_version_the_store_keeps_the_first(job, object_store):
    job.run(5)
    other = Job(job.table.name, ['topic', 'date'], job.store)
    first, second = ((each, state, *each.prepare(state, 5)) for each in (job, other) for state in [each.load()])
    first[0].table.commit(*first[1:])
    with pytest.raises(Refused):
        second[0].table.commit(*second[1:])
    assert other.load().record == first[2]
    assert job.offsets() == list(range(10))


@pytest.mark.parametrize('status, expected', [('503 Slow Down', TableUnavailable), ('403 Forbidden', IngestError)])
def test_a_store_that_fails_while_the_table_is_loaded(job, object_store, status, expected):
    job.run(5)
    for pattern in ('^GET /lake\\?list', '_delta_log/.*json', '_last_checkpoint'):
        object_store.have(Fault(pattern, 'fail', 100, status))
        with pytest.raises(expected, match=f'^s3://lake/[^ ]*: [^\n\x1b]*{status[:3]}[^\n\x1b]*$'):
            Job(job.table.name, [], job.store).load()


def test_a_store_that_fails_while_a_file_is_written(job, object_store):
    state = job.load()
    object_store.have(Fault(r'parquet', 'fail', 100))
    with pytest.raises(OSError, match=r'^s3://lake/[^\n\x1b]*\.parquet: [^\n\x1b]*503[^\n\x1b]*$'):
        job.prepare(state, 5)


def test_the_store_reports_errors_in_one_line(job, object_store):
    store = job.load() and job.table.store
    object_store.have(Fault('.', 'fail', 100))
    for ask in (lambda: [*store.list('_delta_log')], lambda: store.put('x', b'x'), lambda: store.delete('x'),
                lambda: store.delete_directory('x'), lambda: store.filesystem.open_input_file('lake/x').read()):
        with pytest.raises(OSError, match=r'^[^\n\x1b]*503[^\n\x1b]*$'):
            ask()


def test_a_bucket_that_does_not_exist_and_keys_that_are_wrong(object_store):
    with pytest.raises(IngestError, match=r'^s3://nothing/table: the store refused: [^\n\x1b]*NoSuchBucket'):
        Job('s3://nothing/table', [], {**object_store.of_delta(), **QUICK}).load()
    gone = {**object_store.of_delta(), **QUICK, 'AWS_ENDPOINT_URL': 'http://127.0.0.1:1'}
    with pytest.raises(TableUnavailable, match=r'^s3://lake/table: the store failed: [^\n\x1b]*Connection refused'):
        Job('s3://lake/table', [], gone).load()
    with pytest.raises(IngestError, match=r'^nothing://lake/table: expected a path, or the URI of an object store'):
        Job('nothing://lake/table').load()


@pytest.mark.parametrize('changes, message', [
    ({'AWS_ALLOW_HTTP': 'false'}, r'URL scheme is not allowed; .* needs AWS_ALLOW_HTTP=true'),
    ({'AWS_ENDPOINT_URL': 'no url'}, r"found AWS_ENDPOINT_URL 'no url' in --store-config, expected a URL"),
    ({'max_retries': 'many'}, r'Failed to parse config: .*max_retries'),
])
def test_a_setting_of_the_store_that_is_wrong_is_named(object_store, changes, message):
    with pytest.raises(IngestError, match=message):
        Job('s3://lake/table', [], {**object_store.of_delta(), **changes}).load()


def test_a_load_takes_as_many_requests_for_many_partitions_as_for_one(job, object_store):
    counts = []
    for partitions in (1, 500):
        state = job.load()
        job.table.commit(state, job.record(state, {('orders', each): 10 for each in range(partitions)}), [])
        object_store.requests()
        assert len(job.load().record.offsets) == partitions
        counts.append(len(object_store.requests()))
    job.load().handle.table.create_checkpoint()
    object_store.requests()
    assert len(Job(job.table.name, [], job.store).load().record.offsets) == 500
    counts.append(len(object_store.requests()))
    assert max(counts) < 60
