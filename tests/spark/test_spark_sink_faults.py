"""The failures of the sink, through Spark: after each, every row is committed once, and nothing stays open.

The queries meet the broker through a proxy, which stops them at a step of their protocol. A step is lost if the process
dies that it belongs to. The source of a query ends after some micro-batches, with an error that the tests expect.
"""
import shutil

import pytest
from support.sink_place import APACHE_KAFKA, DRIVER, KBROKER, STEPS, SinkPlace, SinkRun
from support.sink_query import (
    COMMIT_RAISES_AFTER,
    COMMIT_RAISES_BEFORE,
    ROWS,
    TASK_EXITS,
    TASK_RAISES,
    THE_END,
    error_of,
    run_job,
    start_query,
)
from support.spark_driver import SparkDriver

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]
BATCHES = 3
WRITERS = [DRIVER]
KILLED = {DRIVER: ['EndTxn driver commit answer']}
"""The steps of the default run: the decision is made, and its answer is lost."""


@pytest.fixture(scope='module', params=[KBROKER, pytest.param(APACHE_KAFKA, marks=pytest.mark.soak)])
def place(request, tmp_path_factory):
    place = SinkPlace(request.param, tmp_path_factory.mktemp('place') / 'data')
    try:
        place.start()
        yield place
    finally:
        place.close()


class Drivers:
    """Drivers in processes of their own. The next one makes its session before the test needs it."""

    def __init__(self, directory):
        self._directory = directory
        self._count = 0
        self._started = []
        self._idle = []

    def take(self):
        """Return a driver without a query."""
        if not self._idle:
            self._start()
        return self._idle.pop(0)

    def prepare(self):
        """Begin to start a driver, if none is idle."""
        if not self._idle:
            self._start()

    def give_back(self, driver):
        self._idle.append(driver)

    def close(self):
        for driver in self._started:
            driver.kill9()

    def _start(self):
        self._count += 1
        driver = SparkDriver(self._directory / str(self._count)).start()
        self._started.append(driver)
        self._idle.append(driver)


@pytest.fixture(scope='module')
def drivers(tmp_path_factory):
    drivers = Drivers(tmp_path_factory.mktemp('drivers'))
    yield drivers
    drivers.close()


class SessionDriver:
    """A driver on the session that all tests share. It cannot be killed."""

    def __init__(self, session):
        self._session = session
        self._query = None

    def run(self, options, checkpoint, batches):
        self._query = start_query(self._session, options, str(checkpoint), batches)

    def ended(self):
        return error_of(self._query)


@pytest.fixture
def session_driver(spark):
    return lambda: SessionDriver(spark)


def run_to_the_end(driver, run, checkpoint, batches=BATCHES):
    """Run the query. Repeat it as long as it fails, at most twice. Return the errors before the end."""
    failures = []
    while len(failures) < 3:
        driver.run(run.options, checkpoint, batches)
        failures.append(driver.ended())
        if THE_END in failures[-1]:
            return failures[:-1]
    raise AssertionError('\n\n'.join(failures))


@pytest.mark.parametrize('writer', WRITERS)
def test_a_micro_batch_takes_the_steps_at_which_the_other_tests_stop(place, session_driver, writer, tmp_path):
    run = SinkRun(place, f'steps-{writer}', writer)
    assert run_to_the_end(session_driver(), run, tmp_path / 'checkpoint') == []
    run.assert_exactly_once(BATCHES)
    assert list(dict.fromkeys(map(str, place.proxy.steps))) == STEPS[writer]


def killed_steps():
    return [pytest.param(writer, step, marks=() if step in KILLED[writer] else pytest.mark.soak)
            for writer in WRITERS for step in STEPS[writer]]


@pytest.mark.parametrize(('writer', 'step'), killed_steps())
def test_a_driver_is_killed_at_a_step(place, session_driver, drivers, writer, step, tmp_path):
    run = SinkRun(place, f'killed-{writer}-{step.replace(" ", "-")}', writer)
    stop = place.proxy.stop_at(step, skipped=1)
    driver = drivers.take()
    driver.run(run.options, tmp_path / 'checkpoint', BATCHES)
    stop.wait()
    driver.kill9()
    stop.lose()
    assert run_to_the_end(session_driver(), run, tmp_path / 'checkpoint') == []
    run.assert_exactly_once(BATCHES)


@pytest.mark.parametrize(('writer', 'step'), killed_steps())
def test_the_broker_is_killed_at_a_step(place, session_driver, writer, step, tmp_path):
    run = SinkRun(place, f'broker-{writer}-{step.replace(" ", "-")}', writer)
    stop = place.proxy.stop_at(step, skipped=1)
    driver = session_driver()
    driver.run(run.options, tmp_path / 'checkpoint', BATCHES)
    stop.wait()
    place.kill9()
    stop.lose()
    place.start()
    failure = driver.ended()
    if THE_END not in failure:
        assert run_to_the_end(driver, run, tmp_path / 'checkpoint') == [], failure
    run.assert_exactly_once(BATCHES)


@pytest.mark.soak
@pytest.mark.parametrize('fault', [TASK_RAISES, TASK_EXITS, COMMIT_RAISES_BEFORE, COMMIT_RAISES_AFTER])
@pytest.mark.parametrize('writer', WRITERS)
def test_a_fault_of_a_task_or_a_commit(place, drivers, tmp_path, writer, fault):
    run = SinkRun(place, f'{writer}-{fault.replace(" ", "-")}', writer)
    run.options |= {'fault': fault, 'flag': str(tmp_path / 'flag')}
    driver = drivers.take()
    failures = run_to_the_end(driver, run, tmp_path / 'checkpoint')
    drivers.give_back(driver)
    if fault in (TASK_RAISES, TASK_EXITS):
        assert failures == []
    else:
        assert [fault in failure for failure in failures] == [True]
    run.assert_exactly_once(BATCHES)


@pytest.mark.parametrize('writer', WRITERS)
def test_the_older_of_two_drivers_with_one_prefix_fails(place, session_driver, writer, tmp_path):
    """Each has its own checkpoint, and writes its own rows as far as it comes."""
    run = SinkRun(place, f'two-{writer}', writer)
    stop = place.proxy.stop_at('Produce driver ledger request', skipped=1)
    older, younger = session_driver(), session_driver()
    older.run(run.options, tmp_path / 'older', BATCHES)
    stop.wait()
    assert run_to_the_end(younger, run, tmp_path / 'younger') == []
    stop.release()
    assert f'has taken the prefix {run.prefix!r}' in older.ended()
    assert run.open_transactions() == []
    assert run.values() == {value: 1 + (value < ROWS) for value in range(BATCHES * ROWS)}


@pytest.mark.soak
@pytest.mark.parametrize('step', ['Produce driver ledger request', 'EndTxn driver commit request'])
@pytest.mark.parametrize('writer', WRITERS)
def test_a_zombie_of_the_same_query_decides_nothing(place, drivers, session_driver, writer, step, tmp_path):
    """The zombie has read its checkpoint; the successor goes on from a copy of it."""
    run = SinkRun(place, f'zombie-{writer}-{step.replace(" ", "-")}', writer)
    stop = place.proxy.stop_at(step, skipped=1)
    zombie = drivers.take()
    zombie.run(run.options, tmp_path / 'checkpoint', BATCHES)
    stop.wait()
    shutil.copytree(tmp_path / 'checkpoint', tmp_path / 'copy')
    assert run_to_the_end(session_driver(), run, tmp_path / 'copy') == []
    stop.release()
    assert f'has taken the prefix {run.prefix!r}' in zombie.ended()
    drivers.give_back(zombie)
    run.assert_exactly_once(BATCHES)


@pytest.mark.soak
@pytest.mark.parametrize('writer', WRITERS)
def test_a_query_whose_checkpoint_was_deleted_writes_its_micro_batches_again(place, session_driver, writer, tmp_path):
    run = SinkRun(place, f'deleted-{writer}', writer)
    driver = session_driver()
    for checkpoint in ('first', 'second'):
        assert run_to_the_end(driver, run, tmp_path / checkpoint) == []
    assert run.open_transactions() == []
    assert run.values() == dict.fromkeys(range(BATCHES * ROWS), 2)


@pytest.mark.soak
@pytest.mark.parametrize('step', ['Produce driver rows answer', 'Produce driver ledger request',
                                  'EndTxn driver commit request'])
def test_a_transaction_of_the_driver_that_times_out_before_the_decision(place, session_driver, step, tmp_path):
    run = SinkRun(place, f'timed-out-{step.replace(" ", "-")}', DRIVER, transactionTimeout='2s')
    stop = place.proxy.stop_at(step, skipped=1)
    driver = session_driver()
    driver.run(run.options, tmp_path / 'checkpoint', BATCHES)
    stop.wait()
    run.await_abort(f'{run.prefix}~d')
    stop.release()
    assert 'or transactionTimeout (2000 ms) has passed' in driver.ended()
    assert run_to_the_end(driver, run, tmp_path / 'checkpoint') == []
    run.assert_exactly_once(BATCHES)


@pytest.mark.soak
@pytest.mark.parametrize('fault', [TASK_RAISES, TASK_EXITS, COMMIT_RAISES_BEFORE, COMMIT_RAISES_AFTER])
@pytest.mark.parametrize('writer', WRITERS)
def test_a_job_with_a_key_that_failed_is_repeated(place, spark, tmp_path, writer, fault):
    """The shared session allows no task a second attempt, so the job fails and is run again."""
    run = SinkRun(place, f'job-{writer}-{fault.replace(" ", "-")}', writer, idempotencyKey='monday')
    options = run.options | {'fault': fault, 'flag': str(tmp_path / 'flag')}
    assert run_job(spark, options, BATCHES * ROWS) is not None
    assert run.open_transactions() == []
    assert set(run.values().values()) <= {1}
    assert run_job(spark, run.options, BATCHES * ROWS) is None
    run.assert_exactly_once(BATCHES)
