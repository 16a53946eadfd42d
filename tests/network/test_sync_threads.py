import os
import threading
import time

import pytest

from kbroker.log.fs import File, FileSystem, InterposedFile
from kbroker.network.sync_threads import SyncThreads


@pytest.fixture
def threads(reactor):
    threads = SyncThreads(reactor, 2)
    yield threads
    threads.close()


def broken_file(path):
    """Return a file whose descriptor is a pipe, which cannot be synced."""
    file = File(str(path), True)
    reader, writer = os.pipe()
    os.dup2(writer, file.fileno())
    os.close(reader)
    os.close(writer)
    return file


def add_slowly(results, error):
    """Append the error to `results`, and take longer than one turn of the loop may take."""
    end_s = time.monotonic() + 0.003
    while time.monotonic() < end_s:
        pass
    results.append(error)


def collect(reactor, results, count):
    while len(results) < count:
        reactor.run_once(timeout_ms=60_000)


def test_the_completion_runs_on_the_loop(reactor, threads, tmp_path):
    results = []
    file = File(str(tmp_path / 'file'), True)
    directory = FileSystem().open_directory(str(tmp_path))
    threads.sync([file, directory], lambda error: results.append((error, threading.current_thread())))
    collect(reactor, results, 1)
    assert results == [(None, threading.current_thread())]


def test_a_failure_is_an_error_that_names_the_file(reactor, threads, tmp_path):
    results = []
    threads.sync([File(str(tmp_path / 'sound'), True), broken_file(tmp_path / 'broken')], results.append)
    threads.sync([], results.append)
    collect(reactor, results, 2)
    error, = (result for result in results if result is not None)
    assert isinstance(error, OSError) and error.filename == str(tmp_path / 'broken')


def test_many_syncs_are_all_answered(reactor, threads, tmp_path):
    results = []
    files = [File(str(tmp_path / str(index)), True) for index in range(50)]
    for index, file in enumerate(files):
        threads.sync([file], lambda error, index=index: results.append((index, error)))
    del files, file
    collect(reactor, results, 50)
    assert sorted(results) == [(index, None) for index in range(50)]


def test_a_file_in_the_hands_of_a_test_is_synced_through_its_own_methods(threads, tmp_path):
    class Refusing(InterposedFile):
        def on_sync(self):
            raise OSError(5, 'Input/output error')

    results = []
    threads.sync([Refusing(str(tmp_path / 'file'), True)], results.append)
    assert [error.errno for error in results] == [5]


def test_closing_finishes_submitted_syncs_and_joins_the_threads(reactor, tmp_path):
    before = set(threading.enumerate())
    threads = SyncThreads(reactor, 3)
    results = []
    file = File(str(tmp_path / 'file'), True)
    for _ in range(20):
        threads.sync([file], results.append)
    threads.close()
    threads.close()
    assert set(threading.enumerate()) <= before
    reactor.run_once()
    assert results == [None] * 20
    with pytest.raises(RuntimeError, match='closed'):
        threads.sync([file], results.append)


def test_long_completions_share_no_tick(reactor, threads):
    """A completion takes long if its partition has rolled a segment, and therefore writes a snapshot of its
    producers."""
    results, in_tick = [], []
    for _ in range(20):
        threads.sync([], lambda error: add_slowly(results, error))
    while len(results) < 20:
        before = len(results)
        reactor.run_once(timeout_ms=60_000)
        in_tick.append(len(results) - before)
    assert max(in_tick) == 1
    assert results == [None] * 20


def test_long_completions_all_run_once_the_threads_are_closed(reactor, threads):
    results = []
    for _ in range(20):
        threads.sync([], lambda error: add_slowly(results, error))
    reactor.run_once(timeout_ms=60_000)
    threads.close()
    reactor.run_once()
    assert results == [None] * 20
