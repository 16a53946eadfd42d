"""A file system whose changes fail, and one that can write the directory that a power cut leaves."""
from __future__ import annotations

import errno
import os
import pathlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kbroker.log.fs import Directory, File, FileSystem, InterposedFile, ReadOnlyFileSystem

SECTOR_BYTES = 512
FATES = 'lost', 'kept', 'mixed'


class FailingFileSystem(FileSystem):
    """A file system whose changes fail where `fail(change, path)` returns an errno.

    Changes are 'write', 'sync', 'truncate', 'rename', 'unlink', 'mkdir', and 'open' for a new file. A failing write
    still writes its first `partial_bytes`.
    """

    def __init__(self, fail: Callable[[str, str], int | None] = lambda operation, path: None, partial_bytes: int = 0):
        self.fail = fail
        self.partial_bytes = partial_bytes

    def check(self, operation: str, path: str) -> None:
        code = self.fail(operation, path)
        if code is not None:
            raise OSError(code, os.strerror(code), path)

    def open(self, path: str, create: bool = False) -> File:
        if create and not self.exists(path):
            self.check('open', path)
        return FailingFile(self, path, create)

    def open_directory(self, path: str) -> File:
        return FailingDirectory(self, path)

    def rename(self, old: str, new: str) -> None:
        self.check('rename', old)
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self.check('unlink', path)
        super().unlink(path)

    def mkdir(self, path: str) -> None:
        self.check('mkdir', path)
        super().mkdir(path)

    def sync_everything(self, path: str) -> None:
        self.check('sync', path)
        super().sync_everything(path)


class FailingFile(InterposedFile):
    def __init__(self, fs: FailingFileSystem, path: str, create: bool):
        super().__init__(path, create)
        self.fs = fs

    def on_write(self, data: bytes, position: int) -> tuple[int, OSError] | None:
        try:
            self.fs.check('write', self.path)
        except OSError as error:
            return self.fs.partial_bytes, error
        return None

    def on_truncate(self, size: int) -> None:
        self.fs.check('truncate', self.path)

    def on_sync(self) -> None:
        self.fs.check('sync', self.path)


class FailingDirectory(Directory):
    def __init__(self, fs: FailingFileSystem, path: str):
        super().__init__(path)
        self.fs = fs

    def sync(self) -> None:
        self.fs.check('sync', self.path)
        super().sync()


def fail_nth(number: int, code: int = errno.EIO) -> Callable[[str, str], int | None]:
    """Return a `fail` that fails the change with this number, counted from 0, and all later changes."""
    seen = 0

    def fail(operation: str, path: str) -> int | None:
        nonlocal seen
        seen += 1
        return code if seen > number else None

    return fail


@dataclass
class Content:
    """The bytes of a file. If `size` is larger than the length of `data`, the file ends with zeros."""

    data: bytearray = field(default_factory=bytearray)
    size: int = 0

    def write(self, position: int, data: bytes) -> None:
        if len(self.data) < position:
            self.data.extend(bytes(position - len(self.data)))
        self.data[position:position + len(data)] = data
        self.size = max(self.size, position + len(data))

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.size = size

    def copy(self) -> Content:
        return Content(bytearray(self.data), self.size)


@dataclass
class Inode:
    """The durable content of a file, and its unsynced changes. A power cut may undo any of these changes and keep the
    others.
    """

    durable: Content = field(default_factory=Content)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """The unsynced changes: (position, data) for a write, (size, None) for a truncation."""
    has_error: bool = False
    """True if a write in the background has failed. The next sync reports the failure."""

    @property
    def has_unsynced_data(self) -> bool:
        return any(data is not None for _, data in self.pending)

    def sync(self) -> None:
        for position, data in self.pending:
            apply(self.durable, position, data)
        self.pending.clear()

    def fail_sync(self, rng: random.Random | None) -> None:
        """Drop some of the unsynced data, or all of it if `rng` is None. The kernel may treat the dropped data as
        written, so no later sync writes it. Sizes are in the journal of the file system, so they can become durable
        later.
        """
        self.pending = [(position, data) for position, data in self.pending
                        if data is None or (rng is not None and rng.random() < 0.5)]

    def after_power_cut(self, rng: random.Random | None) -> Content:
        """Return the durable content with some of the unsynced changes, or with none of them if `rng` is None."""
        content = self.durable.copy()
        fate = 'lost' if rng is None else rng.choice(FATES)
        for position, data in self.pending if rng is not None and fate != 'lost' else ():
            chance = 1.0 if fate == 'kept' else rng.random()
            if chance >= 0.6 or (data is None and chance >= 0.3):
                apply(content, position, data)
            elif data is not None and chance >= 0.3:
                tear(content, position, data, rng)
        return content


def apply(content: Content, position: int, data: bytes | None) -> None:
    if data is None:
        content.truncate(position)
    elif data:
        content.write(position, data)


def tear(content: Content, position: int, data: bytes, rng: random.Random) -> None:
    """Write a part of the data to `content`: its beginning, or some of its sectors. The size may include the sectors
    that are not written.
    """
    if rng.random() < 0.5:
        apply(content, position, data[:rng.randrange(len(data) + 1)])
        return
    start = 0
    while start < len(data):
        end = min(len(data), start + SECTOR_BYTES - (position + start) % SECTOR_BYTES)
        if rng.random() < 0.5:
            content.write(position + start, data[start:end])
        start = end
    if rng.random() < 0.5:
        content.size = max(content.size, position + len(data))


NameChange = Callable[[dict[str, object]], object]


@dataclass(eq=False)
class Folder:
    """The durable names in a directory, and the unsynced changes of names. A power cut may undo the last of these
    changes.
    """

    names: dict[str, object] = field(default_factory=dict)
    """Maps each name to an Inode or a Folder."""
    durable: dict[str, object] = field(default_factory=dict)
    pending: list[NameChange] = field(default_factory=list)

    def change(self, change: NameChange) -> None:
        change(self.names)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            change(self.durable)
        self.pending.clear()

    def after_power_cut(self, rng: random.Random | None) -> dict[str, object]:
        """Return the durable names with the first few unsynced changes, or with none of them if `rng` is None."""
        names = dict(self.durable)
        count = len(self.pending)
        for change in self.pending[:0 if rng is None else rng.choice((0, count, rng.randrange(count + 1)))]:
            change(names)
        return names


class FreezingFileSystem(FileSystem):
    """A file system that records what is durable below `root`. A sync of a file makes its content durable, and a sync
    of a directory its names.

    `crash` writes a directory that a power cut may leave.
    """

    def __init__(self, root: pathlib.Path, before_change: Callable[[str, str], None] = lambda change, path: None):
        """`before_change` is called with the change and its path before each change takes effect.

        The changes are those of `FailingFileSystem`, and 'rmdir'. If `before_change` raises, the change has failed.
        """
        self.root = str(root)
        self.before_change = before_change
        self.fate_of_failed_syncs: random.Random | None = None
        """Chooses which writes to a file stay unsynced after a failed sync. With None, the failed sync drops all
        unsynced writes to its file.
        """
        self.has_error = False
        """True if the next `sync_everything` reports an error. This may be the case although the file has been written
        again.
        """
        self.top = self._read(self.root)

    def _read(self, path: str) -> Folder:
        """Read a directory from the disk. Return it as a Folder in which everything is durable."""
        folder = Folder()
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if entry.is_dir():
                folder.names[entry.name] = self._read(entry.path)
            else:
                content = pathlib.Path(entry.path).read_bytes()
                folder.names[entry.name] = Inode(Content(bytearray(content.rstrip(b'\0')), len(content)))
        folder.durable = dict(folder.names)
        return folder

    def folder(self, path: str) -> Folder | None:
        """Return the Folder of a directory, or None if the directory is not below the root."""
        node = self.node(path)
        return node if isinstance(node, Folder) else None

    def node(self, path: str) -> object:
        where = os.path.relpath(path, self.root)
        node: object = self.top
        for name in () if where == '.' else where.split('/'):
            node = node.names.get(name) if isinstance(node, Folder) else None
        return node

    def change(self, path: str, change: NameChange) -> None:
        """Change the names in the directory that contains `path`."""
        folder = self.folder(os.path.dirname(path))
        if folder is not None:
            folder.change(change)

    def open(self, path: str, create: bool = False) -> File:
        if create and self.node(path) is None:
            self.before_change('open', path)
            inode, name = Inode(), os.path.basename(path)
            self.change(path, lambda names: names.update({name: inode}))
        return FrozenFile(self, self.node(path), path, create)

    def open_directory(self, path: str) -> File:
        return FrozenDirectory(self, path)

    def mkdir(self, path: str) -> None:
        self.before_change('mkdir', path)
        super().mkdir(path)
        folder, name = Folder(), os.path.basename(path)
        self.change(path, lambda names: names.update({name: folder}))

    def rmdir(self, path: str) -> None:
        self.before_change('rmdir', path)
        super().rmdir(path)
        self._forget(path)

    def unlink(self, path: str) -> None:
        self.before_change('unlink', path)
        super().unlink(path)
        self._forget(path)

    def _forget(self, path: str) -> None:
        name = os.path.basename(path)
        self.change(path, lambda names: names.pop(name, None))

    def rename(self, old: str, new: str) -> None:
        self.before_change('rename', old)
        super().rename(old, new)
        assert os.path.dirname(old) == os.path.dirname(new)
        old_name, new_name = os.path.basename(old), os.path.basename(new)

        def move(names: dict[str, object]) -> None:
            if old_name in names:
                names[new_name] = names.pop(old_name)

        self.change(new, move)

    def sync_everything(self, path: str) -> None:
        folders, inodes = self._all_below(self.top)
        try:
            self.before_change('sync', path)
        except OSError:
            for inode in inodes:
                inode.has_error |= inode.has_unsynced_data
                inode.fail_sync(self.fate_of_failed_syncs)
            raise
        for synced in (*inodes, *folders):
            synced.sync()
        if self.has_error:
            self.has_error = False
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def _all_below(self, folder: Folder) -> tuple[list[Folder], list[Inode]]:
        folders, inodes = [folder], []
        for node in folder.names.values():
            if isinstance(node, Inode):
                inodes.append(node)
            elif isinstance(node, Folder):
                below = self._all_below(node)
                folders += below[0]
                inodes += below[1]
        return folders, inodes

    def sync_names(self, directory: str) -> None:
        folder = self.folder(directory)
        if folder is not None:
            folder.sync()

    def write_back_in_vain(self) -> None:
        """Drop all unsynced data, as the operating system does when a write in the background fails."""
        for inode in self._all_below(self.top)[1]:
            if inode.has_unsynced_data:
                inode.fail_sync(None)
                inode.has_error = self.has_error = True

    def crash(self, destination: pathlib.Path, rng: random.Random | None) -> None:
        """Write a directory that a power cut may leave to `destination`.

        Each directory has the names that it had after some change. Unsynced content is lost, kept or torn. If `rng` is
        None, and at random in a quarter of the other cases, all unsynced names and content are lost.
        """
        self._write(self.top, destination, None if rng is None or rng.random() < 0.25 else rng)

    def _write(self, folder: Folder, destination: pathlib.Path, rng: random.Random | None) -> None:
        destination.mkdir(exist_ok=True)
        for name, node in sorted(folder.after_power_cut(rng).items()):
            if isinstance(node, Folder):
                self._write(node, destination / name, rng)
            elif isinstance(node, Inode):
                content = node.after_power_cut(rng)
                with (destination / name).open('wb') as file:
                    file.write(content.data)
                    file.truncate(content.size)


class ShortWriteError(OSError):
    """Raised by the `before_change` of a `FreezingFileSystem` to make a write fail after half of its bytes."""


class FrozenFile(InterposedFile):
    def __init__(self, fs: FreezingFileSystem, inode: object, path: str, create: bool):
        super().__init__(path, create)
        self.fs = fs
        self.inode = inode

    def on_write(self, data: bytes, position: int) -> tuple[int, OSError] | None:
        failure = None
        try:
            self.fs.before_change('write', self.path)
        except ShortWriteError as error:
            data, failure = data[:len(data) // 2], error
        if isinstance(self.inode, Inode):
            self.inode.pending.append((position, data))
        return None if failure is None else (len(data), failure)

    def on_truncate(self, size: int) -> None:
        self.fs.before_change('truncate', self.path)
        if isinstance(self.inode, Inode):
            self.inode.pending.append((size, None))

    def on_sync(self) -> None:
        inode = self.inode if isinstance(self.inode, Inode) else Inode()
        try:
            self.fs.before_change('sync', self.path)
            if inode.has_error:
                raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        except OSError:
            inode.has_error = False
            inode.fail_sync(self.fs.fate_of_failed_syncs)
            raise
        inode.sync()

    def forget_errors(self) -> None:
        if isinstance(self.inode, Inode):
            self.inode.has_error = False


class FrozenDirectory(Directory):
    """A directory. Its names survive a failed sync, because they are in the journal of the file system."""

    def __init__(self, fs: FreezingFileSystem, path: str):
        super().__init__(path)
        self.fs = fs

    def sync(self) -> None:
        self.fs.before_change('sync', self.path)
        self.fs.sync_names(self.path)


class MeddlingFileSystem(ReadOnlyFileSystem):
    """A file system that calls `before_open` before it opens a file."""

    def __init__(self, before_open: Callable[[str], object]):
        self.before_open = before_open

    def open(self, path: str, create: bool = False) -> File:
        self.before_open(path)
        return super().open(path, create)
