"""A broker that the run starts with a command of the operator. The run kills, pauses and restarts it."""
from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

START_LIMIT_S = 90
STOP_LIMIT_S = 30
LOOK_AGAIN_S = 0.02
LAST_LINES = 5
CLOCK_FILES = '/dev/shm/faketime_shm_{}', '/dev/shm/sem.faketime_sem_{}'
"""Files of libfaketime that remain after the process with this id was killed."""


class BrokerCommandError(Exception):
    """The broker did not start, or it ended although the run did not stop it."""


class BrokerCommand:
    """The process group of a broker. Signals go to the command and to the processes that it has started, such as a JVM
    behind a script."""

    def __init__(self, command: str, address: tuple[str, int], log: Path, environment: Mapping[str, str] | None = None,
                 sleep: Callable[[float], None] = time.sleep):
        self._command = shlex.split(command)
        self._address = address
        self._log = log
        self._environment = {**os.environ, **(environment or {})}
        self._sleep = sleep
        self._process: subprocess.Popen[bytes] | None = None
        self._was_killed = False

    def start(self) -> None:
        """Start the broker, and wait until it accepts connections. Raise BrokerCommandError or OSError if it does not
        start."""
        self._await_silence()
        with self._log.open('ab') as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                             start_new_session=True, env=self._environment)
        deadline = time.monotonic() + START_LIMIT_S
        while not self._accepts():
            self.check()
            if time.monotonic() > deadline:
                raise BrokerCommandError(f'{self._address[0]}:{self._address[1]} accepted no connection within '
                                         f'{START_LIMIT_S} s of the start of the broker command')
            self._sleep(LOOK_AGAIN_S)

    def _await_silence(self) -> None:
        """Wait until a broker that was killed no longer accepts connections.

        Raise BrokerCommandError if another server is at the address. The run would test that server instead of the
        broker, and no fault would affect it.
        """
        deadline = time.monotonic() + (STOP_LIMIT_S if self._was_killed else 0)
        while self._accepts():
            if time.monotonic() > deadline:
                raise BrokerCommandError(f'{self._address[0]}:{self._address[1]} accepts connections, expected none '
                                         'before the start of the broker command')
            self._sleep(LOOK_AGAIN_S)

    def check(self) -> None:
        """Raise BrokerCommandError if the broker has ended although the run did not stop it."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            raise BrokerCommandError(f'the broker command ended with code {code}; {self._log} ends: {self._tail()}')

    def kill(self) -> None:
        """End the processes of the broker with SIGKILL. Raise BrokerCommandError if the broker had already ended."""
        self.check()
        self._kill()

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._was_killed = True
        if self._process is not None:
            self._process.wait()
            for name in CLOCK_FILES:
                Path(name.format(self._process.pid)).unlink(missing_ok=True)
            self._process = None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop the broker cleanly. If that takes too long, use SIGKILL."""
        if self._process is None:
            return
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_LIMIT_S)
            self._process = None
        except subprocess.TimeoutExpired:
            self._kill()

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _accepts(self) -> bool:
        try:
            socket.create_connection(self._address, timeout=1).close()
        except OSError:
            return False
        return True

    def _tail(self) -> str:
        return ' | '.join(self._log.read_text('utf-8', 'replace').splitlines()[-LAST_LINES:])
