"""Commands of kbroker that run as another user of the machine.

Only root can become another user. Without root, the commands run as the user of the tests.
"""
from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

IS_ROOT = os.geteuid() == 0
USER_ID = 10001 if IS_ROOT else os.geteuid()
GROUP_ID = 10001 if IS_ROOT else os.getegid()

COMMANDS = {'kbroker': 'kbroker.daemon.main', 'kbroker-check': 'kbroker_tools.commands.check',
            'kbroker-topics': 'kbroker_tools.commands.topics', 'kbroker-groups': 'kbroker_tools.commands.groups',
            'kbroker-transactions': 'kbroker_tools.commands.transactions',
            'kbroker-acls': 'kbroker_tools.commands.acls'}

PROGRAM = """
import importlib, json, os, pwd, shlex, signal, socket, sys, traceback
user_id, group_id, modules = json.loads(sys.argv[1])
# Imported as root: the user may have no right to read the interpreter's library.
for name in [*modules.values(), 'kbroker.base.os_errors', 'kbroker.daemon.broker', 'kbroker.daemon.hand_over',
             'kbroker.daemon.status', 'kbroker.metadata.added_scram', 'kbroker.metadata.offline',
             'kbroker.network.listen_errors', 'kbroker.network.tls_contexts', 'kbroker_tools.cluster.directory_view',
             'kbroker_tools.check.directory_check', 'concurrent.futures.process']:
    importlib.import_module(name)
from kbroker.apis.serving.served import served_apis
served_apis()
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(group_id)
    os.setuid(user_id)
for line in sys.stdin:
    command, *arguments = json.loads(line)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        sys.argv = [command, *arguments]
        try:
            importlib.import_module(modules[command]).main(prog_name=command)
            status = 0
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
            status = 99
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    os.close(writing)
    with open(reading) as output:
        text = output.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([status, text]), flush=True)
"""


class Ended(NamedTuple):
    """The exit status of a command, and the lines that it printed to both outputs."""

    status: int
    lines: list[str]


class OtherUser:
    """A process of another user. It imports the commands once, and runs each of them in a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, '-c', PROGRAM, json.dumps([USER_ID, GROUP_ID, COMMANDS])], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, cwd=pathlib.Path(__file__).parents[3])

    def run(self, command: str, *arguments: object) -> Ended:
        """Run a command to its end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([command, *map(str, arguments)]), file=self._process.stdin, flush=True)
        status, text = json.loads(self._process.stdout.readline())
        return Ended(status, text.splitlines())

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@contextlib.contextmanager
def directory_for_all() -> Iterator[pathlib.Path]:
    """Create a directory that the other user can enter, and remove it at the end of the `with` block.

    `tmp_path` is closed to other users.
    """
    path = pathlib.Path(tempfile.mkdtemp(prefix='kbroker-'))
    path.chmod(0o755)
    try:
        yield path
    finally:
        for place in path.rglob('*'):
            if place.is_dir() and not place.is_symlink():
                place.chmod(0o700)
        shutil.rmtree(path)


def give_to_other_user(path: pathlib.Path) -> None:
    """Make the other user the owner of a file, or of a directory with everything in it."""
    if IS_ROOT:
        for place in (path, *path.rglob('*')):
            os.chown(place, USER_ID, GROUP_ID)
