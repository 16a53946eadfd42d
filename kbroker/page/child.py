"""Commands that run as child processes. The loop of the caller reads their output, and stays free meanwhile.

A command starts without a shell, in a process group of its own. Its time and its output are bounded. In the end its
group is killed. If the caller is killed, the command ends with it (`with_parent`). It gets less of the processor than
the broker, and is the first that the kernel ends if memory lacks.
"""
from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kbroker.base.clock import Timers
from kbroker.base.long_work import Pause
from kbroker.base.words import words_for_bytes

MOST_RUNNING = 2
MOST_WAITING = 20
LIMIT_MS = 20_000
MOST_BYTES = 8 << 20
"""The most bytes that a command may write to each of its two outputs."""
READ_BYTES = 1 << 16
NICENESS = 10
FIRST_FOR_OOM_KILLER = '1000'
STOPS = 'the server stops'
COLUMNS = '110'
"""The width of the output in columns."""
PACKAGES = str(Path(__file__).parents[2])
"""The directory with the packages: a child process does not look for them in the working directory."""


class TooManyCommandsError(Exception):
    """Raised for a command if `MOST_WAITING` others wait already."""


class Watching(Protocol):
    """The part of a reactor that reports readable descriptors."""

    def watch(self, fd: int, callback: Callable[[], Any], /) -> Any:
        """Call `callback` while `fd` is readable. Return a handle for `unregister`."""

    def unregister(self, handler: Any, /) -> None:
        """Stop the calls."""


class Result(NamedTuple):
    """The result of a command."""

    status: int
    output: bytes
    errors: str
    """The text that the command wrote to stderr."""
    problem: str | None
    """The bound that the command exceeded, if it was ended for that."""


class Commands:
    """Runs commands, at most `MOST_RUNNING` at a time. Further ones wait."""

    def __init__(self, reactor: Watching, timers: Timers, *, limit_ms: int = LIMIT_MS, most_bytes: int = MOST_BYTES):
        self._reactor = reactor
        self._timers = timers
        self._limit_ms = limit_ms
        self._most_bytes = most_bytes
        self._running: set[Child] = set()
        self._waiting: deque[Pause] = deque()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._running)

    def run(self, arguments: Sequence[str]) -> Generator[object, None, Result]:
        """Run a Python module with arguments, and return its result. Yield while it waits or runs.

        Raise TooManyCommandsError if too many commands wait, and OSError if this one cannot start.
        """
        if len(self._running) >= MOST_RUNNING and len(self._waiting) >= MOST_WAITING:
            raise TooManyCommandsError
        while len(self._running) >= MOST_RUNNING:
            turn = Pause()
            self._waiting.append(turn)
            yield from turn.wait()
        if self._is_closed:
            return Result(0, b'', '', STOPS)
        try:
            child = Child(self._reactor, [sys.executable, '-P', '-m', 'kbroker.page.with_parent', str(os.getpid()),
                                          *arguments], self._most_bytes)
        except OSError:
            self._begin_next()
            raise
        self._running.add(child)
        seconds = self._limit_ms / 1000
        timer = self._timers.after(self._limit_ms, lambda: child.end(f'it took longer than {seconds:g} s'))
        try:
            yield from child.ended.wait()
        finally:
            timer.cancel()
            child.end('its page is not needed any more')
            self._running.discard(child)
            self._begin_next()
        return child.result()

    def _begin_next(self) -> None:
        if self._waiting:
            self._waiting.popleft().end()

    def close(self) -> None:
        """End all commands. Those that wait do not begin."""
        self._is_closed = True
        for child in list(self._running):
            child.end(STOPS)
        while self._waiting:
            self._begin_next()


def environment() -> dict[str, str]:
    """Return the environment of a child process, which imports the same packages as this process."""
    path = os.pathsep.join(filter(None, (PACKAGES, os.environ.get('PYTHONPATH'))))
    return {**os.environ, 'PYTHONPATH': path, 'COLUMNS': COLUMNS, 'NO_COLOR': '1', 'PYTHONIOENCODING': 'utf-8'}


class Child:
    """A child process. `ended` is over when it has ended, or has been ended."""

    def __init__(self, reactor: Watching, command: Sequence[str], most_bytes: int):
        self._reactor = reactor
        self._most_bytes = most_bytes
        self._problem: str | None = None
        self.ended = Pause()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
            env=environment(), bufsize=0)
        self._yield_resources()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._output, self._errors = bytearray(), bytearray()
        self._handlers: dict[int, Any] = {}
        for stream, written in (self._process.stdout, self._output), (self._process.stderr, self._errors):
            os.set_blocking(stream.fileno(), False)
            self._handlers[stream.fileno()] = reactor.watch(stream.fileno(), partial(self._read, stream.fileno(),
                                                                                     written))

    def _yield_resources(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)
        with suppress(OSError):     # without /proc
            Path(f'/proc/{self._process.pid}/oom_score_adj').write_text(FIRST_FOR_OOM_KILLER)

    def _read(self, fd: int, written: bytearray) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        written += data
        if not data:
            self._reactor.unregister(self._handlers.pop(fd))
            if not self._handlers:
                self.end()
        elif len(written) > self._most_bytes:
            self.end(f'it wrote more than {words_for_bytes(self._most_bytes)}')

    def end(self, problem: str | None = None) -> None:
        """Kill the process and its group, unless it has ended. `problem` says why."""
        if self.ended.is_over:
            return
        self._problem = problem
        for handler in self._handlers.values():
            self._reactor.unregister(handler)
        self._handlers.clear()
        # The group exists until its leader is waited for, so its id belongs to no other group.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in self._process.stdout, self._process.stderr:
            assert stream is not None
            stream.close()
        self.ended.end()

    def result(self) -> Result:
        """Return the result. The process has ended."""
        return Result(self._process.returncode, bytes(self._output), self._errors.decode('utf-8', 'replace'),
                      self._problem)
