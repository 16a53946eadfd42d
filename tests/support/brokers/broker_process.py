"""A broker in its own process, which tests start, kill and restart."""
from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Self

ROOT = pathlib.Path(__file__).parents[3]
START_LIMIT_S = 180
STOP_LIMIT_S = 180


PROMPT = {'group.initial.rebalance.delay.ms': '0', 'group.min.session.timeout.ms': '1000',
          'transaction.abort.timed.out.transaction.cleanup.interval.ms': '200',
          'group.consumer.min.heartbeat.interval.ms': '100', 'group.consumer.heartbeat.interval.ms': '300'}
"""Settings that make a broker act within a second where the defaults make it wait for several seconds."""
PROMPT_SHARES = {'group.share.heartbeat.interval.ms': '100', 'group.share.min.heartbeat.interval.ms': '100',
                 'group.share.assignment.interval.ms': '0', 'share.coordinator.state.topic.num.partitions': '1'}
"""Settings with which the broker assigns the partitions of share groups without delay, and keeps the state of all share
groups in one partition.
"""


class Process(ABC):
    """A child process that prints a certain line when it is ready. `lines` has its output.

    A `with` block starts the process, kills it at its end, and asserts that the output has no traceback.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()
        self._has_said_ready = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.kill9()
        assert kind is not None or self.tracebacks() == []

    @abstractmethod
    def start(self) -> None:
        """Start the process and wait until it is ready."""

    def tracebacks(self) -> list[str]:
        """Return the tracebacks in the output."""
        return []

    def launch(self, arguments: list[str]) -> None:
        """Start the process and wait until it is ready. Raise AssertionError with its output if it does not become
        ready.
        """
        self._ready.clear()
        self._has_said_ready = False
        self._process = subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        self._ready.wait(START_LIMIT_S)
        if not self._has_said_ready:
            self.kill9()
            raise AssertionError('the process did not become ready:\n' + ''.join(self.lines[-50:]))

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line)
            if self.is_ready_line(line):
                self._has_said_ready = True
                self._ready.set()
        self._ready.set()

    @abstractmethod
    def is_ready_line(self, line: str) -> bool:
        """Return whether this line of the output says that the process is ready."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill9(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._wait()

    def end_by(self, number: signal.Signals) -> int:
        """Send a signal, and wait until it has ended the process. Return the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._wait()

    def _wait(self) -> int:
        assert self._process is not None and self._reader is not None
        try:
            code = self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError('the process did not stop:\n' + ''.join(self.lines[-50:])) from None
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code


@contextmanager
def killed_at_the_end(*processes: Process) -> Iterator[None]:
    """Kill those of these processes that still run at the end of the `with` block. The block starts and stops them."""
    try:
        yield
    finally:
        for process in processes:
            process.kill9()


class BrokerProcess(Process):
    """A kbroker process on a free port of 127.0.0.1. The port stays the same across restarts."""

    def __init__(self, directory: pathlib.Path, settings: Mapping[str, str] | None = None):
        super().__init__()
        self.directory = directory
        self.settings = dict(settings or {})
        self.address = '127.0.0.1:0'

    def start(self) -> None:
        arguments = [sys.executable, '-m', 'kbroker', 'serve', '--log-json', '--listen', self.address,
                     '--data-dir', str(self.directory)]
        for name, value in self.settings.items():
            arguments += ['--set', f'{name}={value}']
        self.launch(arguments)

    def is_ready_line(self, line: str) -> bool:
        entry = self._entry(line)
        if entry.get('event') != 'ready':
            return False
        self.address = entry['address']
        return True

    def stop(self) -> None:
        """Shut down cleanly."""
        code = self.end_by(signal.SIGTERM)
        assert code == 0, f'exit code {code}:\n' + ''.join(self.lines[-50:])

    def restart(self) -> None:
        self.stop()
        self.start()

    def tracebacks(self) -> list[str]:
        """Return the tracebacks in the broker's output."""
        return [entry['traceback'] for entry in map(self._entry, self.lines) if 'traceback' in entry]

    @staticmethod
    def _entry(line: str) -> dict[str, str]:
        try:
            entry = json.loads(line)
        except ValueError:
            return {'traceback': line} if line.startswith(('Traceback', 'Fatal Python error')) else {}
        return entry if isinstance(entry, dict) else {}
