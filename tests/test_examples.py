"""The examples of the man pages and of the README, as a reader would type them."""
import importlib.util
import os
import re
import shlex
import shutil
import subprocess

import pytest
from support.command_runner import ROOT, SCRIPTS, install_programs

from kbroker.main import serve


def examples_of_the_man_pages():
    specification = importlib.util.spec_from_file_location('man_examples', ROOT / 'man' / 'examples.py')
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.EXAMPLES


@pytest.fixture(scope='module')
def shell(shared_broker, tmp_path_factory):
    """A function that runs a line in a shell where the commands are, on a broker in the place of the examples' one."""
    directory = tmp_path_factory.mktemp('examples')
    install_programs(directory / 'bin')

    def run(line):
        line = line.replace('localhost:9092', shared_broker.address).replace(
            '/var/lib/kbroker', str(shared_broker.directory))
        return subprocess.run(['sh', '-e', '-c', line], capture_output=True, text=True, timeout=100, check=False,
                              cwd=directory, env=os.environ | {'PATH': f'{directory / "bin"}:{os.environ["PATH"]}'})
    return run


def can_run(line):
    """Spark needs Java."""
    return not line.startswith('kbroker-ingest') or shutil.which('java') is not None


def test_the_examples_of_the_man_pages_do_what_they_say(shell):
    """One after the other: what one makes, another shows."""
    for rows in examples_of_the_man_pages().values():
        for text, lines in rows:
            if lines.startswith('kbroker serve'):
                serve.make_context('serve', shlex.split(lines)[2:])
            else:
                if not can_run(lines):
                    continue
                done = shell(lines)
                assert done.returncode == 0, (text, lines, done.stdout, done.stderr)


def test_the_commands_of_the_readme_print_what_the_readme_says(shell):
    """What a command prints is compared where the README shows some of it."""
    session, = re.findall(r'^```console\n(.*?)^```', (ROOT / 'README.md').read_text(), re.MULTILINE | re.DOTALL)
    commands = re.findall(r'^\$ (.*)\n((?:(?!\$ ).*\n)*)', session, re.MULTILINE)
    assert {command for line, _ in commands for command in re.findall(r'kbroker-[a-z-]+', line)} == SCRIPTS.keys() - {
        'kbroker'}
    for line, expected in filter(lambda row: can_run(row[0]), commands):
        done = shell(line)
        assert done.returncode == 0, (line, done.stderr)
        assert expected in ('', done.stdout) or expected.replace('\\\n', '') == done.stdout, line
