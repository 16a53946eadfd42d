"""The steps of the first runs, kept in files.

A test of pytest has its name before it runs, and with pytest-xdist each process must find the same tests. So one
process does the first run of a test, and the others of the session wait for its file. A later session that repeats
runs by name reads the file, too: the numbers in the names mean the same steps.
"""
from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from kbroker.testing.exploring.steps import ReachedStep


@dataclass(frozen=True)
class StoredRun:
    """The first run of a test: the steps that its application reached, or why the run failed."""

    session: str
    """The id of the session of pytest that did the run."""
    failure: str | None
    steps: tuple[ReachedStep, ...] = ()


class Store:
    """The first runs in a directory, which the processes of a session share."""

    def __init__(self, directory: Path, session: str):
        self._directory, self.session = directory, session

    def find(self, test: str, do_first_run: Callable[[], StoredRun], may_be_older: bool) -> StoredRun:
        """Return the first run of a test. The process that asks first does it, and the others wait for it.

        `may_be_older` says that a successful run of an earlier session is good, too.
        """
        path = self._directory / (hashlib.sha1(test.encode(), usedforsecurity=False).hexdigest() + '.json')
        with open(path, 'a+') as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            found = _decoded(file.read())
            if found is not None and (found.session == self.session or (may_be_older and found.failure is None)):
                return found
            found = do_first_run()
            file.truncate(0)
            json.dump({'test': test, **asdict(found)}, file)
            return found


def _decoded(text: str) -> StoredRun | None:
    """Return the run in a file, or None if the file is new, or of another release."""
    try:
        found = json.loads(text)
        return StoredRun(found['session'], found['failure'], tuple(ReachedStep(**step) for step in found['steps']))
    except (ValueError, KeyError, TypeError):
        return None
