"""Fixtures for all tests, and hooks that select, skip and distribute tests."""
import pathlib
import sys

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(pathlib.Path(__file__).parent))

pytest.register_assert_rewrite('support', 'behaviours')

# With this profile, Hypothesis does not fail an example because the machine is slow.
settings.register_profile('any machine', deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile('any machine')

from support.brokers.broker_process import PROMPT, BrokerProcess  # noqa: E402
from support.kafka.apache_kafka import KafkaProcess  # noqa: E402
from support.kafka.chain_plans import chains_left_out, chains_of_text  # noqa: E402
from support.runner import attempts, leftovers, second_runs  # noqa: E402
from support.runner.interrupts import give_children_the_default_interrupt  # noqa: E402
from support.runner.machine_requirements import check_tools  # noqa: E402
from support.runner.packages_without_wheels import SkipImports, packages_left_out  # noqa: E402
from support.runner.quick_run import is_quick  # noqa: E402
from support.runner.soak_share import left_out, sample, share_of, soak_share_of_text  # noqa: E402
from support.runner.soak_totals import KINDS, PROPERTY, add_to, counts_of  # noqa: E402

sys.meta_path.append(SkipImports(packages_left_out()))


def pytest_addoption(parser, pluginmanager):
    if not pluginmanager.has_plugin('kbroker'):     # kbroker is not installed, or not with its entry points
        from kbroker.testing import plugin
        pluginmanager.register(plugin, 'kbroker')
    parser.addoption('--against', choices=('kbroker', 'apache-kafka'), default='kbroker',
                     help='the broker that the judges meet; Apache Kafka shows whether the judges are right')
    parser.addoption('--soak-share', type=soak_share_of_text, default=1, metavar='SHARE',
                     help='the share of its work that each soak test does: a number above 0, up to 1')
    parser.addoption('--soak-seed', type=int, default=1, help='the seed of a soak: other faults, and another sample')
    parser.addoption('--soak-totals', type=pathlib.Path, metavar='PAGE',
                     help='add what the tests of a soak did to the table of this page')
    parser.addoption('--fuzz-mutations', type=int, default=300,
                     help='how many mutations of its seeds each target of the fuzzing gets, always the same ones')
    parser.addoption('--measure-attacks', type=pathlib.Path, metavar='FILE',
                     help='append what each attack costs the broker and its other clients to FILE')
    parser.addoption('--chains', type=chains_of_text, metavar='NUMBERS',
                     help='the fixed chains of programs on one directory that run: all, or numbers such as 3,17')
    parser.addoption('--quick', action='store_true',
                     help='leave out what needs a JVM, Node.js, a browser, Valgrind or strace, and what takes long')
    second_runs.add_option(parser)


def pytest_configure(config):
    is_controller = config.getoption('numprocesses', None) and not hasattr(config, 'workerinput')
    if not is_controller:  # its children are the processes that run tests
        give_children_the_default_interrupt()
    second_runs.register(config)


def pytest_runtest_setup(item):
    check_tools(item)


def pytest_runtest_protocol(item, nextitem):
    attempts.run_in_attempts(item, nextitem)
    leftovers.free(item, nextitem)
    return True


def pytest_runtest_makereport(item, call):
    attempts.note_exceeded(item, call)


def leave_out(config, items, nodeids):
    """Deselect the tests with these ids."""
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in nodeids])
    items[:] = [item for item in items if item.nodeid not in nodeids]


def pytest_collection_modifyitems(config, items):
    if config.getoption('quick'):
        leave_out(config, items, {item.nodeid for item in items if not is_quick(item)})
    leave_out(config, items, chains_left_out([item.nodeid for item in items], config.getoption('chains'),
                                             config.rootpath, config.args))
    leave_out(config, items, left_out([item.nodeid for item in items if item.get_closest_marker('soak')],
                                      config.getoption('soak_share'), config.getoption('soak_seed')))
    if hasattr(config, 'workerinput'):
        from support.runner.xdist_scheduling import priority
        items.sort(key=lambda item: priority(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Return the scheduler that distributes tests over processes (-n 2)."""
    from support.runner.xdist_scheduling import Scheduler
    return Scheduler(config, log)


class Brokers:
    """Starts broker processes, and kills them when the test ends. A traceback in the log of a broker fails the test."""

    def __init__(self, against, directory):
        self._type = KafkaProcess if against == 'apache-kafka' else BrokerProcess
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
    """A function that starts a broker for a single test, with the given settings and, if wanted, on a given directory.
    """
    brokers = Brokers(request.config.getoption('--against'), tmp_path)
    yield brokers.start
    brokers.end()


@pytest.fixture
def broker(start_broker):
    """A broker for a single test, which may restart and kill it."""
    return start_broker()


@pytest.fixture
def cluster(broker):
    """The connections of kbroker's client to the fixture `broker`, which a test file may define in another way."""
    from kbroker.client.cluster import Cluster
    from kbroker.client.config import ClientConfig
    cluster = Cluster(ClientConfig.load(broker.address))
    yield cluster
    cluster.close()


@pytest.fixture(scope='module')
def shared_broker(request, tmp_path_factory):
    """One broker for all tests of a module. Each test uses its own topics, groups and transactional ids."""
    brokers = Brokers(request.config.getoption('--against'), tmp_path_factory.mktemp('shared'))
    yield brokers.start()
    brokers.end()


@pytest.fixture(scope='module')
def secured(tmp_path_factory):
    """A broker to which clients can log in by every mechanism."""
    from support.brokers.secured_broker import SecuredBroker
    secured = SecuredBroker(tmp_path_factory.mktemp('secured'))
    yield secured
    secured.close()


@pytest.fixture(scope='module')
def proxied(tmp_path_factory):
    """(broker, proxy): the clients of the broker connect through the proxy."""
    from support.clients.late_requests import broker_behind_proxy
    with broker_behind_proxy(tmp_path_factory.mktemp('late') / 'data') as found:
        yield found


@pytest.fixture(scope='module')
def certificates(tmp_path_factory):
    """A directory with keys and certificates of an authority, servers and clients."""
    from support.clients.certificates import make_certificates
    return make_certificates(tmp_path_factory.mktemp('certificates'))


@pytest.fixture
def clock():
    """A clock that the test advances."""
    from kbroker.base.clock import ManualClock
    return ManualClock()


@pytest.fixture(scope='session')
def soak_share(request):
    return request.config.getoption('soak_share')


@pytest.fixture(scope='session')
def soak_seed(request):
    return request.config.getoption('soak_seed')


@pytest.fixture(scope='session')
def soak_minutes(soak_share):
    """The duration of a soak test in minutes."""
    return 60 * soak_share


@pytest.fixture(scope='session')
def soak_count(soak_share):
    """A function that returns the soak's share of a count, but at least `least`."""
    return lambda count, least=1: share_of(count, soak_share, least)


@pytest.fixture
def tally(record_property):
    """A function with which a test adds a count to one kind of the running totals."""
    def note(kind, count):
        assert kind in KINDS, f'{kind}: expected one of {KINDS}'
        record_property(PROPERTY, (kind, count))

    return note


def pytest_terminal_summary(terminalreporter, config):
    page = config.getoption('soak_totals')
    if page is None or hasattr(config, 'workerinput'):
        return
    reports = [report for report in terminalreporter.getreports('passed') if report.when == 'call']
    counts = counts_of(each for report in reports for each in report.user_properties)
    for kind, count in counts.items():
        terminalreporter.write_line(f'{kind}: {count:,}')
    add_to(page, counts)


@pytest.fixture(scope='session')
def soak_sample(soak_share, soak_seed):
    """A function that returns the soak's share of a list."""
    return lambda values: sample(values, soak_share, soak_seed)
