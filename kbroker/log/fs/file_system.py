"""The machine's file system."""
from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterable
from errno import ENOSYS

from kbroker.base.errors import CorruptLogError
from kbroker.log.fs import record_lock
from kbroker.log.fs.file import Directory, File, ReadOnlyFile, WholeFileSystem

MOST_READ_BYTES = 1 << 30
"""The maximum size of a file that is read whole, in bytes. Checkpoints, snapshots and transaction indexes are far
smaller.
"""
SMALL_FILE_BYTES = 64 * 1024
"""The maximum size of a file that has only a few lines, in bytes."""
SYNCFS_IS_SILENT = sys.platform != 'linux' or tuple(map(int, re.findall(r'\d+', os.uname().release)[:2])) < (5, 8)
"""True if the kernel has no syncfs, or one that hides write errors."""


READ_ONLY = '.checkpoint'
"""The end of the names of metadata snapshots. Apache Kafka removes the right to write to them."""
NO_FILE = -2
"""The size that `sizes` reports for a directory, a pipe, a socket, a device or a broken link."""
KINDS = {stat.S_IFREG: 'a file', stat.S_IFDIR: 'a directory', stat.S_IFIFO: 'a named pipe', stat.S_IFSOCK: 'a socket'}


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Return whether a directory entry is a regular file, or a link to one."""
    try:
        return entry.is_file()
    except OSError:         # a link that leads to itself
        return False


def sync_inline(files: Iterable[File], done: Callable[[OSError | None], object]) -> None:
    """Sync the files in the calling thread, then call `done` with None or the first OSError."""
    failure = None
    try:
        for file in files:
            file.sync()
    except OSError as error:
        failure = error
    done(failure)


class FileSystem:
    """The machine's file system. Every method may raise OSError."""

    def open(self, path: str, create: bool = False) -> File:
        return File(path, create)

    def open_to_read(self, path: str) -> File:
        """Open a file only for reading. The process needs no right to write to it."""
        return ReadOnlyFile(path)

    def open_directory(self, path: str) -> File:
        return Directory(path)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def subdirectories(self, path: str) -> list[str]:
        """Return the names of the subdirectories of `path`."""
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def sizes(self, path: str) -> dict[str, int]:
        """Return {name: size in bytes} of the entries of a directory. The size is NO_FILE for an entry that is not a
        regular file.
        """
        with os.scandir(path) as entries:
            return {entry.name: entry.stat().st_size if _is_file(entry) else NO_FILE for entry in entries}

    def kind(self, path: str) -> str:
        """Return the kind of the file at `path` in words, for example 'a file', 'a directory' or 'a named pipe'."""
        try:
            mode = os.stat(path).st_mode
        except OSError:
            return 'a link to no file' if os.path.islink(path) else 'nothing'
        return KINDS.get(stat.S_IFMT(mode), 'a device')

    def first_refused(self, path: str, names: Collection[str] | None = None) -> str | None:
        """Return the path of a directory if this user may not change it, or of its first file that this user may not
        read and write. Return None if there is none.

        `names` limits the check to these files. Files that Apache Kafka makes read-only only have to be readable.
        """
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
            return path
        with os.scandir(path) as entries:
            for entry in entries:
                mode = os.R_OK if entry.name.endswith(READ_ONLY) else os.R_OK | os.W_OK
                is_wanted = _is_file(entry) and (names is None or entry.name in names)
                if is_wanted and not os.access(entry.path, mode, effective_ids=True):
                    return entry.path
        return None

    def is_read_only(self, path: str) -> bool:
        """Return whether the file system that contains `path` is mounted read-only."""
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)

    def stats(self, path: str) -> dict[str, tuple[int, int]]:
        """Return {name: (size in bytes, time of the last change in ms)} of the files and subdirectories of a directory.
        """
        with os.scandir(path) as entries:
            return {entry.name: (state.st_size, state.st_mtime_ns // 1_000_000)
                    for entry in entries for state in (entry.stat(),)}

    def modified_ms(self, path: str) -> int:
        """Return the wall-clock time of the last change of a file, in ms."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def free_bytes(self, path: str) -> int:
        """Return how many bytes an unprivileged process can still write to the file system that contains `path`."""
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def total_bytes(self, path: str) -> int:
        state = os.statvfs(path)
        return state.f_blocks * state.f_frsize

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory atomically. The new name is durable only after the parent directory is synced."""
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """Remove a directory and the files in it. The directory must have no subdirectories."""
        for name in self.listdir(path):
            self.unlink(os.path.join(path, name))
        self.rmdir(path)

    def sync_directory(self, path: str) -> None:
        self.open_directory(path).sync()

    def sync_everything(self, path: str) -> None:
        """Sync the whole file system that holds a directory. This is cheaper than syncing many files one by one.

        Raise ENOSYS on Linux before 5.8, where the call does not report write errors, and on other systems.
        """
        if SYNCFS_IS_SILENT:
            raise OSError(ENOSYS, os.strerror(ENOSYS), path)
        WholeFileSystem(path).sync()

    def read_file(self, path: str, most_bytes: int = MOST_READ_BYTES) -> bytes:
        """Return the content of a file.

        Raise CorruptLogError without reading if the file has more than `most_bytes`. A damaged or foreign file may be
        sparse and larger than the memory.
        """
        file = self.open(path)
        size_bytes = file.size()
        if size_bytes > most_bytes:
            raise CorruptLogError(f'{path}: found {size_bytes} bytes, expected at most {most_bytes}')
        return file.read_at(size_bytes, 0)

    def write_file(self, path: str, data: bytes) -> File:
        """Replace the content of a file in place, without a sync. Use this only for files with a checksum, which shows
        a torn write.
        """
        file = self.open(path, create=True)
        if file.size():     # after a truncation to zero, ext4 writes a file when it is closed
            file.resize(0)
        file.write_at(data, 0)
        return file

    def write_file_atomically(self, path: str, data: bytes) -> None:
        """Replace the content of a file atomically: readers find the old content or the new one, even after a power
        cut.

        Write and sync `<path>.tmp`, rename it to `path`, then sync the directory.
        """
        self.write_file(path + '.tmp', data).sync()
        self.rename(path + '.tmp', path)
        self.sync_directory(os.path.dirname(path))

    def lock(self, path: str) -> File:
        """Hold the record lock of a file: see `record_lock.hold`."""
        return record_lock.hold(path)

    def lock_holder(self, path: str) -> int | None:
        """Return the id of the process that holds the record lock of a file: see `record_lock.holder`."""
        return record_lock.holder(path)

    def take_after(self, path: str, model: str) -> None:
        """Give a file the owner and the mode of the file `model`. The broker must be able to write the files that a
        tool creates.
        """
        state = os.stat(model)
        os.chown(path, state.st_uid, state.st_gid)
        os.chmod(path, state.st_mode & 0o666)
