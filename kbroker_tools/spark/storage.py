"""The read-only files of a log directory, at any place that pyarrow can open: the local disk, S3, HDFS or GCS."""
from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple


class FileFacts(NamedTuple):
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True)
class Storage:
    """A directory by its path or URI. It is picklable, and a task opens it on its own machine.

    Methods raise FileNotFoundError for missing files and OSError for unreadable ones.
    """

    location: str

    @classmethod
    def at(cls, location: str) -> Storage:
        """Return the storage for a location from the user. A slash at its end is removed, and a local path is made
        absolute."""
        storage = cls(location)
        return cls(os.path.abspath(location)) if storage.is_local else cls(''.join(storage._parts))

    @property
    def is_local(self) -> bool:
        """Return True if the location is a path, not a URI."""
        return '://' not in self.location

    @property
    def is_on_disk(self) -> bool:
        """Return True if its files are in a file system of this machine. The location may be a path or a URI."""
        return self.is_local or self.location.startswith('file:')

    @property
    def window_bytes(self) -> int:
        """Return the size of one sequential read: it fits the CPU cache, or is large enough for a request to another
        machine."""
        return 256 * 1024 if self.is_local else 8 * 1024 * 1024

    @property
    def _parts(self) -> tuple[str, str]:
        """Return the location up to its last name, and the query of a URI (for S3, the endpoint and so on)."""
        path, mark, query = (self.location, '', '') if self.is_local else self.location.partition('?')
        return path.rstrip('/') or '/', mark + query

    @property
    def name(self) -> str:
        return self._parts[0].rpartition('/')[2]

    @property
    def parent(self) -> Storage:
        path, query = self._parts
        return Storage((path.rpartition('/')[0] or '/') + query)

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        from pyarrow import fs
        opened: tuple[Any, str] = fs.FileSystem.from_uri(self.location)
        return opened

    def __getstate__(self) -> dict[str, str]:
        return {'location': self.location}

    def __str__(self) -> str:
        """Return the location for messages, without the passwords and endpoints of a URI."""
        return re.sub(r'://[^/]*@', '://', self._parts[0])

    def path(self, name: str) -> str:
        """Return the path of a file in this directory, for messages."""
        return f'{str(self).rstrip("/")}/{name}'

    def child(self, name: str) -> Storage:
        """Return the subdirectory `name`."""
        path, query = self._parts
        return Storage(f'{path.rstrip("/")}/{name}{query}')

    def list(self) -> dict[str, FileFacts | None]:
        """Return the files by name. A directory has None."""
        if self.is_local:
            with os.scandir(self.location) as entries:
                return {entry.name: _facts(entry.stat) for entry in entries}
        from pyarrow import fs
        filesystem, root = self._opened
        found = filesystem.get_file_info(fs.FileSelector(root))
        return {entry.base_name: _found_facts(entry) for entry in found}

    def facts(self, name: str) -> FileFacts | None:
        """Return size and time of one file as a listing has them; None if there is no such file.

        On this machine the directory is not listed. Object stores round the time of a single object to seconds.
        """
        if self.is_local:
            return _facts(partial(os.stat, os.path.join(self.location, name)))
        if not self.is_on_disk:
            return self.list().get(name)
        filesystem, root = self._opened
        return _found_facts(filesystem.get_file_info(f'{root}/{name}'))

    def open(self, name: str) -> Any:
        """Open a file for `read_at(size, position)` and `window`."""
        if self.is_local:
            return LocalFile(os.path.join(self.location, name))
        filesystem, root = self._opened
        return filesystem.open_input_file(f'{root}/{name}')

    def read(self, name: str) -> bytes:
        """Read a whole small file."""
        with self.open(name) as file:
            data: bytes = file.read()
        return data


def _facts(status: Callable[[], os.stat_result]) -> FileFacts | None:
    """Return size and time of a regular file; None for anything else."""
    try:
        found = status()
    except FileNotFoundError:  # deleted after the listing, or a broken link
        return None
    return FileFacts(found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _found_facts(found: Any) -> FileFacts | None:
    return FileFacts(found.size, found.mtime_ns) if found.is_file else None


class LocalFile:
    """A local file with those methods of pyarrow's files that are used here. It reads into one buffer."""

    def __init__(self, path: str):
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._buffer = memoryview(b'')

    def __enter__(self) -> LocalFile:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self) -> bytes:
        return self.read_at(self.size(), 0)

    def read_at(self, size: int, position: int) -> bytes:
        return os.pread(self._descriptor, size, position)

    def window(self, size: int, position: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = memoryview(bytearray(size))
        return self._buffer[:os.preadv(self._descriptor, [self._buffer[:size]], position)]


def window(file: Any, size: int, position: int) -> memoryview:
    """Return bytes of an open file, fewer at its end. They are valid until the next call for this file."""
    return file.window(size, position) if isinstance(file, LocalFile) else memoryview(file.read_at(size, position))
