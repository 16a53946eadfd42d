"""The marker `kafka_explore`: pytest runs a test once for each step that its application reached, with a fault there.

A test of pytest needs its name before it runs. So the first run, which finds the steps, belongs to the collection:

* Once the tests are collected and deselected, each test with the marker that is left runs once, without a report. Then
  its runs take its place, `test[step-1-broker]` and so on. A session that selects none of these tests does no such run.
* If the command line names steps, by `-k 'step 17'`, by an id or by `--lf`, the runs must be there before the
  selection. They come from the steps that an earlier session has stored, so the names mean the same steps. If there are
  none, the first run is done at once.
* With pytest-xdist, each process collects. One of them does the first run of a test, and the others read its steps.

A fixed number of parametrized tests was the alternative. It would have reported a skipped test for each step above the
number that the application reached, and no test for a step above the fixed number.
"""
from __future__ import annotations

import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol
from _pytest.unittest import UnitTestCase

if TYPE_CHECKING:
    from kbroker.testing.broker import Broker
    from kbroker.testing.control import Step
    from kbroker.testing.exploring.faults import Case, Plan
    from kbroker.testing.exploring.injection import Application, FirstRun, Injection
    from kbroker.testing.exploring.report import Outcome
    from kbroker.testing.exploring.store import Store, StoredRun

MARKER = 'kafka_explore'
ARGUMENTS = ('kill', 'error', 'select', 'steps', 'seed')
PARAMETER = '_kafka_case'
"""The name of the parameter that distinguishes the runs of a test."""
STEP_IN_EXPRESSION = re.compile(r'\bstep (\d+)\b')
STEP_IN_NAME = re.compile(r'\bstep-\d+-')


class Trial:
    """One run of an explored test: the first run, which has no fault, or the run of a case."""

    def __init__(self, case: Case | None):
        from kbroker.testing.exploring.injection import Application

        self.case = case
        self.application = Application()
        self.steps: list[Step] = []
        """The steps that the first run reached."""
        self.reports: list[pytest.TestReport] = []
        """The reports of the first run."""
        self._first: FirstRun | None = None
        self._injection: Injection | None = None

    def begin(self, broker: Broker) -> None:
        """Arm the fault on the broker of the test."""
        from kbroker.testing.exploring.injection import FirstRun, Injection

        if self.case is None:
            self._first = FirstRun(broker)
        else:
            self._injection = Injection(broker, self.case, self.application)

    def end(self) -> None:
        """End the run. Skip the test if the step was not reached again. Raise the error of a restart that failed."""
        if self.case is None:
            self.steps = [] if self._first is None else self._first.steps()
            return
        self.disarm()
        if self._injection is not None and not self._injection.has_fired:
            pytest.skip(f'not reached again: {self.case.step.words}')

    def disarm(self) -> None:
        if self._injection is not None:
            self._injection.close()


TRIAL = pytest.StashKey[Trial]()
MISTAKE = pytest.StashKey[str]()
"""The mistake in the marker of a test. The test fails, and does not run."""
PROBLEM = pytest.StashKey[str]()
"""The reason that a test has no runs with faults. The test fails, too, after it has run."""
REACHED = pytest.StashKey[int]()
EXPLORATIONS = pytest.StashKey['Explorations']()


class Explorations:
    """The explorations of a session."""

    def __init__(self, config: pytest.Config):
        self._config = config
        self._store: Store | None = None
        self._temporary: Path | None = None
        self.names_steps = any(STEP_IN_NAME.search(text) for text in (config.option.keyword, *config.args))
        self.reads_stored = self.names_steps or any(config.getoption(name, False) for name in ('lf', 'failedfirst'))
        """True if the names of runs mean the steps of an earlier session."""
        self._outcomes: dict[str, list[Outcome]] = {}
        self._reached: dict[str, int] = {}
        self.explained: set[str] = set()
        """The tests of which a failed run has a report with timelines."""
        self.cases: Sequence[Case] | None = None
        """The runs as which a test is being collected."""

    @property
    def store(self) -> Store:
        from kbroker.testing.exploring.store import Store

        if self._store is None:
            session = getattr(self._config, 'workerinput', {}).get('testrunuid') or uuid.uuid4().hex
            self._store = Store(self._directory(session), session)
        return self._store

    def _directory(self, session: str) -> Path:
        """Return the directory of the first runs: in the cache of pytest, or a temporary one if pytest has no cache."""
        cache = getattr(self._config, 'cache', None)
        if cache is not None:
            return Path(cache.mkdir('kafka-explore'))
        self._temporary = _temporary_directory(session)
        self._temporary.mkdir(exist_ok=True)
        return self._temporary

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Note what to remove when the processes of pytest-xdist have ended."""
        self._temporary = _temporary_directory(node.workerinput['testrunuid'])

    def close(self) -> None:
        if self._temporary is not None and not hasattr(self._config, 'workerinput'):
            shutil.rmtree(self._temporary, ignore_errors=True)

    def runs_of(self, item: pytest.Item) -> list[pytest.Item]:
        """Return the runs that take the place of a test, or the test itself, with its problem, if there are none."""
        try:
            plan = plan_of_item(item)
        except (TypeError, ValueError) as error:
            item.stash[MISTAKE] = f'{MARKER}: {error}'
            return [item]
        first = self.store.find(item.nodeid, lambda: self._first_run(item), self.reads_stored)
        if first.failure is not None:
            item.stash[PROBLEM] = first.failure
            return [item]
        try:
            # A run that is named need not be in the sample.
            cases = plan.all_cases(first.steps) if self.names_steps else plan.cases(first.steps)
        except ValueError as error:
            item.stash[PROBLEM] = f'{MARKER}: {error}'
            return [item]
        runs = self._collected(item, cases)
        for run in runs:
            run.stash[REACHED] = len(first.steps)
        return runs

    def _first_run(self, item: pytest.Item) -> StoredRun:
        from kbroker.testing.exploring.steps import reached_steps
        from kbroker.testing.exploring.store import StoredRun

        trial = item.stash[TRIAL] = Trial(None)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        finally:
            del item.stash[TRIAL]
        for report in trial.reports:
            if report.skipped:
                return StoredRun(self.store.session, 'the first run was skipped')
            if report.failed:
                return StoredRun(self.store.session, f'the first run, which has no fault, failed: {_reason_of(report)}')
        return StoredRun(self.store.session, None, tuple(reached_steps(trial.steps)))

    def _collected(self, item: pytest.Item, cases: Sequence[Case]) -> list[pytest.Item]:
        """Collect a test as the runs with these faults."""
        assert isinstance(item, pytest.Function)
        parent: Any = item.parent       # a module or a class
        self.cases = cases
        try:
            found = parent.ihook.pytest_pycollect_makeitem(
                collector=parent, name=item.originalname, obj=getattr(parent.obj, item.originalname))
        finally:
            self.cases = None
        ids = {case.name if item.name == item.originalname else f'{item.callspec.id}-{case.name}' for case in cases}
        return [run for run in found if run.callspec.id in ids]

    # ---- the report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of a run. With pytest-xdist, the controller gets the reports of all processes."""
        found = getattr(report, 'kafka_case', None)
        if found is not None and not hasattr(self._config, 'workerinput'):
            from kbroker.testing.exploring.faults import Case, Fault
            from kbroker.testing.exploring.report import VERDICTS, Outcome
            from kbroker.testing.exploring.steps import ReachedStep

            case = Case(ReachedStep(**found['step']), Fault(found['fault']))
            outcome = Outcome(case, VERDICTS[found['outcome']], found['reason'])
            self._outcomes.setdefault(found['test'], []).append(outcome)
            self._reached[found['test']] = found['reached']

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._outcomes:
            return
        from kbroker.testing.exploring.report import Report

        terminalreporter.section(MARKER)
        for test, outcomes in self._outcomes.items():
            report = Report(self._reached[test], outcomes)
            is_long = report.failed or report.not_reached or terminalreporter.verbosity > 0
            terminalreporter.write_line(f'{test}: {report if is_long else report.summary}')
            if is_long:
                terminalreporter.write_line('')


def _temporary_directory(session: str) -> Path:
    return Path(tempfile.gettempdir()) / f'kafka-explore-{session}'


def _reason_of(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, 'reprcrash', None)
    return str(report.longrepr if crash is None else crash.message).partition('\n')[0]


def plan_of_item(item: pytest.Item) -> Plan:
    """Return the plan in the marker of a test. Raise TypeError or ValueError for a mistake in it."""
    from kbroker.base.suggestions import did_you_mean
    from kbroker.testing.exploring.faults import plan_of

    marker = item.get_closest_marker(MARKER)
    assert marker is not None
    if marker.args:
        raise ValueError(f"found {marker.args[0]!r}, expected arguments with names, such as kill='broker'")
    if not isinstance(item, pytest.Function) or isinstance(item.parent, UnitTestCase):
        raise ValueError('found no test function of pytest, expected one: in a TestCase, call kbroker.testing.explore')
    if 'kafka' not in item.fixturenames:
        raise ValueError('the test does not use the fixture kafka, whose broker has the faults: let it use kafka')
    for name in marker.kwargs:
        if name not in ARGUMENTS:
            raise ValueError(f'found {name}=, expected one of {", ".join(ARGUMENTS)}{did_you_mean(name, ARGUMENTS)}')
    plan = plan_of(**marker.kwargs)
    if plan.kills_application and 'kafka_application' not in item.fixturenames:
        raise ValueError("kill='application': the test does not use the fixture kafka_application: let it call "
                         'kafka_application.restart_with(restart)')
    return plan


def _test_of(nodeid: str, case: Case) -> str:
    """Return the id of the test of which a run has the id `nodeid`."""
    return nodeid.replace(f'-{case.name}]', ']').replace(f'[{case.name}]', '')


def _case_of(item: pytest.Item) -> Case | None:
    callspec = getattr(item, 'callspec', None)
    return None if callspec is None else callspec.params.get(PARAMETER)


# ---- collection. Old-style wrappers, because this module is imported under every release of pytest.

def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line('markers', f'{MARKER}({", ".join(ARGUMENTS)}): run the test once for each step '
                                       'that its application reached, with a fault at this step')
    # An expression cannot contain two words side by side, so this changes no other expression.
    config.option.keyword = STEP_IN_EXPRESSION.sub(r'step-\1-', config.option.keyword)
    explorations = config.stash[EXPLORATIONS] = Explorations(config)
    config.pluginmanager.register(explorations, 'kafka-explorations')


def pytest_unconfigure(config: pytest.Config) -> None:
    if EXPLORATIONS in config.stash:
        config.stash[EXPLORATIONS].close()


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    cases = metafunc.config.stash[EXPLORATIONS].cases
    if cases is not None:
        metafunc.fixturenames.append(PARAMETER)
        metafunc.parametrize(PARAMETER, cases, ids=[case.name for case in cases])


@pytest.hookimpl(hookwrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Generator[None, Any, None]:
    outcome = yield
    explorations = collector.config.stash[EXPLORATIONS]
    found = outcome.get_result()
    if explorations.cases is None and explorations.reads_stored and isinstance(found, list):
        outcome.force_result(list(_replaced(found, explorations)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.collectonly:
        items[:] = _replaced(items, config.stash[EXPLORATIONS])


def _replaced(items: Sequence[Any], explorations: Explorations) -> Iterator[Any]:
    """Yield the items. The runs of a test with the marker take its place."""
    for item in items:
        is_explored = isinstance(item, pytest.Item) and item.get_closest_marker(MARKER) is not None
        if is_explored and _case_of(item) is None and PROBLEM not in item.stash and MISTAKE not in item.stash:
            yield from explorations.runs_of(item)
        else:
            yield item


# ---- the runs

@pytest.fixture
def kafka_application(request: pytest.FixtureRequest) -> Application:
    """The application that `kafka_explore(kill='application')` kills and starts again. The test says how:
    `kafka_application.restart_with(restart)`.
    """
    from kbroker.testing.exploring.injection import Application

    return request.node.stash[TRIAL].application if TRIAL in request.node.stash else Application()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Do a first run without a report."""
    if TRIAL not in item.stash:
        return None
    item.stash[TRIAL].reports = runtestprotocol(item, nextitem=nextitem, log=False)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if MISTAKE in item.stash:
        pytest.fail(item.stash[MISTAKE], pytrace=False)
    case = _case_of(item)
    if case is not None:
        item.stash[TRIAL] = Trial(case)


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Generator[
        None, Any, None]:
    outcome = yield
    if fixturedef.argname == 'kafka' and outcome.excinfo is None and TRIAL in request.node.stash:
        _do(outcome, lambda: request.node.stash[TRIAL].begin(outcome.get_result()))


# The last one, so that the fault is disarmed before the plugin of the fixtures asks which faults have not fired.
@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    outcome = yield
    trial = item.stash.get(TRIAL, None)
    if trial is not None:
        _do(outcome, trial.end)
        if trial.case is not None and outcome.excinfo and not issubclass(outcome.excinfo[0], pytest.skip.Exception):
            _note_failure(item, trial.case)
    if PROBLEM in item.stash:
        _do(outcome, lambda: pytest.fail(item.stash[PROBLEM], pytrace=False))


def _note_failure(item: pytest.Item, case: Case) -> None:
    """Let only the first run of a test that fails have timelines in its report: they take a second or more."""
    from kbroker.testing.plugin import BROKERS

    explained, test = item.config.stash[EXPLORATIONS].explained, _test_of(item.nodeid, case)
    if BROKERS in item.stash:
        item.stash[BROKERS].is_explained = test in explained
    explained.add(test)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Disarm the fault of a test whose setup failed."""
    if TRIAL in item.stash:
        item.stash[TRIAL].disarm()


def _do(outcome: Any, act: Callable[[], object]) -> None:
    """Do something at the end of a phase of a test. Its error becomes that of the phase, unless there is one."""
    try:
        act()
    except BaseException as error:
        if outcome.excinfo is not None:
            return
        if not hasattr(outcome, 'force_exception'):     # pluggy 1.0, with which pytest 7 works, has none
            raise
        outcome.force_exception(error)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    is_problem = call.excinfo is not None and call.excinfo.errisinstance(pytest.fail.Exception)
    if PROBLEM in item.stash and report.failed and not is_problem:
        report.sections.append((f'{MARKER}: no step was explored', item.stash[PROBLEM]))
    case = _case_of(item)
    if case is not None and (call.when == 'call' or (call.when == 'setup' and not report.passed)):
        if report.failed:
            report.sections.append((MARKER, f'{case.words}\npytest -k {case.name!r} repeats this run alone.'))
        # pytest-xdist sends the attributes of a report, if they are values of JSON.
        report.kafka_case = {  # type: ignore[attr-defined]
            'test': _test_of(report.nodeid, case),
            'reached': item.stash[REACHED], 'step': asdict(case.step), 'fault': case.fault.name,
            'outcome': report.outcome, 'reason': _reason_of(report) if report.failed else ''}
