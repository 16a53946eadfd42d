"""The disk of a broker that a test controls: rules delay syncs of appends, make them fail, or make the disk full.

A file belongs to a partition if its directory does: `orders-0`. Rules select partitions by the facts `topic` and
`partition`. The log of the metadata is partition 0 of `__cluster_metadata`.
"""
from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.control.points import FAIL
from kbroker.log.directory_names import parse_directory_name
from kbroker.log.fs import Directory, File, FileSystem, InterposedFile

if TYPE_CHECKING:
    from kbroker.base.clock import Timer, Timers
    from kbroker.control.rules import Rules
    from kbroker.log.jobs import Sync


def facts_of(path: str) -> dict[str, Any] | None:
    """Return the partition of a file as facts, or None if it belongs to no partition."""
    name = parse_directory_name(os.path.basename(os.path.dirname(path)))
    return None if name is None or name.state else {'topic': name.topic, 'partition': name.partition}


def os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class ControlledFile(InterposedFile):
    """A file whose writes fail while a rule says that the disk is full."""

    syncs_in_threads = True
    """The sync threads sync this file like others: `ControlledSync` has applied the rules before."""

    def __init__(self, rules: Rules, loop: int, path: str, create: bool):
        super().__init__(path, create)
        self._rules = rules
        self._loop = loop
        self._facts = facts_of(path)

    def on_write(self, data: bytes, position: int) -> tuple[int, OSError] | None:
        # Rules belong to the loop. The writes of other threads, such as the cleaner's, meet none.
        if self._facts is None or threading.get_ident() != self._loop:
            return None
        return (0, os_error(errno.ENOSPC, self.path)) if self._rules.decide('write', dict(self._facts)) else None


class ControlledFileSystem(FileSystem):
    """The machine's file system, with rules for the files of partitions. The thread of the loop creates it."""

    def __init__(self, rules: Rules):
        self._rules = rules
        self._loop = threading.get_ident()

    def open(self, path: str, create: bool = False) -> File:
        return ControlledFile(self._rules, self._loop, path, create)


class ControlledSync:
    """A function that syncs files like another one, with rules for the partitions of the files.

    A delay takes the time of the broker's clock. It holds neither the loop nor a sync thread.
    """

    def __init__(self, rules: Rules, sync: Sync, timers: Timers):
        self._rules = rules
        self._sync = sync
        self._timers = timers
        self._delayed: dict[Timer, Callable[[], object]] = {}

    def __call__(self, files: list[File], done: Callable[[OSError | None], None]) -> None:
        delay_ms, failure = 0, None
        for facts, path in self._partitions(files):
            for rule in self._rules.decide('sync', facts):
                if rule.action == FAIL:
                    failure = failure or os_error(errno.EIO, path)
                else:
                    delay_ms = max(delay_ms, rule.delay_ms or 0)
        if failure is not None:
            self._after(delay_ms, partial(done, failure))
        elif delay_ms:
            self._after(delay_ms, partial(self._sync, files, done))
        else:
            self._sync(files, done)

    def end_delays(self) -> None:
        """Do now what is delayed, because the broker stops."""
        for timer, call in list(self._delayed.items()):
            timer.cancel()
            del self._delayed[timer]
            call()

    def _after(self, delay_ms: int, call: Callable[[], object]) -> None:
        def fire() -> None:
            del self._delayed[timer]
            call()

        timer = self._timers.after(delay_ms, fire)
        self._delayed[timer] = call

    @staticmethod
    def _partitions(files: list[File]) -> list[tuple[dict[str, Any], str]]:
        """Return the partitions of files as facts, each once, with a path of each."""
        found: dict[tuple[str, int], tuple[dict[str, Any], str]] = {}
        for file in files:
            facts = facts_of(file.path if type(file) is not Directory else os.path.join(file.path, ''))
            if facts is not None:
                found.setdefault((facts['topic'], facts['partition']), (facts, file.path))
        return list(found.values())
