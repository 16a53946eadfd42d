"""Measures how long a new user waits for kbroker: `build/packaging/venv/bin/python packaging/install_times.py dist`.

The program makes a package index of the wheel in `dist` and of the wheels of its dependencies, and serves it on this
machine, so the figures contain no network. Then it types what a user types. A new user has no caches (cold). The same
user removes what was installed, and types it again (warm). The last row is a broker that is already installed: cold is
its first start, which writes the bytecode.

The table has wall-clock seconds and CPU seconds. A busy machine changes the wall-clock seconds more. The last line has
the size of what is installed.

The wheel has to be one for the version of Python that runs this program.
"""
from __future__ import annotations

import functools
import http.server
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

PYTHON = str(pathlib.Path(sys.base_exec_prefix) / 'bin' / 'python3')
SERVE = 'kbroker serve --listen 127.0.0.1:0'
VARIABLES = ('LANG', 'LC_ALL', 'SSL_CERT_FILE', 'TMPDIR')
"""The variables that a user keeps. Others can lead to another index or to a cache."""


INSTALL = 'uv tool install kbroker'
COMMANDS = {
    'uvx kbroker --version': 'true',
    f'uvx {SERVE}': 'true',
    f'{INSTALL} && kbroker --version': 'uv tool uninstall kbroker',
    f'{INSTALL} && {SERVE}': 'uv tool uninstall kbroker',
    f'pipx install kbroker && {SERVE}': 'pipx uninstall kbroker',
    f'{PYTHON} -m venv venv && venv/bin/pip install kbroker && venv/bin/{SERVE}': 'rm -r venv',
}
"""Maps what a user types to the command that undoes it."""


class Cost(NamedTuple):
    wall_s: float
    cpu_s: float


class User:
    """A user with a home directory, and so with caches, of their own."""

    def __init__(self, home: pathlib.Path, programs: pathlib.Path, index: str):
        home.mkdir()
        self.home = home
        self._variables = {name: os.environ[name] for name in VARIABLES if name in os.environ} | {
            'HOME': str(home), 'PATH': f'{home}/.local/bin:{programs}:/usr/local/bin:/usr/bin:/bin',
            'UV_DEFAULT_INDEX': index, 'UV_PYTHON': PYTHON, 'UV_PYTHON_DOWNLOADS': 'never',
            'PIP_INDEX_URL': index, 'PIP_DISABLE_PIP_VERSION_CHECK': '1', 'PIPX_DEFAULT_PYTHON': PYTHON}

    def type(self, command: str) -> Cost:
        """Type a command, and return its cost. The time of a broker ends when it is ready; Ctrl-C then stops it."""
        shutil.rmtree(self.home / 'data', ignore_errors=True)
        printed, ready_s, began = [], None, time.monotonic()
        shell = subprocess.Popen(['bash', '-c', command], cwd=self.home, env=self._variables, text=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 start_new_session=True)
        assert shell.stdout is not None
        for line in shell.stdout:
            printed.append(line)
            if 'ready on ' in line:
                ready_s = time.monotonic() - began
                os.killpg(shell.pid, signal.SIGINT)
        _, status, usage = os.wait4(shell.pid, 0)
        shell.returncode = os.waitstatus_to_exitcode(status)
        if ready_s is None and (shell.returncode != 0 or SERVE in command):
            sys.exit(f'{command}: found exit status {shell.returncode}, expected '
                     f'{"a broker that is ready" if SERVE in command else 0}. It printed:\n{"".join(printed)}')
        return Cost(ready_s or time.monotonic() - began, usage.ru_utime + usage.ru_stime)


def make_index(root: pathlib.Path, wheels: pathlib.Path) -> None:
    """Fill `root` with a package index (PEP 503): the wheel of kbroker, and the wheels of its dependencies."""
    wheel, = wheels.glob('kbroker-*.whl')
    with tempfile.TemporaryDirectory() as fetched:
        subprocess.run([sys.executable, '-m', 'pip', 'download', '--quiet', '--disable-pip-version-check',
                        '--only-binary', ':all:', '--dest', fetched, str(wheel)], check=True)
        for path in pathlib.Path(fetched).iterdir():
            project = root / re.sub(r'[-_.]+', '-', path.name.partition('-')[0]).lower()
            project.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, project / path.name)


class IndexHandler(http.server.SimpleHTTPRequestHandler):
    """A server of directories. The list of a directory is a valid page of an index."""

    protocol_version = 'HTTP/1.1'

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def served(root: pathlib.Path) -> Iterator[str]:
    """Serve the index, and return its address."""
    handler = functools.partial(IndexHandler, directory=str(root))
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


def fetch_programs(directory: pathlib.Path) -> pathlib.Path:
    """Install uv and pipx, which a user has already, and return the directory of these programs."""
    subprocess.run([PYTHON, '-m', 'venv', str(directory)], check=True)
    subprocess.run([directory / 'bin' / 'pip', 'install', '--quiet', '--disable-pip-version-check', 'uv', 'pipx'],
                   check=True)
    programs = directory / 'programs'
    programs.mkdir()
    for name in ('uv', 'uvx', 'pipx'):
        (programs / name).symlink_to(directory / 'bin' / name)
    return programs


def print_row(command: str, cold: Cost, warm: Cost) -> None:
    shown = command.replace(PYTHON, 'python3').replace(SERVE, 'kbroker serve')
    print(f'| `{shown}` | {cold.wall_s:.1f} | {cold.cpu_s:.1f} | {warm.wall_s:.1f} | {warm.cpu_s:.1f} |', flush=True)


def sizes_mb(site_packages: pathlib.Path) -> dict[str, float]:
    """Return the size of each package that is installed there, the largest first."""
    sizes = {entry.name: sum(path.stat().st_size for path in (entry, *entry.rglob('*')) if path.is_file()) / 1e6
             for entry in site_packages.iterdir()}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def main(wheels: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        make_index(root / 'index', pathlib.Path(wheels))
        programs = fetch_programs(root / 'programs')
        print('| typed | cold, s | cold, CPU s | warm, s | warm, CPU s |\n|---|--:|--:|--:|--:|')
        with served(root / 'index') as index:
            for number, (command, undo) in enumerate(COMMANDS.items()):
                user = User(root / f'user-{number}', programs, index)
                cold = user.type(command)
                user.type(undo)
                print_row(command, cold, user.type(command))
            user = User(root / 'user', programs, index)
            user.type(INSTALL)
            site_packages, = user.home.glob('.local/share/uv/tools/kbroker/lib/*/site-packages')
            sizes = sizes_mb(site_packages)
            print_row(SERVE, user.type(SERVE), user.type(SERVE))
        largest = ', '.join(f'{name} {mb:.1f}' for name, mb in list(sizes.items())[:9])
        print(f'\n{sum(sizes.values()):.1f} MB are installed: {largest}')


if __name__ == '__main__':
    main(*sys.argv[1:])
