"""Test suites of users: files that pytest runs in a process of its own, with the plugin of the kit."""
from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import textwrap
import tomllib

from support.runner.pages import ROOT, text_of

LIMIT_S = 180
CONFTEST = '''
def pytest_addoption(parser, pluginmanager):
    if not pluginmanager.has_plugin('kbroker'):
        from kbroker.testing import plugin
        pluginmanager.register(plugin, 'kbroker')
'''
"""Loads the plugin where kbroker is not installed. An installed kbroker has an entry point."""


class Suite:
    """A directory with one test file. Its brokers have their temporary directories in `temporary`."""

    def __init__(self, directory: pathlib.Path, text: str):
        self.directory = directory
        (directory / 'test_suite.py').write_text(textwrap.dedent(text))
        (directory / 'conftest.py').write_text(CONFTEST)
        (directory / 'pytest.ini').write_text('[pytest]\n')
        self.site = directory / 'site'
        self.temporary = directory / 'temporary'
        self.temporary.mkdir()

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, '-m', 'pytest', '-rA', '-p', 'no:cacheprovider', *arguments]

    def install(self) -> None:
        """Let the suite see kbroker as an installed package. Its start file is imported when Python starts."""
        metadata = self.site / 'kbroker-1.0.dist-info'
        metadata.mkdir(parents=True)
        (metadata / 'METADATA').write_text('Metadata-Version: 2.1\nName: kbroker\nVersion: 1.0\n')
        points = tomllib.loads(text_of('pyproject.toml'))['project']['entry-points']['pytest11']
        (metadata / 'entry_points.txt').write_text('\n'.join(['[pytest11]', *map(' = '.join, points.items())]))
        (metadata / 'RECORD').write_text('kbroker/__init__.py,,\nkbroker_tools/__init__.py,,\n')
        (self.site / 'sitecustomize.py').write_text(text_of('kbroker_tools/spark/autoload/kbroker_spark.pth'))

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {'PYTHONPATH': f'{self.site}{os.pathsep}{ROOT}', 'TMPDIR': str(self.temporary)}

    def run(self, *arguments: str) -> Run:
        done = subprocess.run(self.command(*arguments), cwd=self.directory, env=self.environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False)
        return Run(done.stdout, done.returncode)


class Run:
    """The output of a suite."""

    def __init__(self, output: str, code: int):
        self.output, self.code = output, code

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome of each test, of the lines that pytest prints at the end."""
        return {name: outcome for outcome, name in re.findall(
            r'^(PASSED|FAILED|ERROR|SKIPPED) test_suite\.py::(\S+)', self.output, re.MULTILINE)}
