"""The sink on a standalone cluster of two workers: speculation, and executors that are killed while they write."""
import os
import signal
import socket

import pytest
from support.proxies.stopping_proxy import LIMIT_S
from support.runner.process_sessions import pid_of_port, virtual_machine_above
from support.spark.sink_place import APACHE_KAFKA, DECISION, DRIVER, KBROKER, PREPARED, SinkRun, serving
from support.spark.sink_query import TASK_WAITS, THE_END
from support.spark.spark_cluster import SparkCluster, settings
from support.spark.spark_driver import SparkDriver

pytestmark = [pytest.mark.jvm, pytest.mark.soak, pytest.mark.timeout(900)]
WRITERS = [DRIVER, PREPARED]
BATCHES = 3
SPECULATION = {'spark.speculation': 'true', 'spark.speculation.interval': '100ms',
               'spark.speculation.multiplier': '1.1', 'spark.speculation.quantile': '0.3',
               'spark.speculation.minTaskRuntime': '1s'}
"""Settings of speculation: if a task takes longer than one second, and a third of the tasks has ended, Spark starts a
copy in another process."""


@pytest.fixture(scope='module', params=[KBROKER, APACHE_KAFKA])
def place(request, tmp_path_factory):
    with serving(request.param, tmp_path_factory.mktemp('place') / 'data') as place:
        yield place


@pytest.fixture(scope='module')
def cluster(tmp_path_factory):
    cluster = SparkCluster(tmp_path_factory.mktemp('cluster'))
    yield cluster
    cluster.close()


@pytest.fixture
def start_driver(cluster, tmp_path):
    """Yield a function that starts a driver with settings. Only one driver at a time has executors."""
    started = []

    def start(**more):
        directory = tmp_path / f'driver{len(started)}'
        started.append(SparkDriver(directory, cluster.address, settings() | more).start())
        return started[-1]
    yield start
    for driver in started:
        driver.kill9()


@pytest.fixture
def waiting_task():
    """Yield a listener. A task that waits connects to it, and sends its process id."""
    with socket.create_server(('127.0.0.1', 0)) as listener:
        listener.settimeout(LIMIT_S)
        yield listener


@pytest.fixture
def killed_executor(start_driver, tmp_path):
    """Return a function that runs a query up to a step of a task, and kills the executor there. The query runs to its
    end.

    The function returns the stop of the proxy, at which the Python worker of the killed executor still waits.
    """
    def run_and_kill(run, step):
        stop = run.place.proxy.stop_at(step, after=DECISION)
        driver = start_driver()
        driver.run(run.options, tmp_path / 'checkpoint', BATCHES)
        os.kill(virtual_machine_above(pid_of_port(stop.wait().port)), signal.SIGKILL)
        assert THE_END in driver.ended()
        return stop
    return run_and_kill


def fault_options(listener):
    host, port = listener.getsockname()
    return {'fault': TASK_WAITS, 'flag': f'{host}:{port}'}


def accept(listener):
    """Return the connection of the task that waits, and its process id."""
    task, _ = listener.accept()
    return task, int(task.makefile().readline())


@pytest.mark.parametrize('writer', WRITERS)
def test_a_speculative_copy_wins_against_a_task_that_waits(place, start_driver, waiting_task, tmp_path, writer):
    """Without the copy, the query would not end. Spark kills the losing attempt, or that attempt is too late."""
    run = SinkRun(place, f'speculation-{writer}', writer)
    driver = start_driver(**SPECULATION)
    driver.run(run.options | fault_options(waiting_task), tmp_path / 'checkpoint', BATCHES)
    task, _ = accept(waiting_task)
    with task:
        assert THE_END in driver.ended()
    run.finish()
    run.assert_exactly_once(BATCHES)


@pytest.mark.parametrize('writer', WRITERS)
def test_an_executor_is_killed_before_its_task_writes(place, start_driver, waiting_task, tmp_path, writer):
    """The Python worker of the executor lives a little longer and continues."""
    run = SinkRun(place, f'executor-{writer}', writer)
    driver = start_driver()
    driver.run(run.options | fault_options(waiting_task), tmp_path / 'checkpoint', BATCHES)
    task, pid = accept(waiting_task)
    os.kill(virtual_machine_above(pid), signal.SIGKILL)
    task.close()
    assert THE_END in driver.ended()
    run.finish()
    run.assert_exactly_once(BATCHES)


@pytest.mark.parametrize('writer', WRITERS)
def test_the_driver_is_killed_while_an_executor_has_a_task(place, start_driver, waiting_task, tmp_path, writer):
    run = SinkRun(place, f'cluster-driver-{writer}', writer)
    driver = start_driver()
    driver.run(run.options | fault_options(waiting_task), tmp_path / 'checkpoint', BATCHES)
    task, _ = accept(waiting_task)
    driver.kill9()
    successor = start_driver()
    successor.run(run.options, tmp_path / 'checkpoint', BATCHES)
    task.close()
    assert THE_END in successor.ended()
    run.finish()
    run.assert_exactly_once(BATCHES)


def test_an_executor_is_killed_while_it_writes(place, killed_executor):
    """The executor's Python worker has sent rows and waits for the response, which arrives after the query has
    ended."""
    run = SinkRun(place, 'writing', PREPARED)
    stop = killed_executor(run, 'Produce task rows answer')
    stop.release()
    run.finish()
    run.assert_exactly_once(BATCHES)


def test_a_task_that_writes_too_late_is_ended_by_the_tool(place, killed_executor):
    """The executor is killed, and its rows reach the broker when the query has ended."""
    run = SinkRun(place, 'too-late', PREPARED)
    stop = killed_executor(run, 'Produce task rows request')
    stop.release()
    run.await_open(1)
    assert '1 aborted' in run.finish()
    run.assert_exactly_once(BATCHES)
