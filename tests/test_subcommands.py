"""`kbroker topics` runs `kbroker-topics`, and `kbroker --help` lists the programs without running them."""
import os
import re
import subprocess

import pytest
from click.testing import CliRunner
from support.runner.command_runner import ROOT, SCRIPTS, install_programs, main_of

from kbroker.daemon import subcommands
from kbroker.daemon.main import main

NAMES = [name.removeprefix('kbroker-') for name in SCRIPTS if name != 'kbroker']


@pytest.fixture(scope='module')
def programs(tmp_path_factory):
    """The directory of the installed programs."""
    directory = tmp_path_factory.mktemp('programs') / 'bin'
    install_programs(directory)
    return directory


def run(programs, *arguments, **variables):
    return subprocess.run([programs / 'kbroker', *arguments], capture_output=True, text=True, timeout=180, check=False,
                          cwd=ROOT, env=os.environ | {'PATH': f'{programs}:{os.environ["PATH"]}'} | variables)


def test_the_help_lists_every_program_with_its_own_summary(programs):
    texts = dict(subcommands.summaries())
    assert texts.keys() >= set(NAMES), 'kbroker/daemon/subcommands.py lacks a program'
    for name in NAMES:
        text = texts[name]
        first = ' '.join(main_of(name).help.split('\n\n')[0].split())
        assert text == re.split(r'\.(?: |$)|: ', first)[0] + '.', name
    shown = run(programs, '--help').stdout
    assert all(re.search(rf'^  {name} ', shown, re.MULTILINE) for name in [*NAMES, 'serve', 'status'])


def test_a_subcommand_is_the_program_with_its_arguments_and_its_exit_status(programs, tmp_path):
    done = run(programs, 'topics', '--list', '--data-dir', str(tmp_path))
    assert done.returncode == 1 and done.stderr.startswith('kbroker-topics: ') and done.stderr.count('\n') == 1
    done = run(programs, 'topics', '--lst')
    assert done.returncode == 2 and "Try 'kbroker-topics --help'" in done.stderr
    assert run(programs, 'dump-log', '--', '--a-file').stdout == 'Dumping --a-file\n'
    assert run(programs, 'transactions', '--help').stdout.startswith('Usage: kbroker-transactions [OPTIONS] COMMAND')


def test_an_unknown_subcommand_gets_a_suggestion():
    done = CliRunner().invoke(main, ['topic'], prog_name='kbroker')
    assert done.exit_code == 2 and "No such command 'topic'. Did you mean topics?" in done.stderr
    assert 'Did you mean serve?' in CliRunner().invoke(main, ['server'], prog_name='kbroker').stderr


def test_a_program_that_is_not_installed_is_named_and_not_listed(monkeypatch):
    monkeypatch.setattr(subcommands, 'path_of', lambda name: None)
    done = CliRunner().invoke(main, ['topics', '--list'], prog_name='kbroker')
    assert done.exit_code == 2 and 'found no program kbroker-topics' in done.stderr
    assert 'topics ' not in CliRunner().invoke(main, ['--help'], prog_name='kbroker').stdout


@pytest.mark.parametrize(('words', 'found'), [
    ('kbroker top', 'plain,topics'), ('kbroker serv', 'plain,serve'), ('kbroker topics --lis', 'plain,--list'),
    ('kbroker transactions --bootstrap-server a:1 descr', 'plain,describe')])
def test_a_shell_completes_programs_and_their_options(programs, words, found):
    done = run(programs, _KBROKER_COMPLETE='bash_complete', COMP_WORDS=words, COMP_CWORD=str(words.count(' ')))
    assert done.stdout.splitlines()[:1] == [found], done
