"""Files and directories that left their log: they go a little later, and not on the loop.

The kernel takes a tenth of a second to let go of a large file, of which it may still hold every page.
"""
import logging
from functools import partial

from kbroker.clock import Timers
from kbroker.log.fs import FileSystem
from kbroker.log.jobs import Submit

REMOVED_AT_ONCE = 32
PAUSE_MS = 1

logger = logging.getLogger(__name__)


class Removals:
    """What is removed by jobs of `submit`. What a stop leaves, the next start removes, for its names say so."""

    def __init__(self, fs: FileSystem, timers: Timers, submit: Submit):
        self._fs = fs
        self._timers = timers
        self._submit = submit
        self._is_stopped = False

    def after(self, delay_ms: int, paths: list[str]) -> None:
        """Remove files and directories. They may have been renamed or removed since: what is gone is gone."""
        self._timers.after(delay_ms, partial(self._remove_next, paths))

    def stop(self) -> None:
        """Begin nothing any more."""
        self._is_stopped = True

    def _remove_next(self, paths: list[str]) -> None:
        """In jobs of bounded size, for they keep others waiting."""
        if paths and not self._is_stopped:
            self._submit(partial(self._remove, paths[:REMOVED_AT_ONCE]),
                         lambda _: self.after(PAUSE_MS, paths[REMOVED_AT_ONCE:]))

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            remove(self._fs, path)


def remove(fs: FileSystem, path: str) -> None:
    """One file or directory, if it is there."""
    try:
        if fs.is_directory(path):
            fs.remove_directory(path)
        elif fs.exists(path):
            fs.unlink(path)
    except OSError as error:
        logger.warning('%s: cannot be removed: %s', path, error)
