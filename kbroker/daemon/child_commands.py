"""Runs commands of the package as child processes, for pages that show their output.

The commands read the log directory like any other reader, and the broker does not import them. A command is started
without a shell. A few run at one time; their time and their output are bounded.
"""
from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, NamedTuple

from kbroker.base.long_work import Pause

if TYPE_CHECKING:
    from kbroker.metadata.changes import Steps
    from kbroker.network.reactor import EventHandler, Reactor

PROGRAM = 'kbroker_tools.commands.transactions'
"""The module of `kbroker-transactions`, which writes timelines, histories and reasons."""
MOST_AT_ONCE = 2
MOST_WAITING = 20
LIMIT_MS = 20_000
MOST_OUTPUT_BYTES = 8 << 20
MOST_ERROR_BYTES = 1 << 14
READ_BYTES = 1 << 16


class Outcome(NamedTuple):
    """The result of a command: its output, or the problem in words."""

    output: bytes
    problem: str | None


class ChildCommands:
    """Runs commands on the log directory of this broker."""

    def __init__(self, reactor: Reactor, directory: str):
        self._reactor = reactor
        self._directory = directory
        self._running: set[_Child] = set()
        self._waiting: deque[Pause] = deque()

    def run(self, arguments: Sequence[str]) -> Steps[Outcome]:
        """Run `kbroker-transactions --data-dir DIRECTORY ARGUMENTS...`, and return its outcome, as long work."""
        if len(self._waiting) >= MOST_WAITING:
            return Outcome(b'', f'{MOST_WAITING} commands wait already; try again later')
        while len(self._running) >= MOST_AT_ONCE:
            pause = Pause()
            self._waiting.append(pause)
            yield from pause.wait()
        child = _Child(self._reactor, command_line(self._directory, arguments))
        self._running.add(child)
        try:
            return (yield from child.outcome())
        finally:
            child.end()
            self._running.discard(child)
            if self._waiting:
                self._waiting.popleft().end()

    def close(self) -> None:
        """End the commands that run."""
        for child in list(self._running):
            child.end()


def is_installed() -> bool:
    """Return whether the program is installed: an image may have the broker alone."""
    try:
        return find_spec(PROGRAM) is not None
    except ModuleNotFoundError:
        return False


def command_line(directory: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line of a child process."""
    return [sys.executable, '-m', PROGRAM, '--data-dir', directory, *arguments]


class _Child:
    """A process whose output is read on the loop."""

    def __init__(self, reactor: Reactor, command: list[str]):
        self._reactor = reactor
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, start_new_session=True)
        self._done = Pause()
        self._problem: str | None = None
        self._is_ended = False
        self._output, self._errors = bytearray(), bytearray()
        assert self._process.stdout is not None and self._process.stderr is not None
        self._handlers: dict[int, EventHandler] = {}
        for file, into, most in ((self._process.stdout, self._output, MOST_OUTPUT_BYTES),
                                 (self._process.stderr, self._errors, MOST_ERROR_BYTES)):
            self._watch(file, into, most)
        self._timer = reactor.timers.after(LIMIT_MS, self._overdue)

    def outcome(self) -> Steps[Outcome]:
        yield from self._done.wait()
        if self._problem is not None:
            return Outcome(b'', self._problem)
        self._process.wait()        # it has closed its output, and ends
        if self._process.returncode and not self._output:
            lines = self._errors.decode('utf-8', 'replace').strip().splitlines()
            return Outcome(b'', lines[-1] if lines else f'the command ended with status {self._process.returncode}')
        return Outcome(bytes(self._output), None)

    def end(self) -> None:
        """Kill the process if it runs, and forget it."""
        if self._is_ended:
            return
        self._is_ended = True
        self._timer.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for handler in self._handlers.values():
            self._reactor.unregister(handler)
        self._handlers.clear()
        for file in (self._process.stdout, self._process.stderr):
            assert file is not None
            file.close()
        self._process.wait()
        if self._problem is None:
            self._problem = 'the broker stops'
        self._done.end()

    def _watch(self, file: IO[bytes], into: bytearray, most: int) -> None:
        fd = file.fileno()
        os.set_blocking(fd, False)
        self._handlers[fd] = self._reactor.watch(fd, lambda: self._read(fd, into, most))

    def _read(self, fd: int, into: bytearray, most: int) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        if into is self._errors:
            into += data[:most - len(into)]
        else:
            into += data
            if len(into) > most:
                self._problem = f'the output is longer than {most >> 20} MiB: use the command itself'
                self._done.end()
        if not data:
            self._reactor.unregister(self._handlers.pop(fd))
            if not self._handlers:
                self._done.end()

    def _overdue(self) -> None:
        self._problem = f'the command took more than {LIMIT_MS // 1000} s: use the command itself'
        self._done.end()
