"""The directory of a table, on this machine's disk or in an object store."""
from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker_tools.spark.ledger import sync_directory

if TYPE_CHECKING:
    from pyarrow import fs


@dataclass(frozen=True)
class Store:
    """A directory. `filesystem` is one of pyarrow, and `root` is the path of the directory in it, without a slash at
    the end. Paths of files are relative to `root`.

    Methods raise OSError if the store fails.

    pyarrow keeps a directory of an object store after its last file was deleted. Its marker is an object without
    bytes, whose name ends with a slash. Readers and writers of tables ignore such objects.
    """

    filesystem: fs.FileSystem
    root: str

    @property
    def is_local(self) -> bool:
        """Return True if the files are on the disk of this machine, where a writer syncs them."""
        return bool(self.filesystem.type_name == 'local')

    def list(self, path: str) -> Iterator[str]:
        """Yield the paths of all files below a path. Yield nothing if the path does not exist.

        Files that come and go in the meantime may be missing. On a disk, only one directory at a time is in memory. In
        an object store, a request lists all files below a path, and Google's shows no directories.
        """
        from pyarrow import fs
        left = [f'{self.root}/{path}'.rstrip('/')]
        while left:
            found = self.filesystem.get_file_info(fs.FileSelector(left.pop(), allow_not_found=True,
                                                                  recursive=not self.is_local))
            yield from (each.path.removeprefix(f'{self.root}/') for each in found if each.is_file)
            if self.is_local:
                left += (each.path for each in found if each.type == fs.FileType.Directory)

    def put(self, path: str, data: bytes) -> None:
        """Write a small file. On a local disk, it survives a power cut."""
        if self.is_local:
            self.filesystem.create_dir(f'{self.root}/{path}'.rpartition('/')[0], recursive=True)
        with self.filesystem.open_output_stream(f'{self.root}/{path}') as stream:
            stream.write(data)
        self.sync([path])

    def sync(self, paths: Iterable[str]) -> None:
        """Sync files and all their directories, up to the root and its parent. pyarrow does not sync what it writes.
        Do nothing in an object store: a file that can be seen there survives."""
        if not self.is_local:
            return
        root = Path(self.root)
        directories: set[Path] = set()
        for each in paths:
            path = root / each
            sync_directory(path)        # The system call is the same for a file.
            directories.update(parent for parent in path.parents if parent == root or root in parent.parents)
        for directory in sorted(directories, reverse=True):
            sync_directory(directory)
        if directories:
            sync_directory(root.parent)

    def delete(self, path: str) -> None:
        """Delete a file. Do nothing if it is gone."""
        with suppress(FileNotFoundError):
            self.filesystem.delete_file(f'{self.root}/{path}')

    def delete_directory(self, path: str) -> None:
        """Delete a directory and all files below it. Do nothing if it is gone."""
        with suppress(FileNotFoundError):
            self.filesystem.delete_dir(f'{self.root}/{path}')

    def prune(self, path: str) -> None:
        """On a local disk, remove the directory and all below it that have no files. A directory that gets a file in
        the meantime stays."""
        if self.is_local:
            for directory, _, _ in os.walk(f'{self.root}/{path}', topdown=False):
                with suppress(OSError):
                    os.rmdir(directory)
