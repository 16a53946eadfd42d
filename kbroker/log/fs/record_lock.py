"""POSIX record locks on whole files. A broker holds one on the lock file of its log directory."""
from __future__ import annotations

import fcntl

from kbroker.log.fs.descriptors import lock_holder
from kbroker.log.fs.file import File, ReadOnlyFile


def hold(path: str) -> File:
    """Lock a file, created if missing, for as long as the returned File lives.

    Raise BlockingIOError or PermissionError if another process holds the lock. Closing any other descriptor of the same
    file in this process would drop the lock: open the file through this function only.
    """
    file = File(path, True)
    fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def holder(path: str) -> int | None:
    """Return the id of the process that holds the lock, or None if the lock is free. Return 0 if the id of that process
    is not visible to this process.

    The process that holds the lock must not call this: it opens and closes the file, which would drop the lock.
    """
    file = ReadOnlyFile(path)
    return lock_holder(file.fileno())
