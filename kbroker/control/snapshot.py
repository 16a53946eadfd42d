"""A copy of the log directory of a running broker, at one point of its history.

The copy is made within one turn of the loop. It has the files as a process that is killed at this moment leaves them,
so a start on the copy recovers as after a crash. Other threads change no file that the copy needs: they sync files,
write files of unfinished cleanings, and remove files that are already renamed.
"""
from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kbroker.base.clone import clone_directory
from kbroker.base.os_errors import describe
from kbroker.control.bodies import ControlError, check_names, shown
from kbroker.control.reset import refuse_while_held
from kbroker.control.rules import Rules
from kbroker.log.directory_names import LOCK_FILE
from kbroker.metadata.changes import Steps

NOT_COPIED = ('.deleted', '.cleaned', '-delete', '.tmp')
"""The last parts of the names of files and directories that a start removes."""


def answer_snapshot(node: Any, rules: Rules, body: Mapping[str, Any]) -> Steps[dict[str, Any]]:
    """Answer a request to copy the log directory to the new directory that it names. Raise ControlError."""
    check_names(body, ('directory',))
    directory = body.get('directory')
    if not isinstance(directory, str) or not os.path.isabs(directory) or '\0' in directory:
        raise ControlError(f'directory: found {shown(directory)}, expected an absolute path at which nothing exists')
    refuse_while_held(rules, 'snapshot')
    if os.path.lexists(directory):
        raise ControlError(f'directory: found that {directory} exists, expected a path at which nothing exists', 409)
    yield
    try:
        size_bytes = take_snapshot(node, directory)
    except OSError as error:
        import shutil  # slow to import, and needed only after an error

        shutil.rmtree(directory, ignore_errors=True)
        raise ControlError(f'no snapshot could be made: {describe(error)}', 409) from None
    return {'directory': directory, 'size_bytes': size_bytes}


def take_snapshot(node: Any, directory: str) -> int:
    """Copy the log directory of a Node to `directory`, which must not exist. Return the size of the copy in bytes.

    Raise OSError.
    """
    node.tick.write()       # appends that still share their write with later ones
    return clone_directory(node.directory, directory, is_copied)


def is_copied(name: str) -> bool:
    """Return whether a file or directory of a log directory belongs to a copy of the log directory."""
    return name != LOCK_FILE and not name.endswith(NOT_COPIED)
