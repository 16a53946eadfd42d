"""Copies of directories that share their blocks with the original, if the file system can do that."""
from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable

FICLONE = 0x40049409
"""The request of ioctl that lets a file share all blocks of another file (ioctl_ficlone(2))."""
CANNOT_SHARE = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM})

COPY_BYTES = 1 << 18
"""The bytes that are read at a time where the kernel cannot copy from file to file."""


def clone_directory(source: str, target: str, is_wanted: Callable[[str], bool] = lambda name: True) -> int:
    """Copy a directory to `target`, which must not exist. Return the total size of the copied files in bytes.

    Only files and directories whose names are wanted are copied. A file that disappears meanwhile is left out. Raise
    OSError.
    """
    os.mkdir(target, 0o700)
    size_bytes = 0
    with os.scandir(source) as entries:
        for entry in entries:
            if not is_wanted(entry.name):
                continue
            copy = os.path.join(target, entry.name)
            try:
                if entry.is_dir(follow_symlinks=False):
                    size_bytes += clone_directory(entry.path, copy, is_wanted)
                elif entry.is_file(follow_symlinks=False):
                    size_bytes += clone_file(entry.path, copy)
            except FileNotFoundError:
                if os.path.exists(entry.path):
                    raise
    return size_bytes


def clone_file(source: str, target: str) -> int:
    """Copy a file to `target`. Return its size in bytes. Raise OSError."""
    with open(source, 'rb', buffering=0) as given, open(target, 'xb', buffering=0) as copy:
        found = os.fstat(given.fileno())
        os.fchmod(copy.fileno(), stat.S_IMODE(found.st_mode))
        if found.st_size and not _share_blocks(given.fileno(), copy.fileno()):
            _copy_data(given.fileno(), copy.fileno(), found.st_size)
    return found.st_size


def _share_blocks(given: int, copy: int) -> bool:
    try:
        fcntl.ioctl(copy, FICLONE, given)
    except OSError as error:
        if error.errno not in CANNOT_SHARE:
            raise
        return False
    return True


def _copy_data(given: int, copy: int, size_bytes: int) -> None:
    """Copy the data of a file, and keep its holes: an index may be allocated far beyond its entries."""
    os.ftruncate(copy, size_bytes)
    position = 0
    while position < size_bytes:
        try:
            position = os.lseek(given, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:      # only a hole is left
                return
            raise
        end = min(os.lseek(given, position, os.SEEK_HOLE), size_bytes)
        while position < end:
            position += _copy_range(given, copy, end - position, position) or end - position


def _copy_range(given: int, copy: int, count: int, position: int) -> int:
    try:
        return os.copy_file_range(given, copy, count, position, position)
    except OSError as error:
        if error.errno not in CANNOT_SHARE:
            raise
        return os.pwrite(copy, os.pread(given, min(count, COPY_BYTES), position), position)
