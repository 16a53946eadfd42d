"""The file system for tools that must not change any file."""
from __future__ import annotations

import os
from errno import EROFS
from typing import NoReturn

from kbroker.log.fs.file import File, ReadOnlyFile
from kbroker.log.fs.file_system import FileSystem


class ReadOnlyFileSystem(FileSystem):
    """The machine's file system, read-only: each attempt to change a file raises EROFS.

    Tools use it to read a directory that belongs to another program, for example a running broker.
    """

    def open(self, path: str, create: bool = False) -> File:
        """Open a file for reading. `create` has no effect: a missing file stays missing."""
        return ReadOnlyFile(path)

    def mkdir(self, path: str) -> None:
        refuse_change(path)

    def rmdir(self, path: str) -> None:
        refuse_change(path)

    def rename(self, old: str, new: str) -> None:
        refuse_change(old)

    def unlink(self, path: str) -> None:
        refuse_change(path)

    def write_file(self, path: str, data: bytes) -> File:
        refuse_change(path)

    def lock(self, path: str) -> File:
        refuse_change(path)

    def take_after(self, path: str, model: str) -> None:
        refuse_change(path)


def refuse_change(path: str) -> NoReturn:
    raise OSError(EROFS, os.strerror(EROFS), path)
