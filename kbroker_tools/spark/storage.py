"""Files of a log directory wherever pyarrow can open them: the local disk, S3, HDFS, GCS. Nothing is written."""
from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple


class FileFacts(NamedTuple):
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True)
class Storage:
    """A directory by its path or URI; picklable, so that a task opens it where it runs.

    Raises FileNotFoundError for what is not there, OSError for what cannot be read.
    """

    location: str

    @classmethod
    def at(cls, location: str) -> Storage:
        """Of what somebody typed: without a slash at its end, and a local path as an absolute one."""
        storage = cls(location)
        return cls(os.path.abspath(location)) if storage.is_local else cls(''.join(storage._parts))

    @property
    def is_local(self) -> bool:
        """Whether it was given as a path of this machine, not as a URI."""
        return '://' not in self.location

    @property
    def is_on_disk(self) -> bool:
        """Whether its files lie in a file system of this machine, however it was given."""
        return self.is_local or self.location.startswith('file:')

    @property
    def _parts(self) -> tuple[str, str]:
        """The location up to its last name, and the query that a URI may end with (of S3: its endpoint and so on)."""
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
        if '://' in self.location:
            opened: tuple[Any, str] = fs.FileSystem.from_uri(self.location)
            return opened
        return fs.LocalFileSystem(), self.location

    def __getstate__(self) -> dict[str, str]:
        return {'location': self.location}

    def __str__(self) -> str:
        """For people: without what a URI may hold of passwords and endpoints."""
        return re.sub(r'://[^/]*@', '://', self._parts[0])

    def path(self, name: str) -> str:
        """Of a file in here, for people."""
        return f'{str(self).rstrip("/")}/{name}'

    def child(self, name: str) -> Storage:
        """The directory `name` in this one."""
        path, query = self._parts
        return Storage(f'{path.rstrip("/")}/{name}{query}')

    def list(self) -> dict[str, FileFacts | None]:
        """What lies here, by name; None for a directory."""
        from pyarrow import fs
        filesystem, root = self._opened
        found = filesystem.get_file_info(fs.FileSelector(root))
        return {entry.base_name: FileFacts(entry.size, entry.mtime_ns) if entry.type == fs.FileType.File else None
                for entry in found}

    def open(self, name: str) -> Any:
        """A file for `read_at(size, position)`."""
        filesystem, root = self._opened
        return filesystem.open_input_file(f'{root}/{name}')

    def read(self, name: str) -> bytes:
        """The whole of a small file."""
        with self.open(name) as file:
            data: bytes = file.read()
        return data
