"""The pytest plugin: fixtures with brokers, and the report of a failed test that used one.

pytest imports this module in each run, also in projects that do not use kbroker. So the module imports nothing of
kbroker: the fixtures do, when a test first uses one.
"""
from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kbroker.testing.broker import Broker
    from kbroker.testing.fixtures import BrokerFactory, BrokersOfTest, SharedBroker
    from kbroker.testing.process import Process

pytest_plugins = ['kbroker.testing.exploring.plugin']

BROKERS: pytest.StashKey[BrokersOfTest] = pytest.StashKey()
"""The brokers of a test that come from fixtures."""
OPENED: pytest.StashKey[list[Process]] = pytest.StashKey()
"""The brokers that a test opened while it ran."""
SHARED: pytest.StashKey[Process] = pytest.StashKey()
"""The broker of the session."""
COUNT: pytest.StashKey[int] = pytest.StashKey()
"""The number of tests of the session that have used its broker."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup('kbroker').addoption(
        '--kafka-report', metavar='DIR', type=Path,
        help='write the timelines of the partitions of each failed test as HTML files into this directory')


# ---- fixtures

@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A fresh broker, with a directory of its own. The test may kill it and start it again."""
    from kbroker.testing.broker import Broker
    from kbroker.testing.fixtures import Use
    brokers = _brokers_of(request)
    use = Use(Broker())
    brokers.uses.append(use)
    yield use.broker
    brokers.end(use)


@pytest.fixture
def kafka_factory(request: pytest.FixtureRequest) -> Iterator[BrokerFactory]:
    """A function that starts brokers with settings, TLS or logins. All end with the test."""
    from kbroker.testing.fixtures import BrokerFactory, Use, certificates_in
    brokers = _brokers_of(request)
    uses: list[Use] = []

    def add(broker: Broker, has_own_directory: bool) -> None:
        uses.append(Use(broker, has_own_directory=has_own_directory))
        brokers.uses.append(uses[-1])

    yield BrokerFactory(add, lambda: certificates_in(_temporary(request).getbasetemp() / 'kafka-certificates'))
    for use in uses:
        brokers.end(use)


@pytest.fixture(scope='session')
def _kafka_of_session(request: pytest.FixtureRequest) -> Iterator[SharedBroker]:
    """The broker of all tests that use `kafka_session`."""
    from kbroker.testing.fixtures import SharedBroker
    with SharedBroker() as broker:
        request.config.stash[SHARED] = broker._process
        yield broker


@pytest.fixture
def kafka_session(request: pytest.FixtureRequest, _kafka_of_session: SharedBroker) -> Iterator[SharedBroker]:
    """The broker that the tests of the session share. `prefix` is a prefix for the names of this test.

    The test fails if it leaves a transaction, a member of a group, a hold, a fault, or a stopped clock.
    """
    stash = request.config.stash
    stash[COUNT] = stash.get(COUNT, 0) + 1
    _brokers_of(request).uses.append(_kafka_of_session.begin(request.node.name, stash[COUNT]))
    yield _kafka_of_session
    message = _kafka_of_session.left_open()
    if message is not None:
        pytest.fail(message, pytrace=False)


def _brokers_of(request: pytest.FixtureRequest) -> BrokersOfTest:
    """Return the brokers of the test of a fixture. The first fixture of the test creates the object."""
    from kbroker.testing.fixtures import BrokersOfTest
    node = request.node
    if BROKERS not in node.stash:
        factory = _temporary(request)
        node.stash[BROKERS] = BrokersOfTest(node.nodeid, lambda name: factory.mktemp(name))
    brokers: BrokersOfTest = node.stash[BROKERS]
    return brokers


def _temporary(request: pytest.FixtureRequest) -> pytest.TempPathFactory:
    factory: pytest.TempPathFactory = request.getfixturevalue('tmp_path_factory')
    return factory


# ---- the end of a test. Old-style wrappers, because this module is imported under every release of pytest.

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget an earlier run of the test: there are plugins that repeat a test."""
    if BROKERS in item.stash:
        del item.stash[BROKERS]
    if OPENED in item.stash:
        del item.stash[OPENED]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    before = list(_open_processes())
    outcome = yield
    opened = [process for process in _open_processes() if process not in before]
    if opened:
        item.stash[OPENED] = opened
    brokers = item.stash.get(BROKERS, None)
    if brokers is not None and outcome.excinfo is None:
        from kbroker.testing.fixtures import unfired
        _fail(outcome, unfired(brokers.uses))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, None]:
    outcome = yield
    shared = item.config.stash.get(SHARED, None)
    left = [process for process in item.stash.get(OPENED, []) if process.is_open and process is not shared]
    if left:
        from kbroker.testing.fixtures import close_left
        _fail(outcome, close_left(left))


def _open_processes() -> list[Process]:
    """Return the brokers that are open. There are none while the kit is not imported."""
    module = sys.modules.get('kbroker.testing.process')
    return [] if module is None else module.open_processes


def _fail(outcome: Any, message: str | None) -> None:
    if message is None or outcome.excinfo is not None:
        return
    error = pytest.fail.Exception(message, pytrace=False)
    if not hasattr(outcome, 'force_exception'):     # pluggy 1.0, with which pytest 7 works, has none
        raise error
    outcome.force_exception(error)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    outcome = yield
    brokers = item.stash.get(BROKERS, None)
    if brokers is None:
        return
    report: pytest.TestReport = outcome.get_result()
    if not report.failed:
        return
    brokers.has_failed = True
    pages = item.config.getoption('kafka_report')
    if report.when != 'teardown' and (pages is not None or not brokers.is_explained):
        report.sections += brokers.sections(pages)
