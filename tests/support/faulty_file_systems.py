"""A file system whose changes fail, and one that shows what a power cut leaves."""
from __future__ import annotations

import errno
import os
import pathlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kbroker.log.fs import Directory, File, FileSystem, InterposedFile


class FailingFileSystem(FileSystem):
    """A file system whose changes fail where `fail(change, path)` returns an errno.

    Changes are 'write', 'sync', 'truncate', 'rename', 'unlink', 'mkdir', and 'open' for a new file. A failing write
    reaches the file with `partial_bytes`.
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
    """Bytes of a file. Zeros at the end count only in `size`."""

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
    """The durable content of a file, and the changes that a power cut may undo, each independently of the others."""

    durable: Content = field(default_factory=Content)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(position, data), or (size, None) for a truncation."""

    def sync(self) -> None:
        for position, data in self.pending:
            apply(self.durable, position, data)
        self.pending.clear()

    def after_power_cut(self, rng: random.Random) -> Content:
        content = self.durable.copy()
        fate = rng.choice(('lost', 'kept', 'mixed'))
        for position, data in self.pending:
            if fate == 'lost' or (fate == 'mixed' and rng.random() < 0.3):
                continue
            torn = fate == 'mixed' and data is not None and rng.random() < 0.3
            apply(content, position, data[:rng.randrange(len(data) + 1)] if torn else data)
        return content


def apply(content: Content, position: int, data: bytes | None) -> None:
    if data is None:
        content.truncate(position)
    elif data:
        content.write(position, data)


DIRECTORY = object()
NameChange = Callable[[dict[str, object]], None]


class FreezingFileSystem(FileSystem):
    """A file system that records what is durable below `root`: content by file sync, names by directory sync.

    `crash` writes what a power cut may leave.
    """

    def __init__(self, root: pathlib.Path, before_sync: Callable[[str], None] = lambda path: None):
        """`before_sync` is called with the path before each sync takes effect."""
        self.root = str(root)
        self.before_sync = before_sync
        self.durable_names: dict[str, object] = {}
        self.names: dict[str, object] = {}
        self.pending_names: dict[str, list[NameChange]] = {}
        for directory, _, files in os.walk(self.root):
            self.durable_names[directory] = DIRECTORY
            for name in files:
                path = os.path.join(directory, name)
                content = pathlib.Path(path).read_bytes()
                self.durable_names[path] = Inode(Content(bytearray(content.rstrip(b'\0')), len(content)))
        self.names = dict(self.durable_names)

    def change(self, path: str, change: NameChange) -> None:
        change(self.names)
        self.pending_names.setdefault(os.path.dirname(path), []).append(change)

    def open(self, path: str, create: bool = False) -> File:
        if create and path not in self.names:
            inode = Inode()
            self.change(path, lambda names: names.__setitem__(path, inode))
        return FrozenFile(self, self.names.get(path), path, create)

    def open_directory(self, path: str) -> File:
        return FrozenDirectory(self, path)

    def mkdir(self, path: str) -> None:
        super().mkdir(path)
        self.change(path, lambda names: names.__setitem__(path, DIRECTORY))

    def rmdir(self, path: str) -> None:
        super().rmdir(path)
        self.change(path, lambda names: names.pop(path, None))

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self.change(path, lambda names: names.pop(path, None))

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)

        def move(names: dict[str, object]) -> None:
            for path in [path for path in names if path == old or path.startswith(old + '/')]:
                names[new + path[len(old):]] = names.pop(path)

        self.change(new, move)

    def sync_everything(self, path: str) -> None:
        self.before_sync(path)
        for node in self.names.values():
            if isinstance(node, Inode):
                node.sync()
        for directory in list(self.pending_names):
            self.sync_names(directory)

    def sync_names(self, directory: str) -> None:
        for change in self.pending_names.pop(directory, []):
            change(self.durable_names)

    def crash(self, destination: pathlib.Path, rng: random.Random) -> None:
        """Write what a power cut may leave to `destination`.

        Each directory keeps its names up to some change. Unsynced content is lost, kept or torn.
        """
        names = dict(self.durable_names)
        for changes in self.pending_names.values():
            for change in changes[:rng.choice((0, len(changes), rng.randrange(len(changes) + 1)))]:
                change(names)
        for path in sorted(names):
            target = destination / os.path.relpath(path, self.root)
            node = names[path]
            if os.path.dirname(path) not in names and path != self.root:
                continue
            if node is DIRECTORY:
                target.mkdir(exist_ok=True)
                continue
            assert isinstance(node, Inode)
            content = node.after_power_cut(rng)
            with target.open('wb') as file:
                file.write(content.data)
                file.truncate(content.size)


class FrozenFile(InterposedFile):
    def __init__(self, fs: FreezingFileSystem, inode: object, path: str, create: bool):
        super().__init__(path, create)
        self.fs = fs
        self.inode = inode

    def on_write(self, data: bytes, position: int) -> None:
        if isinstance(self.inode, Inode):
            self.inode.pending.append((position, data))

    def on_truncate(self, size: int) -> None:
        if isinstance(self.inode, Inode):
            self.inode.pending.append((size, None))

    def on_sync(self) -> None:
        self.fs.before_sync(self.path)
        if isinstance(self.inode, Inode):
            self.inode.sync()


class FrozenDirectory(Directory):
    def __init__(self, fs: FreezingFileSystem, path: str):
        super().__init__(path)
        self.fs = fs

    def sync(self) -> None:
        self.fs.before_sync(self.path)
        self.fs.sync_names(self.path)
