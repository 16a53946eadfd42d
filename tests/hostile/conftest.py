"""Fixtures of the attacks; `hostile/siege.py` describes how to write an attack."""
import pathlib

import pytest
from hostile.siege import BesiegedBroker

ATTACK_LIMIT_S = 1200
"""For three attempts."""


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == pathlib.Path(__file__).parent and not item.get_closest_marker('timeout'):
            item.add_marker(pytest.mark.timeout(ATTACK_LIMIT_S))


@pytest.fixture
def besieged(request, tmp_path):
    """Yield a function that starts a broker which measures its turns. The test fails if the broker logs a
    traceback."""
    if request.config.getoption('--against') != 'kbroker':
        pytest.skip('only kbroker measures its turns')
    started = []
    file = request.config.getoption('--measure-attacks')

    def report(measurement):
        with file.open('a') as lines:
            print(measurement.line(request.node.name), file=lines)

    def start(settings=None):
        broker = BesiegedBroker(tmp_path / f'data{len(started)}', settings or {}, report if file else None)
        started.append(broker)
        broker.start()
        return broker

    yield start
    garbage = [broker.garbage() for broker in started if broker.is_running]
    for broker in started:
        broker.kill9()
    for broker in started:
        assert broker.tracebacks() == []
    assert not any(garbage), garbage
