"""Ingests into tables on a standalone Spark cluster of two workers: lost processes and machines, and speculation."""
import os
import signal
import socket

import pytest
from support.lake.lake_runs import KILL, KILL_EXECUTOR, LIMIT_S, WAIT, WAIT_FIRST, files_of, rows_in
from support.runner.process_sessions import children_of, virtual_machine_above
from support.spark.spark_cluster import SparkCluster, settings

pytestmark = [pytest.mark.jvm, pytest.mark.soak, pytest.mark.timeout(900)]
PLACES = ['iceberg-local', 'delta-s3']
TALLIED = 'failures of an ingest into a table'
SPECULATION = {'spark.speculation': 'true', 'spark.speculation.interval': '100ms',
               'spark.speculation.multiplier': '1.1', 'spark.speculation.quantile': '0.3',
               'spark.speculation.minTaskRuntime': '1s'}
QUICK_LOSS = {'spark.network.timeout': '8s', 'spark.network.timeoutInterval': '1s',
              'spark.executor.heartbeatInterval': '1s', 'spark.shuffle.io.connectionTimeout': '8s',
              'spark.rpc.askTimeout': '8s'}
"""Settings by which a driver gives up an executor that is silent for eight seconds."""


@pytest.fixture
def cluster(tmp_path_factory):
    cluster = SparkCluster(tmp_path_factory.mktemp('cluster'))
    yield cluster
    cluster.close()


@pytest.fixture
def listener():
    """Yield a listener. A task that waits connects to it, and sends its process id."""
    with socket.create_server(('127.0.0.1', 0)) as listener:
        listener.settimeout(LIMIT_S)
        yield listener


@pytest.fixture(params=PLACES)
def cell(request, make_cell, shared_broker, lake_writer):
    cell = make_cell(request.param, shared_broker, lake_writer)
    cell.write()
    return cell


def on(cluster, task, listener=None, **more):
    return {'task': task, 'workers': 2, 'master': cluster.address, 'settings': settings() | more,
            'listener': listener and listener.getsockname()}


def accept(listener):
    """Return the connection of the task that waits, and its process id."""
    task, _ = listener.accept()
    return task, int(task.makefile().readline())


def machine_of(cluster, pid):
    """Return the processes of the machine of a task: Spark's worker, its executor, and the Python processes of the
    executor."""
    executor = virtual_machine_above(pid)
    [worker] = [each for each in cluster.worker_pids() if executor in children_of(each)]
    daemons = children_of(executor)
    return [worker, executor, *daemons, *(child for each in daemons for child in children_of(each))]


@pytest.mark.parametrize('task', [KILL, KILL_EXECUTOR])
def test_every_row_is_in_the_table_once_after_a_process_of_a_task_is_killed(cell, cluster, tally, task):
    """The task has written a file. Another attempt writes another file, and the first one is deleted."""
    assert cell.succeed(**on(cluster, task)).rows == 20
    cell.assert_exactly_once()
    cell.finish()
    tally(TALLIED, 1)


def test_every_row_is_in_the_table_once_after_a_speculative_attempt_wins(cell, cluster, listener, tally):
    """Without the second attempt, the run would not end."""
    driver = cell.start(**on(cluster, WAIT, listener, **SPECULATION))
    task, _ = accept(listener)
    with task:
        assert cell.succeed(driver).rows == 20
        cell.assert_exactly_once()
    cell.finish()
    tally(TALLIED, 1)


def test_every_row_is_in_the_table_once_after_a_machine_dies(cell, cluster, listener, tally):
    driver = cell.start(**on(cluster, WAIT, listener, **QUICK_LOSS))
    task, pid = accept(listener)
    for each in machine_of(cluster, pid):
        os.kill(each, signal.SIGKILL)
    task.close()
    assert cell.succeed(driver).rows == 20
    cell.assert_exactly_once()
    cell.finish()
    tally(TALLIED, 1)


def test_a_machine_that_returns_after_the_run_adds_no_row(cell, cluster, listener, tally):
    """The processes of the machine stand still, as behind a network that is cut. When they go on, the run has ended,
    and the task writes a file that no table names."""
    driver = cell.start(**on(cluster, WAIT_FIRST, listener, **QUICK_LOSS))
    task, pid = accept(listener)
    stopped = machine_of(cluster, pid)
    for each in stopped:
        os.kill(each, signal.SIGSTOP)
    try:
        assert cell.succeed(driver).rows == 20
        cell.assert_exactly_once()
    finally:
        task.close()
        for each in stopped:
            os.kill(each, signal.SIGCONT)
    cell.write()
    assert cell.succeed().rows == 20
    assert rows_in(cell.place) == cell.expected()
    named, stored, markers = files_of(cell.place)
    assert len(stored - named) <= 1
    assert markers == []
    tally(TALLIED, 1)


def test_every_row_is_in_the_table_once_after_the_driver_of_running_tasks_is_killed(cell, cluster, listener, tally):
    driver = cell.start(**on(cluster, WAIT, listener))
    task, _ = accept(listener)
    driver.kill()
    task.close()
    cell.finish()
    tally(TALLIED, 1)
