"""The failures of the sink, through Spark: after each, every row is committed once, and no transaction stays open.

The queries reach the broker through a proxy, which stops them at a step of their protocol. If a step's process is
killed, the step does not happen. The source of a query ends after some micro-batches, with an error that the tests
expect.
"""
import shutil

import pytest
from support.spark.sink_place import APACHE_KAFKA, DECISION, DRIVER, KBROKER, PREPARED, STEPS, SinkRun, serving
from support.spark.sink_query import (
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
from support.spark.spark_driver import SparkDriver

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]
BATCHES = 3
WRITERS = [DRIVER, PREPARED]
KILLED = {DRIVER: 'EndTxn driver commit answer', PREPARED: 'EndTxn task commit answer'}
"""The step at which the default run kills the driver: the micro-batch is decided, and the driver has not learned this
yet."""


@pytest.fixture(scope='module', params=[KBROKER, pytest.param(APACHE_KAFKA, marks=pytest.mark.soak)])
def place(request, tmp_path_factory):
    with serving(request.param, tmp_path_factory.mktemp('place') / 'data') as place:
        yield place


class Drivers:
    """A pool of drivers in separate processes. A test takes a driver, and either kills it or returns it to the pool."""

    def __init__(self, directory):
        self._directory = directory
        self._started = []
        self._idle = []

    def take(self):
        """Return a driver without a query."""
        if self._idle:
            return self._idle.pop()
        self._started.append(SparkDriver(self._directory / str(len(self._started))).start())
        return self._started[-1]

    def give_back(self, driver):
        self._idle.append(driver)

    def close(self):
        for driver in self._started:
            driver.kill9()


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
    """Run the query. Repeat it as long as it fails, at most twice. Return the errors of the failed runs."""
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
    assert set(STEPS[writer]) <= set(map(str, place.proxy.steps))


def killed_steps(*writers):
    """Return the cases of a killed driver, each as (writer, step, the step after which it comes, the number of these
    steps to skip).

    The default run has one case for each of `writers`; the other cases are marked as soak.
    """
    cases = [pytest.param(writer, step, DECISION, 0,
                          marks=() if writer in writers and step == KILLED[writer] else pytest.mark.soak)
             for writer in WRITERS for step in STEPS[writer]]
    more = [('ListTransactions request', 'InitProducerId driver answer', 0),
            ('ListTransactions request', 'Produce task rows answer', 0),
            ('Produce task rows answer', DECISION, 2), ('EndTxn task commit answer', DECISION, 1),
            ('ListTransactions answer', 'EndTxn task commit answer', 0),
            # After the decision, the first request of this kind confirms the plan; the next one belongs to a task.
            ('DescribeTransactions driver request', DECISION, 1), ('DescribeTransactions driver answer', DECISION, 1)]
    return cases + [pytest.param(PREPARED, *case, marks=pytest.mark.soak) for case in more]


@pytest.mark.parametrize(('writer', 'step', 'after', 'skipped'), killed_steps(PREPARED))
def test_a_driver_is_killed_at_a_step(place, session_driver, drivers, tmp_path, writer, step, after, skipped):
    run = SinkRun(place, f'killed-{tmp_path.name}', writer)
    stop = place.proxy.stop_at(step, after, skipped)
    driver = drivers.take()
    driver.run(run.options, tmp_path / 'checkpoint', BATCHES)
    stop.wait()
    driver.kill9()
    stop.lose()
    assert run_to_the_end(session_driver(), run, tmp_path / 'checkpoint') == []
    run.assert_exactly_once(BATCHES)


@pytest.mark.parametrize(('writer', 'step', 'after', 'skipped'), killed_steps(DRIVER, PREPARED))
def test_the_broker_is_killed_at_a_step(place, session_driver, tmp_path, writer, step, after, skipped):
    run = SinkRun(place, f'broker-{tmp_path.name}', writer)
    stop = place.proxy.stop_at(step, after, skipped)
    driver = session_driver()
    driver.run(run.options, tmp_path / 'checkpoint', BATCHES)
    stop.wait()
    place.kill9()
    stop.lose()
    place.start()
    failure = driver.ended()
    if THE_END not in failure:
        print('the query ended, and is repeated:', failure)
        assert run_to_the_end(driver, run, tmp_path / 'checkpoint') == []
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
    """Each driver has its own checkpoint, and writes its own rows until it fails."""
    run = SinkRun(place, f'two-{writer}', writer)
    stop = place.proxy.stop_at('Produce driver ledger request', after=DECISION)
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
    """The zombie has read its checkpoint. The successor continues from a copy of the checkpoint."""
    run = SinkRun(place, f'zombie-{writer}-{step.replace(" ", "-")}', writer)
    stop = place.proxy.stop_at(step, after=DECISION)
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
@pytest.mark.parametrize(('writer', 'step', 'error'), [
    *((DRIVER, step, 'or transactionTimeout (2000 ms) has passed')
      for step in ('Produce driver rows answer', 'Produce driver ledger request', 'EndTxn driver commit request')),
    (PREPARED, 'Produce task rows answer', 'Nothing was decided'),
    (PREPARED, 'ListTransactions request', 'Nothing was decided')])
def test_a_transaction_that_times_out_before_the_decision(place, session_driver, tmp_path, writer, step, error):
    run = SinkRun(place, f'late-{tmp_path.name}', writer)
    after = 'Produce task rows answer' if step == 'ListTransactions request' else ''
    stop = place.proxy.stop_at(step, after)
    driver = session_driver()
    bounds = {'transactionTimeout': '2s'}
    if writer == PREPARED:
        bounds |= {'twoPhase': 'off', 'decisionMargin': '1s'}
    driver.run(run.options | bounds, tmp_path / 'checkpoint', BATCHES)
    stop.wait()
    run.await_open(0)
    stop.release()
    assert error in driver.ended()
    assert run_to_the_end(driver, run, tmp_path / 'checkpoint') == []
    run.assert_exactly_once(BATCHES)


@pytest.mark.soak
def test_transactions_that_time_out_after_the_decision_are_an_error_until_their_loss_is_accepted(
        place, session_driver, tmp_path):
    run = SinkRun(place, f'lost-{tmp_path.name}', PREPARED, twoPhase='off', transactionTimeout='20s',
                  decisionMargin='1s')
    stop = place.proxy.stop_at('EndTxn task commit request')
    driver = session_driver()
    driver.run(run.options, tmp_path / 'checkpoint', BATCHES)
    stop.wait()
    run.await_open(0)
    stop.release()
    for _ in range(2):
        failure = driver.ended()
        assert 'is decided, but 3 transactions of its tasks were aborted' in failure
        assert 'micro-batch 0 of query' in failure and f'{run.prefix}~t.' in failure
        driver.run(run.options, tmp_path / 'checkpoint', BATCHES)
    driver.ended()
    run.finish('--accept-loss')
    run.options['transactionTimeout'] = '2m'
    assert run_to_the_end(driver, run, tmp_path / 'checkpoint') == []
    run.assert_exactly_once(BATCHES, first=1)


@pytest.mark.parametrize('side', ['request', pytest.param('answer', marks=pytest.mark.soak)])
def test_a_plan_that_was_overtaken_while_it_listed_transactions_ends_none(place, session_driver, tmp_path, side):
    """The first query leaves open transactions, so that the second query's list is not empty. A third query then
    overtakes the second one."""
    run = SinkRun(place, f'overtaken-{side}', PREPARED)
    queries = []
    stops = []
    for step in ('Produce driver ledger request', f'ListTransactions {side}', 'Produce driver ledger request'):
        stops.append(place.proxy.stop_at(step))
        queries.append(session_driver())
        queries[-1].run(run.options, tmp_path / str(len(queries)), BATCHES)
        stops[-1].wait()
    assert len(run.open_transactions()) == 3
    stops[1].release()
    assert f'has taken the prefix {run.prefix!r}' in queries[1].ended()
    assert len(run.open_transactions()) == 3
    stops[2].release()
    assert THE_END in queries[2].ended()
    stops[0].release()
    assert f'has taken the prefix {run.prefix!r}' in queries[0].ended()
    run.assert_exactly_once(BATCHES)


@pytest.mark.soak
@pytest.mark.parametrize('fault', [TASK_RAISES, TASK_EXITS, COMMIT_RAISES_BEFORE, COMMIT_RAISES_AFTER])
@pytest.mark.parametrize('writer', WRITERS)
def test_a_job_with_a_key_that_failed_is_repeated(place, spark, tmp_path, writer, fault):
    """The shared Spark session gives tasks no second attempt, so the job fails. The test then runs it again."""
    run = SinkRun(place, f'job-{writer}-{fault.replace(" ", "-")}', writer, idempotencyKey='monday')
    options = run.options | {'fault': fault, 'flag': str(tmp_path / 'flag')}
    assert run_job(spark, options, BATCHES * ROWS) is not None
    assert run_job(spark, run.options, BATCHES * ROWS) is None
    run.assert_exactly_once(BATCHES)
