"""The processes of brokers, as the test process sees them. The keeper starts and ends them."""
from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kbroker
from kbroker.testing import keeper as keeper_program
from kbroker.testing.errors import BrokerError

START_LIMIT_S = 120.0
END_LIMIT_S = 120.0
MOST_LOG_LINES = 5
"""The most lines of the broker's log in an error."""


class Keeper:
    """The keeper process of this test process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            found = os.environ.get('PYTHONPATH')
            home = str(Path(kbroker.__file__).parents[1])
            self._process = subprocess.Popen(
                [sys.executable, '-m', keeper_program.__name__, str(theirs.fileno()), str(self.pid),
                 tempfile.gettempdir()],
                cwd='/', env={**os.environ, 'PYTHONPATH': home if not found else f'{home}{os.pathsep}{found}'},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                start_new_session=True)
        self._channel = ours

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def connect(self) -> socket.socket:
        """Return the test process's end of a new socket pair. The keeper has the other end."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._channel, [b'+'], [theirs.fileno()])
        return ours

    def close(self) -> None:
        """End the keeper and all of its brokers, and wait until their directories are removed."""
        self._channel.close()
        if self.pid == os.getpid():     # a fork only closes its copy of the channel
            self._process.wait()


_keeper: Keeper | None = None
_lock = threading.Lock()


def shared_keeper() -> Keeper:
    """Return the keeper of this process. A forked process gets a keeper of its own."""
    global _keeper
    with _lock:
        if _keeper is None or _keeper.pid != os.getpid() or not _keeper.is_running:
            _keeper = Keeper()
        return _keeper


@atexit.register
def _close_keeper() -> None:
    if _keeper is not None and _keeper.pid == os.getpid():
        _keeper.close()


class Process:
    """One broker: its directory and ports, and the process that serves them while it runs."""

    def __init__(self, spec: keeper_program.Spec):
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._number = 0
        self._pair = shared_keeper().connect()
        self._pair.settimeout(START_LIMIT_S)
        try:
            facts = self._ask('open', spec=spec, working_directory=os.getcwd())
            self.data_dir = Path(facts['data_dir'])
            self.ports: dict[str, int] = facts['ports']
            self.log_path = Path(facts['log_path'])
            self._check_running(facts)
        except BaseException:
            self._pair.close()
            raise
        self.pid: int = facts['pid']

    @property
    def is_open(self) -> bool:
        return self._pair.fileno() >= 0

    @property
    def is_running(self) -> bool:
        return self.is_open and self._ask('await', waits_for=None)['state'] == 'running'

    def start(self, arguments: Sequence[str] = ()) -> None:
        """Start the broker again, and wait until it is ready. Do nothing while it runs."""
        facts = self._ask('start', arguments=list(arguments), working_directory=os.getcwd())
        self._check_running(facts)
        self.pid = facts['pid']

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        self._ask('signal', signal=number, waits_for=None)

    def end_by(self, number: signal.Signals) -> int:
        """Send a signal to the process, and wait for its end. Return its exit code, negative for a signal."""
        return int(self._ask('signal', signal=number, waits_for='ended')['exit_code'])

    def await_end(self, timeout_s: float) -> int:
        """Wait until the process has ended. Return its exit code, negative for a signal."""
        return int(self._ask('await', timeout_s=timeout_s, waits_for='ended')['exit_code'])

    def close(self, keep_as: Path | None = None) -> None:
        """Kill the broker, release its ports, and remove its directory, or move the directory to `keep_as`.

        In a forked process, only release the descriptor. The broker belongs to the process that started it.
        """
        if not self.is_open:
            return
        try:
            if self._owner == os.getpid():
                self._ask('close', keep_as=None if keep_as is None else str(keep_as.absolute()))
        finally:
            self._pair.close()

    def log_lines(self) -> list[dict[str, Any]]:
        """Return the log of all processes of this broker. A line that is not JSON has only a message."""
        lines = []
        for line in self.log_path.read_text(errors='replace').splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            lines.append(entry if isinstance(entry, dict) else {'message': line})
        return lines

    def _check_running(self, facts: dict[str, Any]) -> None:
        if facts['state'] != 'running':
            with contextlib.suppress(OSError):
                tail = [str(line['message']) for line in self.log_lines()[-MOST_LOG_LINES:] if 'message' in line]
                raise BrokerError('the broker did not start: ' + ('\n'.join(tail) or f'exit code {facts["exit_code"]}'))

    def _ask(self, do: str, timeout_s: float = END_LIMIT_S, **fields: Any) -> dict[str, Any]:
        """Send a request to the keeper, and return its answer. Raise BrokerError."""
        if self._owner != os.getpid():
            raise BrokerError(f'this broker belongs to process {self._owner}, found process {os.getpid()}: start '
                              'another broker in a forked process')
        with self._lock:
            if not self.is_open:
                raise BrokerError('this broker is closed: start another one')
            self._number += 1
            self._pair.settimeout(timeout_s)
            try:
                self._pair.send(json.dumps({'do': do, 'number': self._number, **fields}).encode())
                while True:
                    message = self._pair.recv(keeper_program.MOST_BYTES)
                    if not message:
                        raise BrokerError('the process that keeps the brokers has ended')
                    answer: dict[str, Any] = json.loads(message)
                    if answer['number'] == self._number:    # an earlier request may have timed out
                        break
            except TimeoutError:
                raise BrokerError(f'the broker did not {do} within {timeout_s:g} s') from None
            except ConnectionError:
                raise BrokerError('the process that keeps the brokers has ended') from None
        if 'error' in answer:
            raise BrokerError(answer['error'])
        return answer
