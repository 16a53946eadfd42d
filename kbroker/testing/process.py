"""The processes of brokers, as the test process sees them. The keeper starts and ends them."""
from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import kbroker
from kbroker.testing import keeper as keeper_program
from kbroker.testing.errors import BrokerError

START_LIMIT_S = 120.0
END_LIMIT_S = 120.0
KIT_LISTENER, KIT_USER = 'KBROKER_TESTING', 'kbroker-testing'
PLAIN_LOGIN_MODULE = 'org.apache.kafka.common.security.plain.PlainLoginModule'
META_PROPERTIES = 'meta.properties'
CALM_LEVELS = ('debug', 'info', 'warning')
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
    """Return the keeper of this process. A forked process gets a keeper of its own. Raise BrokerError."""
    if sys.platform != 'linux':
        raise BrokerError(f'found the system {sys.platform}, expected Linux, which the broker needs. Run the tests in '
                          'a Linux container or virtual machine')
    global _keeper
    with _lock:
        if _keeper is None or _keeper.pid != os.getpid() or not _keeper.is_running:
            _keeper = Keeper()
        return _keeper


@atexit.register
def _close_keeper() -> None:
    if _keeper is not None and _keeper.pid == os.getpid():
        _keeper.close()


@dataclass(frozen=True)
class Given:
    """The arguments of a test for a broker. `Broker` documents them.

    If all listeners need a login or TLS, or if the broker has an authorizer, it gets a further listener. On that one,
    the kit logs in as a super user with a password that no one else knows.
    """

    data_dir: Path | None
    copy_of: Path | None
    settings: Mapping[str, str]
    listeners: Mapping[str, str]
    has_control: bool
    password: str = field(default_factory=partial(secrets.token_urlsafe, 18))

    @property
    def kit_listener(self) -> str:
        """The listener on which the kit asks its questions."""
        if self.settings.get('authorizer.class.name'):
            return KIT_LISTENER
        return next((name for name, protocol in self.listeners.items() if protocol == 'PLAINTEXT'), KIT_LISTENER)

    def check(self) -> None:
        """Raise BrokerError for arguments that no broker can have."""
        if self.data_dir is not None and self.copy_of is not None:
            raise BrokerError(f'found data_dir {self.data_dir} and copy_of {self.copy_of}, expected one of them')
        if self.copy_of is not None and not (self.copy_of / META_PROPERTIES).is_file():
            raise BrokerError(f'copy_of: found no {META_PROPERTIES} in {self.copy_of}, expected a log directory of '
                              'kbroker or Apache Kafka')
        if not self.listeners:
            raise BrokerError("found no listener, expected at least one, such as {'PLAINTEXT': 'PLAINTEXT'}")

    def spec(self) -> keeper_program.Spec:
        settings, listeners = dict(self.settings), dict(self.listeners)
        if self.kit_listener == KIT_LISTENER:
            listeners[KIT_LISTENER] = 'SASL_PLAINTEXT'
            prefix = f'listener.name.{KIT_LISTENER.lower()}'
            settings[f'{prefix}.sasl.enabled.mechanisms'] = 'PLAIN'
            settings[f'{prefix}.plain.sasl.jaas.config'] = (
                f'{PLAIN_LOGIN_MODULE} required user_{KIT_USER}="{self.password}";')
            others = settings.get('super.users')
            settings['super.users'] = f'{others};User:{KIT_USER}' if others else f'User:{KIT_USER}'
        return keeper_program.spec_of(
            None if self.data_dir is None else str(self.data_dir.absolute()), listeners, settings, self.has_control,
            None if self.copy_of is None else str(self.copy_of.absolute()))

    def client_settings(self) -> dict[str, object]:
        """Return the settings of the kit's clients, without the address."""
        if self.kit_listener != KIT_LISTENER:
            return {}
        return {'security.protocol': 'SASL_PLAINTEXT', 'sasl.mechanism': 'PLAIN', 'sasl.jaas.config':
                f'{PLAIN_LOGIN_MODULE} required username="{KIT_USER}" password="{self.password}";'}


open_processes: list[Process] = []
"""The brokers of this test process that are not closed, in the order of their starts."""


class Process:
    """One broker: its directory and ports, and the process that serves them while it runs."""

    def __init__(self, given: Given):
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._number = 0
        given.check()
        spec, self.client_settings = given.spec(), given.client_settings()
        self._pair = shared_keeper().connect()
        try:
            facts = self._ask('open', START_LIMIT_S, spec=spec, working_directory=os.getcwd())
            self.directory = Path(facts['directory'])
            self.data_dir = Path(facts['data_dir'])
            self.ports: dict[str, int] = facts['ports']
            self.log_path = Path(facts['log_path'])
            self._check_running(facts)
        except BaseException:
            self._pair.close()
            raise
        self.pid: int = facts['pid']
        self.client_settings['bootstrap.servers'] = f'127.0.0.1:{self.ports[given.kit_listener]}'
        open_processes.append(self)

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
        """Wait until the process has ended. Return its exit code, negative for a signal. Raise BrokerError.

        Other threads can use this object meanwhile.
        """
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if not select.select([descriptor], [], [], timeout_s)[0]:
                    raise BrokerError(f'the process {self.pid} of the broker did not end within {timeout_s:g} s')
            finally:
                os.close(descriptor)
        return int(self._ask('await', waits_for='ended')['exit_code'])

    def close(self, keep_as: Path | None = None) -> None:
        """Kill the broker, release its ports, and remove its directory, or move the directory to `keep_as`.

        In a forked process, only release the descriptor. The broker belongs to the process that started it.
        """
        if not self.is_open:
            return
        open_processes.remove(self)
        try:
            if self._owner == os.getpid():
                self._ask('close', keep_as=None if keep_as is None else str(keep_as.absolute()))
        finally:
            self._pair.close()

    def new_snapshot_directory(self) -> Path:
        """Return a path at which nothing exists. It is removed when the test process ends."""
        return self.directory.parent / f'snapshot-{secrets.token_hex(8)}'

    def log_lines(self) -> list[dict[str, Any]]:
        """Return the log of all processes of this broker. A line that is not JSON has only a message."""
        lines = []
        text = self.log_path.read_text(errors='replace') if self.log_path.exists() else ''
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            lines.append(entry if isinstance(entry, dict) else {'message': line})
        return lines

    def _check_running(self, facts: dict[str, Any]) -> None:
        if facts['state'] != 'running':
            raise BrokerError(f'the broker did not start: {self._last_words(facts)}')

    def describe_end(self) -> str:
        """Return how the process has ended, as the end of a sentence. Return nothing if it runs."""
        if not self.is_open:
            return ': this broker is closed'
        facts = self._ask('await', waits_for=None)
        if facts['state'] == 'running':
            return ''
        return f': the broker has ended with exit code {facts["exit_code"]}; call start(). {self._last_words(facts)}'

    def _last_words(self, facts: Mapping[str, Any]) -> str:
        """Return the last lines of the log that report a problem, or else the exit code."""
        lines = [str(line['message']) for line in self.log_lines() if line.get('level', 'error') not in CALM_LEVELS]
        return '\n'.join(lines[-MOST_LOG_LINES:]) or f'exit code {facts["exit_code"]}'

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
