"""Removes files and directories that no longer belong to a log, after a delay and in a worker thread.

A thread is needed because the kernel takes a tenth of a second to unlink a large file whose pages are all cached.
"""
import logging
from functools import partial

from kbroker.base.clock import Timers
from kbroker.log.fs import FileSystem
from kbroker.log.jobs import Submit

REMOVED_AT_ONCE = 32
PAUSE_MS = 1

logger = logging.getLogger(__name__)


class Removals:
    """The pending removals, which run as jobs of `submit`. If the broker stops first, the next start recognizes the
    remaining files by their names and removes them.
    """

    def __init__(self, fs: FileSystem, timers: Timers, submit: Submit):
        self._fs = fs
        self._timers = timers
        self._submit = submit
        self._is_stopped = False
        self.waiting = self.removed = 0
        """The files and directories that wait for their removal, and those that this process has removed."""

    def after(self, delay_ms: int, paths: list[str]) -> None:
        """Remove files and directories after a delay. It is no error if a file is renamed or removed during the delay.
        """
        self.waiting += len(paths)
        self._timers.after(delay_ms, partial(self._remove_next, paths))

    def stop(self) -> None:
        """Start no further removals, because the broker stops."""
        self._is_stopped = True

    def _remove_next(self, paths: list[str]) -> None:
        """Remove some of the files in a job of bounded size, because a longer job would delay other jobs."""
        if paths and not self._is_stopped:
            self._submit(partial(self._remove, paths[:REMOVED_AT_ONCE]), partial(self._count, paths))

    def _count(self, paths: list[str], _result: object) -> None:
        """Count the files that a job has removed, and continue with the rest of `paths` after a pause."""
        count = len(paths[:REMOVED_AT_ONCE])
        self.waiting -= count
        self.removed += count
        self._timers.after(PAUSE_MS, partial(self._remove_next, paths[REMOVED_AT_ONCE:]))

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            remove(self._fs, path)


def remove(fs: FileSystem, path: str) -> None:
    """Remove one file or directory, if it exists."""
    try:
        if fs.is_directory(path):
            fs.remove_directory(path)
        elif fs.exists(path):
            fs.unlink(path)
    except OSError as error:
        logger.warning('%s: cannot be removed: %s', path, error)
