"""Checks of the permissions of files with secrets and of the log directory."""
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
"""Pairs of mode bits. The first lets a file be read: by all users (OTHERS), or by its group (GROUP).

The second lets these users pass through a directory above the file.
"""


def holds_secrets(names: Iterable[str]) -> bool:
    """Return whether one of these names is the name of a password. The name may have the prefix of a listener."""
    return any(name == secret or name.endswith(f'.{secret}') for name in names for secret in SECRET_NAMES)


def holds_private_key(path: str) -> bool:
    return PRIVATE_KEY in Path(path).read_bytes()


def check_secret_file(path: str, what: str, is_allowed: bool) -> list[str]:
    """Return warnings about the mode of the file at `path`. `what` names its secrets in messages.

    If every user may read the file, raise ConfigError, or return a warning if `is_allowed`. A file is safe, whatever
    its mode, if other users cannot enter one of the directories above it.
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
    """Return a warning if every user may enter the log directory. Its metadata log contains keys and passwords."""
    if not os.path.isdir(path) or not os.stat(path).st_mode & stat.S_IXOTH:
        return []
    if not all(parent.stat().st_mode & stat.S_IXOTH for parent in Path(path).resolve().parents):
        return []
    return [f'{path}: every user of this machine may enter the log directory, which holds credentials; '
            f'chmod o-rwx {path} ends that']
