"""The files of a log directory, for reading only. The directory can be in any place that pyarrow opens: the local disk,
S3, HDFS or GCS."""
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
    """A directory, given by its path or URI. It can be pickled, and each task opens it on its own machine.

    Methods raise FileNotFoundError if a file is missing, and OSError if it cannot be read.
    """

    location: str

    @classmethod
    def at(cls, location: str) -> Storage:
        """Return the storage for a location that the user has named. A slash at the end is removed, and a local path is
        made absolute."""
        storage = cls(location)
        return cls(os.path.abspath(location)) if storage.is_local else cls(''.join(storage._parts))

    @property
    def is_local(self) -> bool:
        """Return True if the location is a path and not a URI."""
        return '://' not in self.location

    @property
    def is_on_disk(self) -> bool:
        """Return True if the files are in a file system of this machine. The location may be a path or a URI."""
        return self.is_local or self.location.startswith('file:')

    @property
    def window_bytes(self) -> int:
        """Return the size in bytes of one sequential read. On this machine, it fits the CPU cache. For storage on other
        machines, it is so large that one request is worthwhile."""
        return 256 * 1024 if self.is_local else 8 * 1024 * 1024

    @property
    def _parts(self) -> tuple[str, str]:
        """Return two parts of the location: the text up to the last name, and the query of a URI. The query may have
        the endpoint of S3."""
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
        """Return the location as text for messages. The passwords and endpoints in a URI are omitted."""
        return re.sub(r'://[^/]*@', '://', self._parts[0])

    def path(self, name: str) -> str:
        """Return the path of a file in this directory as text for messages."""
        return f'{str(self).rstrip("/")}/{name}'

    def child(self, name: str) -> Storage:
        """Return the subdirectory `name`."""
        path, query = self._parts
        return Storage(f'{path.rstrip("/")}/{name}{query}')

    def list(self) -> dict[str, FileFacts | None]:
        """Return {name: facts} for the files in the directory. The facts of a subdirectory are None."""
        if self.is_local:
            with os.scandir(self.location) as entries:
                return {entry.name: _facts(entry.stat) for entry in entries}
        from pyarrow import fs
        filesystem, root = self._opened
        found = filesystem.get_file_info(fs.FileSelector(root))
        return {entry.base_name: _found_facts(entry) for entry in found}

    def facts(self, name: str) -> FileFacts | None:
        """Return the size and modification time of one file, exactly as `list` returns them. Return None if the file
        does not exist.

        For storage on other machines, the directory is listed, because object stores round the time of a single object
        to seconds.
        """
        if self.is_local:
            return _facts(partial(os.stat, os.path.join(self.location, name)))
        if not self.is_on_disk:
            return self.list().get(name)
        filesystem, root = self._opened
        return _found_facts(filesystem.get_file_info(f'{root}/{name}'))

    def open(self, name: str) -> Any:
        """Open a file. The file has the method `read_at(size, position)`, and can be passed to `window`."""
        if self.is_local:
            return LocalFile(os.path.join(self.location, name))
        filesystem, root = self._opened
        return filesystem.open_input_file(f'{root}/{name}')

    def read(self, name: str) -> bytes:
        """Return the content of a small file."""
        with self.open(name) as file:
            data: bytes = file.read()
        return data


def _facts(status: Callable[[], os.stat_result]) -> FileFacts | None:
    """Return the size and modification time of a regular file. Return None if it does not exist or is not a regular
    file."""
    try:
        found = status()
    except FileNotFoundError:  # deleted after the listing, or a broken link
        return None
    return FileFacts(found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _found_facts(found: Any) -> FileFacts | None:
    return FileFacts(found.size, found.mtime_ns) if found.is_file else None


class LocalFile:
    """A local file with the methods of pyarrow's files that this package uses. It reads into one buffer."""

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
    """Return up to `size` bytes of an open file; only its end has fewer. They are valid until the next call for this
    file."""
    return file.window(size, position) if isinstance(file, LocalFile) else memoryview(file.read_at(size, position))
