"""Runs of a job on a Delta table: the record of the job, commits that race or lose their reply, and other programs."""
import pytest
from delta_steps import CLUSTER, TOPIC_ID, Job
from deltalake import DeltaTable

from kbroker_tools.spark.lake.table_format import Refused


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
