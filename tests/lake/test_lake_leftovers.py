"""Leftovers of attempts are deleted when their run is in the table, and no file that the table names is."""
import pytest
from pyarrow import fs

from kbroker_tools.spark.lake import leftovers
from kbroker_tools.spark.lake.store import Store
from kbroker_tools.spark.lake.table_format import Attempt, JobRecord, State, TableUnavailable

LOST, WON, NEXT = (Attempt('nightly-load', run, letter * 32) for run, letter in ((1, 'a'), (1, 'b'), (2, 'c')))


class Table:
    """The part of a table that leftovers need. `committed` has the files that the table names."""

    name = 'table'
    markers = 'markers'

    def __init__(self, root):
        self.store = Store(fs.LocalFileSystem(), str(root))
        self.committed: set[str] | None = set()

    def directory(self, attempt):
        return f'data/{attempt.name}'

    def committed_files(self, state, attempt):
        if self.committed is None:
            return None
        return {path for path in self.committed if path.startswith(self.directory(attempt))}

    def attempt(self, attempt, *names):
        """Begin an attempt that writes files. Return their paths."""
        leftovers.begin(self, attempt)
        paths = [f'{self.directory(attempt)}/{name}' for name in names]
        for path in paths:
            self.store.put(path, b'rows')
        return paths

    def left(self):
        return sorted(self.store.list(''))


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


def at(run, job='nightly-load'):
    """Return a state of the table in which the job has committed this run."""
    record = JobRecord(job, None, {}, {}, {}, run, 'b' * 32) if run else None
    return State(None, None, [], record)


def test_a_marker_is_written_before_files_and_names_the_attempt(table):
    leftovers.begin(table, LOST)
    assert table.left() == [f'markers/nightly-load-000001-{"a" * 32}']


def test_files_of_failed_tasks_and_the_marker_go_and_committed_files_stay(table):
    paths = table.attempt(WON, 'topic=a/0', 'topic=a/0-failed', 'topic=b/1-failed')
    table.committed = {paths[0]}
    assert leftovers.finish(table, at(1), WON) == []
    assert table.left() == [paths[0]]


def test_another_attempt_at_a_run_goes_when_the_run_is_in_the_table(table, tmp_path):
    table.attempt(LOST, '0', '1')
    paths = table.attempt(WON, '0')
    table.committed = set(paths)
    assert leftovers.finish(table, at(1), WON) == []
    assert table.left() == paths
    assert [each.name for each in (tmp_path / 'data').iterdir()] == [WON.name]


def test_attempts_at_newer_runs_and_of_other_jobs_stay(table):
    kept = [*table.attempt(NEXT, '0'), *table.attempt(Attempt('other', 1, 'd' * 32), '0')]
    markers = [path for path in table.left() if path.startswith('markers')]
    table.store.put('markers/of-another-program', b'')
    before = table.left()
    for state in (at(1), at(0)):
        assert leftovers.clean(table, state) == []
    assert table.left() == before
    assert set(before) == {*kept, *markers, 'markers/of-another-program'}


def test_files_stay_if_the_history_does_not_say_whether_the_table_names_them(table):
    """VACUUM deletes the files if they are not in use."""
    paths = table.attempt(LOST, '0')
    table.committed = None
    assert leftovers.clean(table, at(3)) == []
    assert table.left() == paths


def test_an_attempt_without_files_leaves_nothing(table):
    table.attempt(LOST)
    assert leftovers.discard(table, LOST) == []
    assert table.left() == []


def test_a_store_that_does_not_delete_is_noted_and_the_next_run_tries_again(table, monkeypatch):
    paths = table.attempt(WON, '0', '1-failed')
    table.attempt(LOST, '0')
    table.committed = {paths[0]}
    with monkeypatch.context() as patch:
        for name in ('delete', 'delete_directory'):
            patch.setattr(Store, name, denied)
        notes = leftovers.finish(table, at(1), WON)
        assert len(notes) == 2
        assert all('cannot be deleted: AccessDenied by a policy; the next run tries again' in note for note in notes)
        assert {WON.name in note for note in notes} == {True, False}
        assert len(leftovers.discard(table, LOST)) == 1
    assert leftovers.clean(table, at(1)) == []
    assert table.left() == [paths[0]]


def test_a_store_that_does_not_list_is_noted(table, monkeypatch):
    monkeypatch.setattr(Store, 'list', denied)
    assert leftovers.clean(table, at(1)) == [
        f'{table.store.root}/markers: files of failed attempts cannot be looked for: AccessDenied by a policy']


def test_a_table_that_cannot_be_read_after_the_commit_is_noted(table, monkeypatch):
    def unavailable(state, attempt):
        raise TableUnavailable('the catalog does not reply')
    table.attempt(WON, '0')
    monkeypatch.setattr(table, 'committed_files', unavailable)
    [note] = {*leftovers.finish(table, at(1), WON)}
    assert 'the catalog does not reply' in note


def denied(self, path):
    raise OSError('AccessDenied\nby a policy')
