"""The watch on a clean stop. It logs progress, asks the service manager for more time, and ends a stop that hangs.

A stop takes longer if there are more partitions or more bytes that are not on the disk. So its time has no fixed bound.
If a stop makes no progress, the watch ends the process, which is as safe as a crash.
"""
from __future__ import annotations

import logging
import os
import signal
import threading
import time

from kbroker.daemon import systemd

REPORT_S = 5
"""The seconds between two log lines about the progress."""
LOOK_S = 1
STALL_LIMIT_S = 30
"""The seconds without progress after which the watch ends the process."""
SYNC_LIMIT_S = 600
"""The seconds without progress after which the watch ends the process during a sync, which may write gigabytes."""
GRACE_S = 10
"""The additional seconds after which the kernel ends a process in which the watch cannot run."""

logger = logging.getLogger('kbroker')


class StopProgress:
    """Watches a stop in a separate thread. The stop calls `note` when it makes progress."""

    def __init__(self) -> None:
        """Start the watch, and an alarm of the kernel that ends the process if the watch stops running."""
        self._started_s = self._noted_s = time.monotonic()
        self._what, self._done, self._total = 'answering the requests under way', 0, 0
        self._limit_s = STALL_LIMIT_S
        self._is_over = threading.Event()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(STALL_LIMIT_S + GRACE_S)
        self._thread = threading.Thread(target=self._watch, name='stop', daemon=True)
        self._thread.start()

    def note(self, what: str, done: int = 0, total: int = 0, *, is_sync: bool = False) -> None:
        """Record that `done` of `total` parts of the work called `what` are done.

        The function must be cheap, because it is called often.
        """
        self._what, self._done, self._total = what, done, total
        self._limit_s = SYNC_LIMIT_S if is_sync else STALL_LIMIT_S
        self._noted_s = time.monotonic()

    def end(self) -> None:
        """End the watch, because the stop is complete."""
        self._is_over.set()
        self._thread.join()
        signal.alarm(0)

    def __str__(self) -> str:
        parts = f', {self._done:,} of {self._total:,}' if self._total else ''
        return f'{self._what}{parts}'

    def _watch(self) -> None:
        reported_s = self._started_s
        while not self._is_over.wait(LOOK_S):
            now_s = time.monotonic()
            if now_s - self._noted_s >= self._limit_s:
                self._give_up(now_s)
                return
            signal.alarm(self._limit_s + GRACE_S)
            systemd.notify('WATCHDOG=1', f'EXTEND_TIMEOUT_USEC={STALL_LIMIT_S * 1_000_000}', f'STATUS=Stopping: {self}')
            if now_s - reported_s >= REPORT_S:
                reported_s = now_s
                logger.info('stopping for %d s: %s', now_s - self._started_s, self)

    def _give_up(self, now_s: float) -> None:
        logger.critical('the broker ends without a clean stop: no progress for %d s: %s; the next start recovers',
                        now_s - self._noted_s, self)
        signal.raise_signal(signal.SIGALRM)
        os._exit(128 + signal.SIGALRM)      # the kernel ignores the signal for process 1 of a container
