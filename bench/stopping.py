"""A bench that is told to end, ends: its processes go, its directories too, and it says what it has measured so far."""
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
from collections.abc import Iterator
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GRACE_S = 20
"""How long the bench may take to end by itself. A call into a client library does not see that it should."""


class Stopped(BaseException):
    """A signal came. No Exception, so that nobody takes it for a fault of the broker that is measured."""

    def __init__(self, number: int):
        super().__init__(f'stopped by {signal.Signals(number).name}')
        self.number = number


@contextlib.contextmanager
def workplace(directory: str | None = None) -> Iterator[None]:
    """Temporary directories lie in one that is removed, in `directory` if that is given.

    SIGTERM, SIGINT and SIGHUP raise Stopped meanwhile. Behind it no child process is left and no directory; after a
    signal it ends the process, at once, since a client of a broker that is gone would wait for it. Only for the main
    thread.
    """
    work = pathlib.Path(tempfile.mkdtemp(prefix='bench-', dir=directory))
    tempfile.tempdir = str(work)
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    threading.Thread(target=_end_by_force, args=(told, work), daemon=True).start()
    for number in SIGNALS:
        signal.signal(number, _stop)
    try:
        yield
    except BaseException as error:
        stopped = _stopped_behind(error)
        if stopped is None:
            raise
        print(stopped, file=sys.stderr)
        _leave(work, stopped.number)
    finally:
        _pay_no_heed()
        _clear(work)


def _stop(number: int, _frame: object) -> NoReturn:
    _pay_no_heed()
    raise Stopped(number)


def _stopped_behind(error: BaseException | None) -> Stopped | None:
    """A client library that is called back may come out with a SystemError in place of what its callback met."""
    while error is not None and not isinstance(error, Stopped):
        error = error.__cause__ or error.__context__
    return error


def _pay_no_heed() -> None:
    """To signals while it ends."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end_by_force(told: int, work: pathlib.Path) -> None:
    """In a thread, which runs even while the main one waits in a library."""
    number = os.read(told, 1)[0]
    time.sleep(GRACE_S)
    _leave(work, number)


def _leave(work: pathlib.Path, number: int) -> NoReturn:
    _clear(work)
    sys.stdout.flush()
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
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended: another has its children
            yield from map(int, (thread / 'children').read_text().split())
