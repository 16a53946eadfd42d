"""A failed test runs again, alone, and the result of the second run counts."""
import subprocess
import sys

import pytest
from support.runner.alone import TESTS

CONFTEST = f"""
import pathlib
import sys
sys.path.insert(0, {str(TESTS)!r})
import pytest
from support.runner import second_runs

def pytest_addoption(parser):
    second_runs.add_option(parser)

def pytest_configure(config):
    config.addinivalue_line('markers', 'soak: a long run')
    second_runs.register(config)

@pytest.fixture
def run(request):
    '''The number of this run of the test.'''
    file = pathlib.Path(__file__).with_name(f'{{request.node.name}}.runs')
    number = int(file.read_text()) + 1 if file.exists() else 1
    file.write_text(str(number))
    return number
"""


class Directory:
    """A directory of tests, which `run` runs."""

    def __init__(self, path):
        self._path = path
        (path / 'conftest.py').write_text(CONFTEST)

    def run(self, tests, *options):
        """Run these tests. Return the exit code, and the lines of the output."""
        (self._path / 'test_it.py').write_text(f'import pytest\n\n{tests}')
        done = subprocess.run([sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', '--rootdir', '.', *options],
                              cwd=self._path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines()

    def runs_of(self, name):
        return int((self._path / f'{name}.runs').read_text())


@pytest.fixture
def directory(tmp_path):
    return Directory(tmp_path)


ONCE = """
def test_once(run):
    assert run == 2, f'the machine was busy in run {run}'

def test_always(run):
    pass
"""


def part(lines, title):
    """Return the lines of the summary below a title."""
    number, = (number for number, line in enumerate(lines) if line.strip(' =') == title)
    return lines[number + 1:]


@pytest.mark.parametrize('options', [('-n', '0'), ('-n', '2'), ('-p', 'no:xdist'), ('test_it.py', '-n', '1', '-q')])
def test_a_run_succeeds_if_what_failed_passes_alone_and_lists_it(directory, options):
    code, lines = directory.run(ONCE, *options)
    assert code == 0
    assert part(lines, 'passed alone')[0] == 'test_it.py::test_once - AssertionError: the machine was busy in run 1'
    assert any(line.endswith('AssertionError: the machine was busy in run 1') for line in part(lines, 'FAILURES'))
    assert '1 failed, 1 passed' in lines[-1]
    assert (directory.runs_of('test_once'), directory.runs_of('test_always')) == (2, 1)


@pytest.mark.parametrize('processes', ['0', '2'])
def test_a_run_fails_if_a_test_fails_again(directory, processes):
    code, lines = directory.run(ONCE + 'def test_never(run):\n    assert not run, f"failure {run}"\n', '-n', processes)
    assert code == 1
    assert part(lines, 'passed alone')[0].startswith('test_it.py::test_once - ')
    again = 'test_it.py::test_never - failure: AssertionError: failure 2'
    assert part(lines, 'failed again alone')[0].startswith(again)
    assert any('failure 1' in line for line in part(lines, 'FAILURES'))


def test_a_fixture_that_fails_at_its_end_is_a_failure(directory):
    code, lines = directory.run("""
@pytest.fixture
def ending(run):
    yield
    assert run == 2, 'it does not end'

def test_it(ending):
    pass
""")
    assert code == 0
    assert part(lines, 'passed alone')[0] == 'test_it.py::test_it - teardown: AssertionError: it does not end'


def test_a_test_that_is_skipped_alone_did_not_pass(directory):
    code, lines = directory.run("""
def test_it(run):
    if run == 2:
        pytest.skip('nothing to run')
    assert False
""")
    assert code == 1
    assert part(lines, 'failed again alone')[0] == 'test_it.py::test_it - skipped: nothing to run'


def test_a_process_that_dies_alone_is_a_failure(directory):
    code, lines = directory.run("""
def test_it(run):
    if run == 2:
        import os
        os._exit(0)
    assert False
""")
    assert code == 1
    assert part(lines, 'failed again alone')[0].startswith('test_it.py::test_it - exit code 0: ')


def test_the_parameters_of_a_test_may_be_any_text(directory):
    code, _ = directory.run("""
@pytest.mark.parametrize('text', ['a b', 'a::b', "'", '[x]', 'é/'])
def test_it(text, request, tmp_path_factory):
    file = request.path.with_name(text.encode().hex())
    known = file.exists()
    file.touch()
    assert known
""")
    assert code == 0


@pytest.mark.parametrize('options', [('-x',), ('--maxfail=5',), ('--once',)])
def test_some_options_leave_out_the_second_run(directory, options):
    code, lines = directory.run(ONCE, *options)
    assert code == 1 and directory.runs_of('test_once') == 1
    assert not any('passed alone' in line for line in lines)


@pytest.mark.parametrize('tests', [
    '@pytest.mark.soak\ndef test_once(run):\n    assert run == 2\n',
    ONCE + '@pytest.mark.parametrize("number", range(10))\ndef test_wrong(number, run):\n    assert run == 2\n',
], ids=['a soak', 'many failures'])
def test_soaks_and_many_failures_are_not_run_again(directory, tests):
    code, lines = directory.run(tests)
    assert code == 1 and directory.runs_of('test_once') == 1
    assert not any('passed alone' in line for line in lines)


def test_a_file_that_cannot_be_collected_is_a_failure(directory):
    code, _ = directory.run(ONCE, '--continue-on-collection-errors', 'test_it.py', 'missing.py')
    assert code != 0
    (directory._path / 'test_broken.py').write_text('import missing_module\n')
    assert directory.run(ONCE, '--continue-on-collection-errors')[0] == 1
