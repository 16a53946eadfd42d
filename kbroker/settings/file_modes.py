"""The modes of files with secrets, and of the files that the broker writes."""
from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from kbroker.base.errors import ConfigError
from kbroker.settings.rows import Type
from kbroker.settings.table import SETTINGS

ALLOWANCE = 'kbroker.allow.readable.secrets'
SECRET_NAMES = tuple(name for name, row in SETTINGS.items() if row.type is Type.PASSWORD)
PRIVATE_KEY = b'PRIVATE KEY-----'

OTHERS = (stat.S_IROTH, stat.S_IXOTH)
GROUP = (stat.S_IRGRP, stat.S_IXGRP | stat.S_IXOTH)
"""The mode bits that let every user read a file, and those that let every user pass a directory above it."""


def holds_secrets(names: Iterable[str]) -> bool:
    """Return whether one of these settings is a password, perhaps with the prefix of a listener."""
    return any(name == secret or name.endswith(f'.{secret}') for name in names for secret in SECRET_NAMES)


def holds_private_key(path: str) -> bool:
    return PRIVATE_KEY in Path(path).read_bytes()


def check_secret_file(path: str, what: str, is_allowed: bool) -> list[str]:
    """Return warnings about the mode of a file with secrets. `what` names the secrets.

    Raises ConfigError if every user may read it, unless that `is_allowed`. A directory above that other users cannot
    enter protects the file, whatever the file's mode.
    """
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if _is_readable(path, mode, OTHERS):
        problem = f'{path}: every user of this machine may read {what} (mode {mode:04o})'
        if not is_allowed:
            raise ConfigError(ALLOWANCE, f'{problem}. Run: chmod 600 {path}   ({ALLOWANCE}=true starts the broker '
                              'nevertheless)')
        return [problem]
    if _is_readable(path, mode, GROUP):
        return [f'{path}: its group may read {what} (mode {mode:04o}); chmod 600 {path} ends that']
    return []


def _is_readable(path: str, mode: int, bits: tuple[int, int]) -> bool:
    read, enter = bits
    return bool(mode & read) and all(parent.stat().st_mode & enter for parent in Path(path).resolve().parents)


def check_data_directory(path: str) -> list[str]:
    """Return a warning if every user may enter the log directory: its metadata log holds keys and passwords."""
    if not os.path.isdir(path) or not os.stat(path).st_mode & stat.S_IXOTH:
        return []
    if not all(parent.stat().st_mode & stat.S_IXOTH for parent in Path(path).resolve().parents):
        return []
    return [f'{path}: every user of this machine may enter the log directory, which holds credentials; '
            f'chmod o-rwx {path} ends that']
