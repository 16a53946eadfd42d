"""Rows and the offsets that they cover become visible in one step, whenever the job is killed."""
import json
import os
import signal

import pytest

from kbroker_tools.spark.ledger import IngestError, JobFacts, Ledger, Progress, replace_file

FACTS = JobFacts('broker:9092', 'cluster-a', {'format': 'parquet', 'partition_by': ['topic']})
CALLS = ('open', 'fsync', 'rename')


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / 'to', tmp_path / 'state')


def run_once(ledger, facts=FACTS):
    """Run an ingest of ten offsets once."""
    with ledger.locked():
        known = ledger.open(facts)
        start = known.offsets.get(('t', 0), 0)
        done = Progress(known.job, known.run + 1, {('t', 0): start + 10}, {'t': 'id'})
        staging = ledger.new_staging(done.run)
        staging.mkdir()
        (staging / 'part-0.json').write_text(json.dumps(list(range(start, start + 10))))
        ledger.publish(staging, done, {'rows': 10})
    return done


def visible(ledger):
    return sorted(offset for path in ledger.to.glob('run=*/part-0.json') for offset in json.loads(path.read_text()))


def test_a_job_goes_on_where_it_stopped(ledger):
    assert run_once(ledger).run == 1
    assert run_once(ledger).run == 2
    assert visible(ledger) == list(range(20))
    assert Progress.read(ledger.state / 'progress.json').offsets == {('t', 0): 20}


class KilledAt:
    """Kills its own process just before or after the n-th call that changes the disk. It is for a child process."""

    def __init__(self, number, is_after):
        self.number, self.is_after = number, is_after

    def __enter__(self):
        for name in CALLS:
            setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, call):
        def counted(*arguments, **more):
            self.number -= 1
            if self.number == 0 and not self.is_after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*arguments, **more)
            if self.number == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return counted

    def __exit__(self, *_):
        pass


def survives(ledger, number, is_after):
    """Run the ingest in a child process that is killed at the call `number`. Return True if the ingest ended before
    this call."""
    child = os.fork()
    if child == 0:
        try:
            with KilledAt(number, is_after):
                run_once(ledger)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize('is_after', [False, True])
@pytest.mark.parametrize('runs_before', [0, 1])
def test_a_kill_at_any_call_leaves_the_run_undone_or_done(tmp_path, runs_before, is_after):
    for number in range(1, 100):
        ledger = Ledger(tmp_path / str(number) / 'to', tmp_path / str(number) / 'state')
        for _ in range(runs_before):
            run_once(ledger)
        survived = survives(ledger, number, is_after)
        rows = visible(ledger)
        assert rows in (list(range(runs_before * 10)), list(range(runs_before * 10 + 10)))
        run_once(ledger)
        assert visible(ledger) == list(range(len(rows) + 10)), f'killed at call {number}'
        assert not list(ledger.to.glob('_staging-*'))
        if survived:
            assert number > 15
            return
    raise AssertionError('it makes more calls than were tried')


def test_what_a_killed_driver_leaves_running_writes_into_nothing_that_becomes_visible(ledger):
    with ledger.locked():
        known = ledger.open(FACTS)
    abandoned = ledger.new_staging(known.run + 1)
    run_once(ledger)
    abandoned.mkdir()
    (abandoned / 'part-0.json').write_text('[0]')
    run_once(ledger)
    assert visible(ledger) == list(range(20))
    assert not abandoned.exists()


def seen(directory):
    return sorted(path for path in directory.rglob('*') if path.name != '_lock')


def refused(ledger, words, facts=FACTS):
    before = seen(ledger.to)
    with pytest.raises(IngestError, match=words) as caught:
        run_once(ledger, facts)
    assert '\n' not in str(caught.value)
    assert seen(ledger.to) == before


def test_two_jobs_at_once_are_refused_by_either_directory(ledger, tmp_path):
    with ledger.locked():
        for other in (ledger, Ledger(ledger.to, tmp_path / 'other'), Ledger(tmp_path / 'other', ledger.state)):
            with pytest.raises(IngestError, match='another ingest is using it'), other.locked():
                pass


def test_a_new_state_does_not_take_over_runs_of_another(ledger, tmp_path):
    run_once(ledger)
    other = Ledger(ledger.to, tmp_path / 'other')
    other.state.mkdir()
    refused(other, 'found run 1 of an ingest that is not in')
    # The operator follows the advice of the error message.
    (other.state / 'progress.json').write_text((ledger.to / 'run=000001' / '_ingest.json').read_text())
    assert run_once(other).run == 2
    assert visible(other) == list(range(20))


def test_a_new_job_wants_an_empty_directory(ledger):
    ledger.to.mkdir()
    (ledger.to / 'mine.parquet').write_text('')
    ledger.state.mkdir()
    refused(ledger, "found 'mine.parquet', expected an empty directory")


def test_a_state_belongs_to_one_directory(ledger, tmp_path):
    run_once(ledger)
    elsewhere = Ledger(tmp_path / 'elsewhere', ledger.state)
    with pytest.raises(IngestError, match=r'found no _ingest\.json'):
        run_once(elsewhere)
    other = Ledger(tmp_path / 'to2', tmp_path / 'state2')
    run_once(other)
    refused(Ledger(other.to, ledger.state), 'give the --to and --state that belong together')


@pytest.mark.parametrize(('facts', 'words'), [
    (JobFacts('broker:9092', 'cluster-b', FACTS.shape), 'found rows of cluster cluster-a, .* is cluster cluster-b'),
    (JobFacts('/data', None, FACTS.shape), '/data has no cluster.id that shows it is the same log'),
    (JobFacts('broker:9092', 'cluster-a', {**FACTS.shape, 'format': 'orc'}), 'found format "parquet", but .* "orc"'),
    (JobFacts('broker:9092', 'cluster-a', {**FACTS.shape, 'values': ['json']}), r'found values none, but .*\["json"\]'),
])
def test_another_source_or_shape_is_refused(ledger, facts, words):
    run_once(ledger)
    refused(ledger, words, facts)


def test_the_same_cluster_may_be_read_another_way(ledger):
    run_once(ledger)
    assert run_once(ledger, JobFacts('/data', 'cluster-a', FACTS.shape)).run == 2


def test_runs_that_were_taken_away_do_not_come_again(ledger):
    run_once(ledger)
    (ledger.to / 'run=000001').rename(ledger.to.parent / 'archive')
    assert run_once(ledger).run == 2
    assert visible(ledger) == list(range(10, 20))


def test_a_run_of_another_job_is_refused(ledger, tmp_path):
    run_once(ledger)
    other = Ledger(tmp_path / 'to2', tmp_path / 'state2')
    run_once(other)
    (other.to / 'run=000001').rename(ledger.to / 'run=000002')
    refused(ledger, 'found run 1 of job .* expected run 2 of job')


@pytest.mark.parametrize('text', ['', '{', '[]', '{"version": 2}', '{"version": 1}',
                                  '{"version": 1, "job": "a", "run": 1, "offsets": [], "topic_ids": {}}'])
def test_a_damaged_progress_is_named(ledger, text):
    run_once(ledger)
    (ledger.state / 'progress.json').write_text(text)
    refused(ledger, r"progress\.json: found .* expected an ingest's file of version 1")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / 'file'
    replace_file(path, {'a': 1})
    monkeypatch.setattr(os, 'fsync', lambda descriptor: (_ for _ in ()).throw(OSError('no space left')))
    with pytest.raises(OSError, match='no space left'):
        replace_file(path, {'a': 2})
    assert json.loads(path.read_text()) == {'a': 1}
