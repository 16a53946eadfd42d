"""Stops a bench on a signal: prints its results so far, and removes its processes and directories."""
from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GRACE_S = 5
"""The seconds that the main thread has for ending the bench. A call into a client library may prevent it: one call
blocks for a minute."""


class Stopped(BaseException):
    """Raised if a signal arrives. It is not an Exception, so that it is not mistaken for a fault of the measured
    broker."""

    def __init__(self, number: int):
        super().__init__(f'stopped by {signal.Signals(number).name}')
        self.number = number


class Report:
    """The results of a bench. The thread that ends the bench prints them, and they are printed only once."""

    def __init__(self, text: Callable[[], str]):
        self._text = text
        self._lock = threading.Lock()
        self._is_printed = False

    def print(self) -> None:
        with self._lock:
            if not self._is_printed:
                sys.stdout.write(self._text())
                sys.stdout.flush()
                self._is_printed = True


@contextlib.contextmanager
def workplace(directory: str | None = None, report: Callable[[], str] = str) -> Iterator[None]:
    """Create a directory, under `directory` if given, in which all temporary directories are created. Remove it at the
    end.

    During the block, SIGTERM, SIGINT and SIGHUP raise Stopped. However the bench ends, the text that `report` returns
    is printed, and no child process and no directory remains. After a signal the process exits at once, because a
    client would wait for its stopped broker. Only the main thread may call this; another thread may call `report`.
    """
    work = pathlib.Path(tempfile.mkdtemp(prefix='bench-', dir=directory))
    tempfile.tempdir = str(work)
    signalled, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    results = Report(report)
    threading.Thread(target=_end_after_grace, args=(signalled, work, results), daemon=True).start()
    arrived: list[Stopped] = []

    def stop(number: int, _frame: object) -> NoReturn:
        _ignore_signals()
        arrived.append(Stopped(number))
        raise arrived[0]

    for number in SIGNALS:
        signal.signal(number, stop)
    try:
        yield
    finally:
        # `except Stopped` is not enough: a callback or a destructor may have dropped the exception, or a library may
        # have raised a different one.
        _ignore_signals()
        if arrived:
            _leave(work, results, arrived[0].number)
        try:
            results.print()
        finally:
            _clear(work)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end_after_grace(signalled: int, work: pathlib.Path, results: Report) -> None:
    """Wait for a signal, and end the process GRACE_S later. This runs in a thread, so it works while the main thread
    blocks."""
    number = os.read(signalled, 1)[0]
    time.sleep(GRACE_S)     # the main thread ends the process before, unless a library holds it
    _leave(work, results, number)


def _leave(work: pathlib.Path, results: Report, number: int) -> NoReturn:
    try:
        print(Stopped(number), file=sys.stderr, flush=True)
        results.print()
    except BaseException:
        traceback.print_exc()
    finally:
        _clear(work)
        sys.stderr.flush()
        os._exit(128 + number)


def _clear(work: pathlib.Path) -> None:
    for pid in list(_children()):
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    shutil.rmtree(work, ignore_errors=True)


def _children() -> Iterator[int]:
    for thread in pathlib.Path('/proc/self/task').iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended, and its id may be reused
            yield from map(int, (thread / 'children').read_text().split())
