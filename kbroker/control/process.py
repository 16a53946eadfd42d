"""The end and the pause of the broker's own process."""
from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

MOST_PAUSE_MS = 3_600_000
"""The longest pause: one hour."""
LOOK_MS = 50

WAKER = """
import os, signal, sys, time
broker, end_ns = int(sys.argv[1]), int(sys.argv[2])
while os.getppid() == broker:
    left_ns = end_ns - time.monotonic_ns()
    if left_ns <= 0:
        os.kill(broker, signal.SIGCONT)
        break
    time.sleep(min(left_ns / 1e9, LOOK_S))
os._exit(0)
""".replace('LOOK_S', str(LOOK_MS / 1000))
"""The program of a child process that wakes its parent.

A stopped process cannot wake itself. The child ends when its parent was killed meanwhile: the process id may then be
that of another process.
"""


def kill() -> None:
    """End this process at once, as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)      # the kernel ignores the signal for process 1 of a container


def can_stop() -> bool:
    """Return whether SIGSTOP stops this process. The kernel ignores it for process 1 of a container."""
    return os.getpid() != 1


def send_signal(number: int) -> None:
    """Send this process SIGKILL or SIGSTOP."""
    if number == signal.SIGKILL:
        kill()
    os.kill(os.getpid(), number)


def begin_pause(ms: int) -> Callable[[], None]:
    """Start the child that ends a pause of `ms` milliseconds. Return the function that stops this process until then.

    Raise OSError if no child can be started.
    """
    import subprocess  # slow to import, and seldom needed

    end_ns = time.monotonic_ns() + ms * 1_000_000
    child = subprocess.Popen([sys.executable, '-ISc', WAKER, str(os.getpid()), str(end_ns)], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        with contextlib.suppress(ProcessLookupError):       # another process may have woken this one before its time
            child.kill()
        child.wait()

    return stop
