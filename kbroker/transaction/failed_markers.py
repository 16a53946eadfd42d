"""The log lines about markers that failed and are retried.

Each marker is retried ten times a second. So a shortage of descriptors or a broken disk would fill the log. For each
error code, the broker logs the first failure, and then the number of further failures once a minute. After a minute
without a failure, the next failure of this code is a first failure again.
"""
from __future__ import annotations

import logging

from kbroker.base.clock import Timer, Timers
from kbroker.base.errors import ErrorCode

WINDOW_MS = 60_000

logger = logging.getLogger(__name__)


class FailedMarkers:
    """The failures of the last minute.

    It knows which error codes were logged, and how many further failures were only counted.
    """

    def __init__(self, timers: Timers):
        self._timers = timers
        self._windows: dict[ErrorCode, _Window] = {}

    def note(self, code: ErrorCode, line: str) -> None:
        """Log `line`. If a line with this error code was logged in the last minute, only count the failure."""
        window = self._windows.get(code)
        if window is not None:
            window.count += 1
            window.line = line
            return
        logger.warning('%s', line)
        self._windows[code] = _Window(self._timers.after(WINDOW_MS, lambda: self._end_window(code)))

    def _end_window(self, code: ErrorCode) -> None:
        """Log the number of failures in a window of a minute. If there were any, begin another window."""
        window = self._windows.pop(code)
        if window.count:
            window.log()
            self._windows[code] = _Window(self._timers.after(WINDOW_MS, lambda: self._end_window(code)))

    def close(self) -> None:
        """Log the failures that are counted but not logged yet."""
        for window in self._windows.values():
            window.timer.cancel()
            if window.count:
                window.log()
        self._windows.clear()


class _Window:
    """The failures with one error code after its last log line."""

    __slots__ = ('count', 'line', 'timer')

    def __init__(self, timer: Timer):
        self.timer = timer
        self.count = 0
        self.line = ''

    def log(self) -> None:
        logger.warning('failed attempts to write a marker, in at most a minute: %d. The last: %s', self.count,
                       self.line)
