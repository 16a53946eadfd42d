"""Fixtures that every room uses, and what a run requires of the machine."""
import os
import pathlib
import shutil
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

pytest.register_assert_rewrite('live', 'apache_kafka', 'fakes', 'behaviours')

from apache_kafka import LiveKafka  # noqa: E402
from live import PROMPT, LiveBroker  # noqa: E402

TOOLS = {'jvm': ('java', 'javac', 'mvn'), 'node': ('node', 'npm'), 'browser': ('chromium',)}
"""The marker of a test, and the programs that it needs."""


def pytest_addoption(parser):
    parser.addoption('--against', choices=('kbroker', 'apache-kafka'), default='kbroker',
                     help='the broker that the judges meet; Apache Kafka shows whether the judges are right')


def pytest_runtest_setup(item):
    """A test whose tools are missing is skipped with the reason; KBROKER_REQUIRE=jvm,node makes it fail instead."""
    required = os.environ.get('KBROKER_REQUIRE', '').split(',')
    for marker, tools in TOOLS.items():
        missing = [tool for tool in tools if shutil.which(tool) is None]
        if item.get_closest_marker(marker) and missing:
            reason = f'{marker}: {", ".join(missing)} not found'
            if marker in required:
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)


class Brokers:
    """Starts broker processes and ends them. No broker may meet anything that it does not expect."""

    def __init__(self, against, directory):
        self._type = LiveKafka if against == 'apache-kafka' else LiveBroker
        self._directory = directory
        self._started = []

    def start(self, settings=None, directory=None):
        broker = self._type(directory or self._directory / f'data{len(self._started)}', PROMPT | (settings or {}))
        self._started.append(broker)
        broker.start()
        return broker

    def end(self):
        for broker in self._started:
            broker.kill9()
        for broker in self._started:
            assert broker.tracebacks() == []


@pytest.fixture
def start_broker(request, tmp_path):
    """A function that starts a broker with these settings (and on this directory), for this test alone."""
    brokers = Brokers(request.config.getoption('--against'), tmp_path)
    yield brokers.start
    brokers.end()


@pytest.fixture
def broker(start_broker):
    """A broker for this test alone: it may be restarted and killed."""
    return start_broker()


@pytest.fixture(scope='module')
def shared_broker(request, tmp_path_factory):
    """One broker for all tests of a module, which use topics, groups and transactional ids of their own."""
    brokers = Brokers(request.config.getoption('--against'), tmp_path_factory.mktemp('shared'))
    yield brokers.start()
    brokers.end()
