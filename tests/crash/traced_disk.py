"""The files of a process that a power cut may leave, computed from the system calls that strace recorded.

Other tests run the broker on a simulated file system. This model checks that simulation, and therefore shares no code
with it. A change is durable once a sync of its file or directory that began after the change has returned. Any other
change is in doubt: each write may be present, torn or missing, and a directory may have the names that it had after any
of these changes.
"""
from __future__ import annotations

import pathlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

TRACED = ('open,openat,creat,mkdir,mkdirat,rmdir,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlink,'
          'symlinkat,write,writev,pwrite64,pwritev,pwritev2,sendfile,copy_file_range,splice,fsync,fdatasync,syncfs,'
          'sync,truncate,ftruncate,fallocate')
LINE = re.compile(r'^(\d+) +(\d+\.\d+) (.*)$')
RESUMED = re.compile(r'^<\.\.\. \w+ resumed>(.*)$')
CALL = re.compile(r'^(\w+)\((.*)\) += (-?\d+|\?)(.*)$')
DESCRIPTOR = re.compile(r'^(\d+)<([^>]*)>')
STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
UNFINISHED = ' <unfinished ...>'


def strace_of(trace: pathlib.Path) -> list[str]:
    """Return the command-line words that run a command under strace. The traced process remains the test's child, and
    strace ends with it.
    """
    return ['strace', '-D', '-f', '-ttt', '-y', '-xx', '-s', '100000000', '-o', str(trace),
            '-e', f'trace={TRACED}', '--']


@dataclass
class Call:
    """A system call that has returned: its line, the line at which it began, and the time at which it began."""

    name: str
    arguments: str
    result: int
    line: int
    began: int
    time_s: float


def calls_in(trace: pathlib.Path) -> Iterator[Call]:
    """Yield the successful calls in the order in which they returned."""
    begun: dict[str, tuple[str, int, float]] = {}
    for number, line in enumerate(trace.read_text().splitlines()):
        found = LINE.match(line)
        assert found is not None, line[:200]
        pid, time_s, text = found[1], float(found[2]), found[3]
        began = number
        if text.endswith(UNFINISHED):
            begun[pid] = text.removesuffix(UNFINISHED), number, time_s
            continue
        if resumed := RESUMED.match(text):
            start, began, time_s = begun.pop(pid)
            text = start + resumed[1]
        if text.startswith(('+++', '---')):
            continue
        call = CALL.match(text)
        assert call is not None, text[:200]
        if call[3] != '?' and int(call[3]) >= 0:
            yield Call(call[1], call[2], int(call[3]), number, began, time_s)


def decoded(text: str) -> bytes:
    return bytes.fromhex(text.replace('\\x', ''))


@dataclass(eq=False)
class Node:
    """A file or a directory. `names` are the current entries of a directory, as the process sees them."""

    is_directory: bool
    names: dict[str, Node] = field(default_factory=dict)


@dataclass
class Change:
    """A change of a node, and the step at which it returned.

    For a file, `data` are the bytes at `position`, or None if `position` is the new size. For a directory, `entries`
    are names with their nodes, or with None if the name was removed.
    """

    node: Node
    step: int
    position: int = 0
    data: bytes | None = None
    entries: tuple[tuple[str, Node | None], ...] = ()
    durable_at: int | None = None
    """The step after which no power cut can undo the change."""


class TracedDisk:
    """All changes below a directory. The directory was created during the first trace."""

    def __init__(self, root: pathlib.Path):
        self._root = str(root)
        self._real_root = str(root.resolve())
        self._top = Node(True)
        self._changes: list[Change] = []
        self._undecided: dict[Node, list[Change]] = {}
        self._open: dict[int, Node] = {}
        self._ends: dict[int, int] = {}
        self.times_s: list[float] = []
        """The time of each step. A step is a system call that the model uses."""

    def add(self, trace: pathlib.Path) -> None:
        """Add the trace of a process. The process must have started after the processes of all added traces ended."""
        self._open.clear()
        self._ends.clear()
        returned = [(-1, len(self.times_s) - 1)]    # the processes before have ended
        for call in calls_in(trace):
            if self._apply(call, returned):
                returned.append((call.line, len(self.times_s)))
                self.times_s.append(call.time_s)

    # ---- the calls ----

    def _apply(self, call: Call, returned: list[tuple[int, int]]) -> bool:
        """Apply a call. Return whether it concerns the directory. `returned` has (line, step) of each earlier call."""
        kind = call.name
        if kind in ('fsync', 'fdatasync', 'syncfs', 'sync'):
            return self._sync(call, returned)
        if kind in ('write', 'pwrite64', 'writev', 'pwritev', 'pwritev2', 'ftruncate', 'fallocate', 'sendfile',
                    'copy_file_range', 'splice'):
            return self._change_content(call)
        paths = [decoded(text).decode() for text in STRING.findall(re.sub(r'<[^>]*>', '', call.arguments))]
        if kind in ('open', 'openat', 'creat'):
            return self._note_opened(call, paths[0])
        paths = [path for path in paths if self._holds(path)]
        if not paths:
            return False
        if kind == 'mkdir':
            if paths[0] != self._root:
                self._change_names((paths[0], Node(True)))
        elif kind in ('rmdir', 'unlink') or (kind == 'unlinkat' and len(paths) == 1):
            self._change_names((paths[0], None))
        elif kind == 'rename':
            old, new = (path.rpartition('/') for path in paths)
            assert old[0] == new[0], 'a rename between directories'
            self._change_names((paths[1], self._find(paths[0])), (paths[0], None))
        else:
            raise AssertionError(f'a call that the model does not know: {kind}({call.arguments[:200]})')
        return True

    def _holds(self, path: str) -> bool:
        return path == self._root or path.startswith(self._root + '/')

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._top
        for name in path[len(self._root):].strip('/').split('/'):
            node = node if not name else node.names.get(name) if node is not None else None
        return node

    def _note_opened(self, call: Call, path: str) -> bool:
        if not self._holds(path):
            self._open.pop(call.result, None)
            return False
        node, is_new = self._find(path), False
        if node is None:
            assert 'O_CREAT' in call.arguments, f'{path} is unknown'
            node, is_new = Node(False), True
            self._change_names((path, node))
        elif 'O_TRUNC' in call.arguments:
            self._add(Change(node, len(self.times_s)))
            is_new = True
        assert 'O_APPEND' not in call.arguments
        self._open[call.result] = node
        self._ends[call.result] = 0
        return is_new

    def _opened(self, call: Call) -> tuple[int, Node | None]:
        """Return the first descriptor of a call, and its file or directory. The second is None if the file is not below
        the root. The traces have no calls of close, so a known descriptor may have become that of a socket or a pipe.
        The path that strace prints shows this.
        """
        found = DESCRIPTOR.match(call.arguments)
        assert found is not None, call.arguments[:200]
        path = decoded(found[2]).decode() if found[2].startswith('\\x') else found[2]
        is_below = f'{path}/'.startswith(f'{self._real_root}/')
        return int(found[1]), self._open.get(int(found[1])) if is_below else None

    def _change_content(self, call: Call) -> bool:
        descriptor, node = self._opened(call)
        if node is None:
            return False
        numbers = [int(text) for text in re.findall(r', (\d+)(?=, |$)', re.sub(STRING, '""', call.arguments))]
        if call.name == 'ftruncate':
            self._add(Change(node, len(self.times_s), numbers[0]))
        elif call.name == 'fallocate':
            assert 'KEEP_SIZE' in call.arguments
            return False
        else:
            assert call.name in ('write', 'writev', 'pwrite64', 'pwritev'), call.name
            data = b''.join(map(decoded, STRING.findall(call.arguments)))[:call.result]
            assert len(data) == call.result
            position = numbers[-1] if call.name.startswith('p') else self._ends[descriptor]
            self._ends[descriptor] = position + len(data)
            self._add(Change(node, len(self.times_s), position, data))
        return True

    def _change_names(self, *entries: tuple[str, Node | None]) -> None:
        """Apply one change to the names of a directory. `entries` are pairs of a path and its node."""
        directory = self._find(entries[0][0].rpartition('/')[0])
        assert directory is not None, entries
        change = Change(directory, len(self.times_s), entries=tuple(
            (path.rpartition('/')[2], entry) for path, entry in entries))
        for name, entry in change.entries:
            directory.names.pop(name, None)
            if entry is not None:
                directory.names[name] = entry
        self._add(change)

    def _add(self, change: Change) -> None:
        self._changes.append(change)
        self._undecided.setdefault(change.node, []).append(change)

    def _sync(self, call: Call, returned: list[tuple[int, int]]) -> bool:
        """Mark as durable the changes of the synced file or directory that had returned before the sync began."""
        step = next(step for line, step in reversed(returned) if line < call.began)
        if call.name in ('syncfs', 'sync'):
            nodes = list(self._undecided)
        else:
            _, node = self._opened(call)
            nodes = [] if node is None else [node]
        for node in nodes:
            waiting = self._undecided.pop(node, [])
            for change in waiting:
                if change.step <= step:
                    change.durable_at = len(self.times_s)
            if left := [change for change in waiting if change.durable_at is None]:
                self._undecided[node] = left
        return bool(nodes)

    # ---- power cuts ----

    def cut(self, step: int, destination: pathlib.Path, rng: random.Random) -> None:
        """Write the files that a power cut after `step` may leave."""
        self._cut(step, destination, rng.choice(('nothing', 'everything', 'anything', 'anything')), rng)

    def rebuild(self, destination: pathlib.Path) -> None:
        """Write the files that the process left at its end."""
        self._cut(len(self.times_s), destination, 'everything', random.Random(0))

    def _cut(self, step: int, destination: pathlib.Path, weather: str, rng: random.Random) -> None:
        by_node: dict[Node, list[Change]] = {}
        for change in self._changes:
            if change.step > step:
                break
            by_node.setdefault(change.node, []).append(change)
        self._write(self._top, step, destination, by_node, weather, rng)

    def _write(self, directory: Node, step: int, destination: pathlib.Path, by_node: dict[Node, list[Change]],
               weather: str, rng: random.Random) -> None:
        destination.mkdir()
        changes = by_node.get(directory, [])
        sure = max((index for index, change in enumerate(changes) if is_durable(change, step)), default=-1) + 1
        kept = {'nothing': sure, 'everything': len(changes)}.get(weather, rng.randint(sure, len(changes)))
        names: dict[str, Node | None] = {}
        for change in changes[:kept]:
            names.update(change.entries)
        for name, node in sorted(names.items()):
            if node is None:
                continue
            if node.is_directory:
                self._write(node, step, destination / name, by_node, weather, rng)
            else:
                (destination / name).write_bytes(content_after(by_node.get(node, []), step, weather, rng))


def is_durable(change: Change, step: int) -> bool:
    return change.durable_at is not None and change.durable_at <= step


def content_after(changes: list[Change], step: int, weather: str, rng: random.Random) -> bytes:
    content = bytearray()
    for change in changes:
        data = change.data
        if not is_durable(change, step) and weather != 'everything':
            fate = 0.0 if weather == 'nothing' else rng.random()
            if fate < 0.3:
                continue
            if fate < 0.6 and data is not None:
                data = data[:rng.randint(0, len(data))]
        if data is None:
            del content[change.position:]
            content.extend(bytes(change.position - len(content)))
        elif data:
            content.extend(bytes(max(0, change.position - len(content))))
            content[change.position:change.position + len(data)] = data
    return bytes(content)
