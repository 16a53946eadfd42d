"""Runs each failed test a second time, alone, after all tests have ended.

A run in several processes on a busy machine makes some tests wait too long for a program, a disk or a port. Such a test
passes on a quiet machine. Each test that fails therefore runs again in a separate process. The run fails if one of
these tests fails again. Otherwise it succeeds, and its summary lists each test that passed alone, with its first
failure. The reports of all first failures remain in the output.

The module `attempts` repeats measurements of processor time within the run, and reports only the last attempt. If all
attempts are too slow, the test fails, and this module runs it again.
"""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections.abc import Iterator
from typing import Any

import pytest

MOST = 10
"""The number of failures above which no test is repeated: so many failures come from the code, and repeating them would
take long.
"""
LONGEST_LINE = 160


def add_option(parser: pytest.Parser) -> None:
    """Declare --once."""
    parser.addoption('--once', action='store_true', help='do not run a test that fails again')


def register(config: pytest.Config) -> None:
    """Make the run repeat failed tests. With xdist, the controlling process repeats them. No test is repeated with
    --once, with -x or another bound on failures, or with a debugger.
    """
    if not (hasattr(config, 'workerinput') or config.option.once or config.option.maxfail or config.option.usepdb):
        config.pluginmanager.register(SecondRuns(config), 'second-runs')


class SecondRuns:
    """The failures of a run, and the results of their second runs."""

    def __init__(self, config: pytest.Config):
        self._config = config
        self._failures: dict[str, str] = {}
        """Maps each failed test's id to its first failure in one line."""
        self._is_repeatable = True
        """True if each failure is one of a test, and none of these tests is a soak."""
        self._passed: list[str] = []
        self._failed: dict[str, str] = {}
        """Maps the ids of the tests that failed again to the failure of the second run."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failures.setdefault(report.nodeid, line_of(report))
            self._is_repeatable &= 'soak' not in report.keywords

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._is_repeatable &= not report.failed

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Run the failed tests again. Pytest calls this when all processes of xdist have ended."""
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not self._is_repeatable or len(self._failures) > MOST:
            return
        reporter = self._config.pluginmanager.get_plugin('terminalreporter')
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(f'{len(self._failures)} failed, and run again alone')
        for nodeid in self._failures:
            failure = self._run_alone(nodeid)
            if failure is None:
                self._passed.append(nodeid)
            else:
                self._failed[nodeid] = failure
        if not self._failed:
            session.exitstatus = pytest.ExitCode.OK

    def _run_alone(self, nodeid: str) -> str | None:
        """Run a test in a new process, with the options of this run. Return its failure, or None if it passed."""
        given = self._config.invocation_params
        chosen = set(self._config.option.file_or_dir)
        options = [option for option in map(os.fspath, given.args) if option not in chosen]
        with tempfile.TemporaryDirectory() as directory:
            results = f'{directory}/results.xml'
            command = [sys.executable, *(['-P'] if sys.flags.safe_path else []), '-m', 'pytest', *options,
                       *(['-n', '0'] if hasattr(self._config.option, 'numprocesses') else []), '--once',
                       '-o', f'cache_dir={directory}/cache', f'--junit-xml={results}',
                       str(self._config.rootpath / nodeid)]
            done = subprocess.run(command, cwd=given.dir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors='replace', check=False)
            return failure_in(results, done)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Iterator[None]:
        """Write the tests that passed alone, and those that failed again, at the end of the summary."""
        yield
        if self._passed:
            terminalreporter.section('passed alone')
            for nodeid in self._passed:
                terminalreporter.write_line(f'{nodeid} - {self._failures[nodeid]}')
        if self._failed:
            terminalreporter.section('failed again alone')
            for nodeid, failure in self._failed.items():
                terminalreporter.write_line(f'{nodeid} - {failure}')


def line_of(report: pytest.TestReport) -> str:
    """Return a failure in one line: the place and the first line of the error."""
    crash = getattr(report.longrepr, 'reprcrash', None)
    text = crash.message if crash is not None else str(report.longrepr)
    part = '' if report.when == 'call' else f'{report.when}: '
    return shortened(part + next((line for line in text.splitlines() if line.strip()), 'no text'))


def failure_in(results: str, done: subprocess.CompletedProcess[str]) -> str | None:
    """Return the failure of a second run in one line, or None if the test ran and passed."""
    try:
        root = xml.etree.ElementTree.parse(results).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        return shortened(f'exit code {done.returncode}: ' + ' '.join(done.stdout.split()[-30:]))
    for kind in ('failure', 'error', 'skipped'):
        if (found := root.find(f'.//{kind}')) is not None:
            lines = found.get('message', '').splitlines()
            return shortened(f'{kind}: {lines[0] if lines else "no text"}')
    if done.returncode == 0 and len(root.findall('.//testcase')) == 1:
        return None
    return f'exit code {done.returncode}, expected 0 and one test'


def shortened(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE - 3] + '...'
