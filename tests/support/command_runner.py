"""Runs a command of kbroker_tools as its user does: as a process, its output in a pipe."""
import importlib
import pathlib
import subprocess
import sys
import tomllib

from click.testing import CliRunner

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = {name: place.partition(':')[0]
           for name, place in tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['scripts'].items()}
"""The modules that commands start in, by their names as a user knows them."""


def run_command(name, *arguments, stdin='', timeout=60, env=None):
    """`kbroker-<name>` with these arguments, to its end: stdout, stderr, returncode."""
    return subprocess.run(command_line(name, *arguments), input=stdin, capture_output=True, text=True, timeout=timeout,
                          check=False, cwd=ROOT, env=env)


def run_in_process(name, *arguments):
    """Likewise within this process, many times as fast: for what does not depend on being a process."""
    done = CliRunner().invoke(main_of(name), list(map(str, arguments)), prog_name=f'kbroker-{name}')
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess((name, *arguments), done.exit_code, done.stdout, done.stderr)


def main_of(name):
    return importlib.import_module(f'kbroker_tools.{name.replace("-", "_")}').main


def command_line(name, *arguments):
    return [sys.executable, '-m', f'kbroker_tools.{name.replace("-", "_")}', *map(str, arguments)]


def install_programs(directory):
    """A program of each command's name, as `pip install` would put them there."""
    directory.mkdir()
    for name, module in SCRIPTS.items():
        program = directory / name
        module = 'kbroker' if name == 'kbroker' else module
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m {module} "$@"\n')
        program.chmod(0o755)
