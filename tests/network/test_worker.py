import threading

import pytest

from kbroker.network.worker import Worker


def test_a_job_runs_in_a_thread_and_its_completion_on_the_loop(reactor):
    worker = Worker(reactor)
    threads = []

    def job():
        threads.append(threading.current_thread())
        return 'result'

    def done(result):
        threads.append(threading.current_thread())
        assert result == 'result'

    worker.submit(job, done)
    while len(threads) < 2:
        reactor.run_once(timeout_ms=60_000)
    assert threads[0] is not threading.current_thread() and threads[1] is threading.current_thread()
    worker.close()


def test_what_a_job_raises_is_its_result(reactor):
    worker = Worker(reactor)
    results = []
    worker.submit(lambda: 1 / 0, results.append)
    worker.submit(lambda: 'next', results.append)
    worker.close()
    reactor.run_once()
    assert isinstance(results[0], ZeroDivisionError)
    assert results[1] == 'next'


def test_closing_finishes_what_was_submitted_and_joins_the_threads(reactor):
    before = set(threading.enumerate())
    worker = Worker(reactor, threads=3)
    results = []
    for index in range(100):
        worker.submit(lambda index=index: index, results.append)
    worker.close()
    worker.close()
    assert set(threading.enumerate()) <= before
    reactor.run_once()
    assert sorted(results) == list(range(100))
    with pytest.raises(RuntimeError, match='closed'):
        worker.submit(int, results.append)


def test_closing_may_drop_the_jobs_that_have_not_begun(reactor):
    worker = Worker(reactor)
    begun, go_on = threading.Event(), threading.Event()
    results = []

    def first():
        begun.set()
        go_on.wait()
        return 'first'

    worker.submit(first, results.append)
    worker.submit(lambda: 'second', results.append)
    begun.wait()
    threading.Timer(0.05, go_on.set).start()
    worker.close(drop_jobs=True)
    worker.submit(lambda: 'third', results.append)
    reactor.run_once()
    assert results == ['first']
