"""Measures the fixture `kafka` of the pytest plugin: a suite of 1,000 tests, each with a fresh broker.

    python bench/fixture.py [--quick] [--tests N]

The suites are generated, and pytest runs them in a process of its own. Each test of the first two suites creates a
topic, writes a record and reads it, in one process and in two (`-n 2`). The tests of the third suite take longer than
the start of a broker, so the next broker starts while the test runs.

CPU is the user and system time of pytest, of the processes that keep the brokers, and of the brokers. **wait** is the
time for which a test waits for its fixture: the median, the 95th percentile and the maximum.
"""
from __future__ import annotations

import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import click

ROOT = pathlib.Path(__file__).parent.parent
sys.path.append(str(ROOT / 'bench'))

from results import table_of  # noqa: E402

RECORDER = '''
import json, os, time
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    start = time.perf_counter()
    result = yield
    if fixturedef.argname == 'kafka':
        with open(os.environ['WAITS'], 'a') as file:
            file.write(f'{1000 * (time.perf_counter() - start)}\\n')
    return result
'''
SHORT = '''
import pytest

@pytest.mark.parametrize('number', range({tests}))
def test_a_record_is_read(kafka, number):
    kafka.create_topic('payments')
    kafka.send('payments', b'10')
    assert kafka.values('payments') == [b'10']
'''
LONG = SHORT + '    time.sleep({length_s})\n'
LENGTH_S = 0.4
"""The time that a long test takes: longer than the start of a broker on a machine with other work."""


def run(suite: str, arguments: list[str]) -> tuple[float, float, list[float]]:
    """Run a suite. Return its seconds, the processor time of all its processes, and the waits in milliseconds."""
    with tempfile.TemporaryDirectory() as place:
        directory = pathlib.Path(place)
        (directory / 'conftest.py').write_text(RECORDER)
        (directory / 'test_suite.py').write_text(f'import time\n{suite}')
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            # Without the entry point of an installed kbroker, which would register the plugin a second time.
            [sys.executable, '-m', 'pytest', '-q', '-p', 'no:kbroker', '-p', 'kbroker.testing.plugin',
             '-p', 'no:cacheprovider', *arguments], cwd=directory, capture_output=True, text=True, check=False,
            env=os.environ | {'PYTHONPATH': str(ROOT), 'WAITS': str(directory / 'waits')})
        wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        waits = [json.loads(line) for line in (directory / 'waits').read_text().splitlines()]
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, waits


@click.command(help=__doc__)
@click.option('--quick', is_flag=True, help='Run a hundredth of the tests.')
@click.option('--tests', default=1000, type=click.IntRange(1), show_default=True)
def main(quick: bool, tests: int) -> None:
    tests = max(2, tests // 100) if quick else tests
    long = max(2, tests // 20)
    rows = []
    for name, count, suite, arguments in (
            ('one process', tests, SHORT.format(tests=tests), []),
            ('two processes', tests, SHORT.format(tests=tests), ['-n', '2']),
            (f'tests of {LENGTH_S} s', long, LONG.format(tests=long, length_s=LENGTH_S), [])):
        wall_s, cpu_s, waits = run(suite, arguments)
        waits.sort()
        rows.append([name, f'{count:,}', f'{wall_s:.1f}', f'{cpu_s:.1f}', f'{1000 * cpu_s / count:.0f}',
                     f'{statistics.median(waits):.1f}, {waits[int(0.95 * len(waits))]:.1f}, {waits[-1]:.1f}'])
    print('\n'.join(table_of(['suite', 'tests', 's', 'CPU s', 'CPU ms for a test', 'wait, ms'], rows)))


if __name__ == '__main__':
    main()
