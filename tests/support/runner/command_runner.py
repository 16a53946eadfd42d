"""Functions that run the commands of kbroker_tools, either as a process with pipes or within the test's process."""
import importlib
import pathlib
import subprocess
import sys
import tomllib

from click.testing import CliRunner

ROOT = pathlib.Path(__file__).parents[3]
SCRIPTS = {name: place.partition(':')[0]
           for name, place in tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['scripts'].items()}
"""Maps the command names that users type to the modules of their entry points."""


def run_command(name, *arguments, stdin='', timeout=180, env=None):
    """Run `kbroker-<name>` with these arguments, and wait until it ends. Return the CompletedProcess, with stdout,
    stderr and returncode.
    """
    return subprocess.run(command_line(name, *arguments), input=stdin, capture_output=True, text=True, timeout=timeout,
                          check=False, cwd=ROOT, env=env)


def run_in_process(name, *arguments):
    """Run a command within this process. This is many times faster than starting a process."""
    done = CliRunner().invoke(main_of(name), list(map(str, arguments)), prog_name=f'kbroker-{name}')
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess((name, *arguments), done.exit_code, done.stdout, done.stderr)


def run_until_idle(run, is_all):
    """Return the result of a command that ends when no record arrives for a time. `run` is called with that time in ms.

    A slow machine may need longer for the first record. The command is therefore repeated with more time until `is_all`
    accepts the result.
    """
    done = run('3000')
    return done if is_all(done.stdout) else run('60000')


def main_of(name):
    return importlib.import_module(f'kbroker_tools.commands.{name.replace("-", "_")}').main


def command_line(name, *arguments):
    return [sys.executable, '-m', f'kbroker_tools.commands.{name.replace("-", "_")}', *map(str, arguments)]


def install_programs(directory):
    """Write a program for each command into the directory, as `pip install` would."""
    directory.mkdir()
    for name, module in SCRIPTS.items():
        program = directory / name
        module = 'kbroker' if name == 'kbroker' else module
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m {module} "$@"\n')
        program.chmod(0o755)
