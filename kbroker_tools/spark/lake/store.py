"""The directory of a table, on this machine's disk or in an object store."""
from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow import fs


@dataclass(frozen=True)
class Store:
    """A directory. `filesystem` is one of pyarrow, and `root` is the path of the directory in it, without a slash at
    the end. Paths of files are relative to `root`.

    Methods raise OSError if the store fails.
    """

    filesystem: fs.FileSystem
    root: str

    @property
    def is_local(self) -> bool:
        """Return True if the files are on the disk of this machine, where a writer syncs them."""
        return bool(self.filesystem.type_name == 'local')

    def list(self, path: str) -> list[str]:
        """Return the paths of all files below a path. Return [] if the path does not exist."""
        from pyarrow import fs
        found = self.filesystem.get_file_info(fs.FileSelector(f'{self.root}/{path}', recursive=True,
                                                              allow_not_found=True))
        return sorted(each.path.removeprefix(f'{self.root}/') for each in found if each.is_file)

    def put(self, path: str, data: bytes) -> None:
        """Write a small file."""
        if self.is_local:
            self.filesystem.create_dir(f'{self.root}/{path}'.rpartition('/')[0], recursive=True)
        with self.filesystem.open_output_stream(f'{self.root}/{path}') as stream:
            stream.write(data)

    def delete(self, path: str) -> None:
        """Delete a file. Do nothing if it is gone."""
        with suppress(FileNotFoundError):
            self.filesystem.delete_file(f'{self.root}/{path}')
