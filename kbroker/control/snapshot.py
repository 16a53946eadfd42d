"""A copy of the log directory of a running broker, at one point of its history.

The copy is made within one turn of the loop. It has the files as a process that is killed at this moment leaves them,
so a start on the copy recovers as after a crash. Other threads change no file that the copy needs: they sync files,
write files of unfinished cleanings, and remove files that are already renamed.
"""
from __future__ import annotations

from typing import Any

from kbroker.base.clone import clone_directory
from kbroker.log.directory_names import LOCK_FILE

NOT_COPIED = ('.deleted', '.cleaned', '-delete', '.tmp')
"""The last parts of the names of files and directories that a start removes."""


def take_snapshot(node: Any, directory: str) -> int:
    """Copy the log directory of a Node to `directory`, which must not exist. Return the size of the copy in bytes.

    Raise OSError.
    """
    node.tick.write()       # appends that still share their write with later ones
    return clone_directory(node.directory, directory, is_copied)


def is_copied(name: str) -> bool:
    """Return whether a file or directory of a log directory belongs to a copy of the log directory."""
    return name != LOCK_FILE and not name.endswith(NOT_COPIED)
