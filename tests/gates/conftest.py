"""Fixtures of the gates, and the table of their verdicts. The gates measure cases of the benches."""
import pathlib
import sys

import pytest
from support.brokers.broker_process import ROOT
from support.runner.attempts import TooSlow

import kbroker
from kbroker.wire import crc32c

sys.path.append(str(ROOT / 'bench'))

PROPERTY = 'verdict'


def pytest_collection_modifyitems(items):
    """Skip the gates on a debug build. The compiler options in a compiled module show the kind of build."""
    with open(crc32c.__file__, 'rb') as file:
        if b' -O0 ' in file.read():
            skip = pytest.mark.skip('gates: this is a debug build, the bounds are for a release build')
            for item in items:
                if 'gates' in item.path.parts:
                    item.add_marker(skip)


@pytest.fixture
def verdict(record_property):
    """Return `verdict(what, found, most=..., least=...)`, which judges a figure by its bound.

    The function adds a line to the table of the gates, and raises TooSlow if the figure exceeds its bound.
    """
    def judge(what, found, *, most=None, least=None):
        is_kept = (most is None or found <= most) and (least is None or found >= least)
        bound = f'at least {least:,}' if most is None else f'at most {most:,}'
        record_property(PROPERTY, (what, found, bound, is_kept))
        if not is_kept:
            raise TooSlow(f'{what}: found {shown(found)}, expected {bound}')

    return judge


def shown(figure):
    return f'{figure:,}' if isinstance(figure, int) else f'{figure:.3g}'


def pytest_terminal_summary(terminalreporter):
    """Print the table of verdicts if the run measures, as `make gates` does. The last attempt of each gate counts."""
    if terminalreporter.config.getoption('benchmark_disable'):
        return
    reports = [report for found in ('passed', 'failed') for report in terminalreporter.getreports(found)]
    rows = {value[0]: value for report in reports for name, value in report.user_properties if name == PROPERTY}
    if rows:
        terminalreporter.section(f'gates of {pathlib.Path(kbroker.__file__).parent}')
    for what, found, bound, is_kept in rows.values():
        terminalreporter.line(f'{what:{max(map(len, rows))}}  {shown(found):>11}  {bound:21}  '
                              f'{"kept" if is_kept else "BROKEN"}')
