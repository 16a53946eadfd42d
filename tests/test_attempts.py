"""A test that exceeds a bound on time runs again with new fixtures, and is judged by its best run."""
import subprocess
import sys

import pytest
from support.runner.alone import TESTS

CONFTEST = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import pytest
from support.runner import attempts

def pytest_runtest_protocol(item, nextitem):
    attempts.run_in_attempts(item, nextitem)
    return True

def pytest_runtest_makereport(item, call):
    attempts.note_exceeded(item, call)

runs = []

@pytest.fixture
def run():
    runs.append(len(runs) + 1)
    return runs[-1]
"""


@pytest.fixture
def outcome(tmp_path):
    """A function that runs the body of a test and returns the output. The body may use `run`, the number of the run."""
    def outcome(body):
        (tmp_path / 'conftest.py').write_text(CONFTEST)
        (tmp_path / 'test_it.py').write_text(
            f'from support.runner.attempts import TooSlow, assert_within\n\ndef test_it(run):\n    {body}\n')
        return subprocess.run([sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', str(tmp_path)],
                              cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    return outcome


def test_a_bound_that_is_exceeded_once_is_in_the_warnings_only(outcome):
    output = outcome('assert_within(100 if run < 3 else 0.001, 0.010)')
    assert '1 passed, 2 warnings' in output
    assert 'attempt 1 of 3: 100000.00 ms of processor time, expected at most 10 ms' in output
    assert 'attempt 2 of 3: 100000.00 ms' in output


def test_a_bound_that_is_exceeded_in_each_run_fails(outcome):
    output = outcome('assert_within(100 + run, 0.010)')
    assert '1 failed, 2 warnings' in output
    assert 'TooSlow: 103000.00 ms' in output


def test_another_failure_is_not_tried_again(outcome):
    assert '1 failed in' in outcome('assert run > 1')


def test_a_failure_after_an_attempt_that_was_too_slow_fails(outcome):
    output = outcome('assert run == 1; raise TooSlow("once")')
    assert '1 failed, 1 warning' in output
