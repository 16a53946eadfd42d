"""Adds the option --quick, and makes the reference implementations in tests/ importable."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / 'tests'))


def pytest_addoption(parser):
    parser.addoption('--quick', action='store_true', help='run everything once, to see that it works; measure nothing')


def pytest_configure(config):
    if config.getoption('--quick'):
        config.option.benchmark_disable = True
