"""Reads and writes Kafka's small text files: a version line, a count line, then one row per line.

`recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`, `replication-offset-checkpoint` and
`cleaner-offset-checkpoint` hold rows `topic partition offset`; a log directory has one of each.
`leader-epoch-checkpoint` holds rows `epoch start_offset`; each partition directory has one.
"""
from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from kbroker.base.errors import CorruptLogError
from kbroker.base.long_work import LongWork, run_to_end
from kbroker.base.topic_partition import TopicPartition
from kbroker.log.fs import FileSystem
from kbroker.log.jobs import Sync

if TYPE_CHECKING:
    from kbroker.log.log import Log

logger = logging.getLogger(__name__)

VERSION = '0'

RECOVERY_POINT_FILE = 'recovery-point-offset-checkpoint'
LOG_START_OFFSET_FILE = 'log-start-offset-checkpoint'
HIGH_WATERMARK_FILE = 'replication-offset-checkpoint'
CLEANER_FILE = 'cleaner-offset-checkpoint'
LEADER_EPOCH_FILE = 'leader-epoch-checkpoint'

PartitionOffsets = dict[TopicPartition, int]
OffsetOf = Callable[['Log'], 'int | None']
"""Returns the offset that a checkpoint must hold for a log, or None to omit the log."""
ROWS_AT_ONCE = 128
"""The number of rows that one part of long work encodes."""
ROWS_COMPARED_AT_ONCE = 2048
LOGS_AT_ONCE = 64
"""The number of logs whose offsets one part of long work reads."""
LOGS_COMPARED_AT_ONCE = 2048


def read_rows(fs: FileSystem, path: str, columns: int, *, may_be_torn: bool = False) -> list[list[str]]:
    """Return the rows, split at spaces; [] for a missing or empty file. Raise CorruptLogError if the format is wrong.
    If the file `may_be_torn`, also raise it if the last line has no line break: its last number may lack digits.
    """
    if not fs.exists(path):
        return []
    content = fs.read_file(path).decode('utf-8', 'replace')
    lines = content.splitlines()
    if len(lines) < 2:
        return []
    if lines[0].strip() != VERSION:
        raise CorruptLogError(f'{path}: found version {lines[0]!r}, expected {VERSION!r}')
    if may_be_torn and not content.endswith('\n'):
        raise CorruptLogError(f'{path}: found {lines[-1]!r} at the end, expected a line break after it')
    rows = [line.split() for line in lines[2:]]
    if not lines[1].strip().isdecimal() or int(lines[1]) != len(rows):
        raise CorruptLogError(f'{path}: found {len(rows)} rows, expected {lines[1]!r}')
    for number, row in enumerate(rows, 3):
        if len(row) != columns:
            raise CorruptLogError(f'{path}: found {" ".join(row)!r} in line {number}, expected {columns} fields')
    return rows


def encode_rows(rows: list[str]) -> bytes:
    return '\n'.join((VERSION, str(len(rows)), *rows, '')).encode()


def parse_number(path: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CorruptLogError(f'{path}: found {text!r}, expected a number') from None


def read_partition_offsets(fs: FileSystem, directory: str, name: str) -> PartitionOffsets:
    """Return {(topic, partition): offset} from a checkpoint file. Raise CorruptLogError if the file is damaged."""
    path = os.path.join(directory, name)
    return {(topic, parse_number(path, partition)): parse_number(path, offset)
            for topic, partition, offset in read_rows(fs, path, 3)}


def read_found(fs: FileSystem, directory: str, name: str) -> PartitionOffsets:
    """Return the offsets in a checkpoint file, or {} if the file is damaged. Raise OSError."""
    try:
        return read_partition_offsets(fs, directory, name)
    except CorruptLogError as error:
        logger.error('%s; treated as empty', error)
        return {}


def encode_partition_offsets(offsets: PartitionOffsets) -> bytes:
    """Return the content of a checkpoint file, with rows sorted by topic and partition."""
    return run_to_end(encode_in_steps(dict(sorted(offsets.items()))))


def encode_in_steps(offsets: PartitionOffsets) -> Generator[None, None, bytes]:
    """Return the content of a checkpoint file, with rows in the order of `offsets`. Yield after each small part."""
    parts = [encode_rows([])[:-2] + f'{len(offsets)}\n'.encode()]
    rows = iter(offsets.items())
    while part := list(islice(rows, ROWS_AT_ONCE)):
        parts.append(''.join([f'{topic} {partition} {offset}\n' for (topic, partition), offset in part]).encode())
        if len(part) == ROWS_AT_ONCE:       # few offsets are encoded at once
            yield
    return b''.join(parts)


def are_equal(offsets: PartitionOffsets, others: PartitionOffsets) -> Generator[None, None, bool]:
    """Return whether two mappings have equal offsets. Yield after each small part."""
    if len(offsets) != len(others):
        return False
    for number, (partition, offset) in enumerate(offsets.items(), 1):
        if others.get(partition) != offset:
            return False
        if number % ROWS_COMPARED_AT_ONCE == 0:
            yield
    return True


def write_partition_offsets(fs: FileSystem, directory: str, name: str, offsets: PartitionOffsets) -> None:
    """Replace a checkpoint file atomically and durably."""
    fs.write_file_atomically(os.path.join(directory, name), encode_partition_offsets(offsets))


class CheckpointFiles:
    """The checkpoint files of a log directory. A file is replaced only if its content would change."""

    def __init__(self, fs: FileSystem, directory: str, sync: Sync, on_error: Callable[[str, OSError], object]):
        """Create. If a file cannot be written, `on_error` is called with its name and the error."""
        self._fs = fs
        self._directory = directory
        self._sync = sync
        self._on_error = on_error
        self._written: dict[str, PartitionOffsets] = {}
        """Maps the name of each file to its content."""
        self._syncing: dict[str, PartitionOffsets] = {}
        """Maps each file that is being synced to its new content."""
        self._is_given_up = False
        self.writes: dict[str, int] = {}
        """Maps the name of each file to the number of times that this process has written it durably."""

    def write(self, name: str, offsets: PartitionOffsets, content: bytes | None = None) -> bool:
        """Replace a file durably before returning, even if `begin` is syncing it. Return whether that succeeded.

        The broker calls this when it stops, and when it creates a partition whose name the file may still contain.
        `content` is the encoded `offsets`; if it is None, this function encodes them.
        """
        self._syncing.pop(name, None)
        if self._written.get(name) == offsets:
            return True
        try:
            self._fs.write_file_atomically(
                self._path(name), encode_partition_offsets(offsets) if content is None else content)
        except OSError as error:
            self._on_error(name, error)
            return False
        self._written[name] = offsets
        self._count(name)
        return True

    def begin(self, name: str, offsets: PartitionOffsets, done: Callable[[], None]) -> Generator[None, None, None]:
        """Replace a file like `write`, but encode it in steps and let `sync` make it durable. Call `done` after the
        sync. Do nothing while an earlier sync of the file is running, or after `give_up`.
        """
        if name in self._syncing or self._is_given_up:
            return
        self._syncing[name] = offsets
        written = self._written.get(name)
        is_written = written is not None and (yield from are_equal(offsets, written))
        if self._syncing.get(name) is not offsets:
            return
        if is_written and self._written.get(name) is written:
            del self._syncing[name]
            done()
            return
        content = yield from encode_in_steps(offsets)
        if self._syncing.get(name) is not offsets:
            return
        try:
            file = self._fs.write_file(self._path(name) + '.tmp', content)
        except OSError as error:
            self._end(name, offsets, done, error)
        else:
            self._sync([file], partial(self._rename, name, offsets, done))

    def written(self, name: str, found: PartitionOffsets) -> PartitionOffsets:
        """Return the content of a file. This is `found`, which the start read from the file, unless this process has
        written the file since then.
        """
        return self._written.get(name, found)

    def give_up(self) -> None:
        """Abandon the files that are being synced, and write no further files."""
        self._is_given_up = True
        self._syncing.clear()

    def _rename(self, name: str, offsets: PartitionOffsets, done: Callable[[], None], error: OSError | None) -> None:
        if self._syncing.get(name) is not offsets:
            return
        try:
            if error is not None:
                raise error
            self._written.pop(name, None)
            self._fs.rename(self._path(name) + '.tmp', self._path(name))
            directory = self._fs.open_directory(self._directory)
        except OSError as met:
            self._end(name, offsets, done, met)
        else:
            self._sync([directory], partial(self._end, name, offsets, done))

    def _end(self, name: str, offsets: PartitionOffsets, done: Callable[[], None], error: OSError | None) -> None:
        if self._syncing.get(name) is not offsets:
            return
        del self._syncing[name]
        if error is None:
            self._written[name] = offsets
            self._count(name)
            done()
        else:
            self._on_error(name, error)

    def _count(self, name: str) -> None:
        self.writes[name] = self.writes.get(name, 0) + 1

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


class OffsetCheckpoint:
    """A checkpoint file, which has an offset for each log."""

    def __init__(self, files: CheckpointFiles, name: str, found: PartitionOffsets, logs: dict[TopicPartition, Log],
                 offset_of: OffsetOf, long_work: LongWork):
        """Create; `found` has the offsets that the start read from the file. Offsets of partitions without a log stay
        in the file."""
        self.name = name
        self.found = found
        self._files = files
        self._logs = logs
        self._offset_of = offset_of
        self._long_work = long_work
        self._stale: set[TopicPartition] = set()
        """The deleted partitions that the file may still contain."""
        self._is_reading = False

    def forget(self, key: TopicPartition) -> None:
        """Drop the offset that the start read from the file for a partition."""
        if self.found.pop(key, None) is not None:
            self._stale.add(key)

    def remove(self, key: TopicPartition) -> None:
        """Note that a partition was deleted. The file still contains the partition until the next write of the file."""
        self.found.pop(key, None)
        self._stale.add(key)

    def may_contain(self, keys: Iterable[TopicPartition]) -> bool:
        """Return whether the file may still contain the row of a deleted partition whose name is in `keys`."""
        return bool(self._stale) and any(key in self._stale for key in keys)

    def written(self, log: Log) -> int:
        """Return the offset that the file has for a log, 0 if it has none."""
        return self._files.written(self.name, self.found).get((log.topic, log.partition), 0)

    def write(self) -> bool:
        """Write the file durably. Return whether that succeeded."""
        return run_to_end(self.write_in_parts())

    def write_in_parts(self) -> Generator[None, None, bool]:
        """Write the file like `write`, but as a generator that yields after each small part."""
        stale = set(self._stale)
        offsets = yield from self._offsets()
        content = yield from encode_in_steps(offsets)
        is_written = self._files.write(self.name, offsets, content)
        if is_written:
            self._stale -= stale
        return is_written

    def begin(self) -> None:
        """Start writing the file as long work, without waiting for the disk.

        Do nothing while an earlier call is still reading the offsets.
        """
        if not self._is_reading:
            self._is_reading = True
            self._long_work.start(self.replace())

    def replace(self) -> Generator[None, None, None]:
        """Read the offsets of the logs, and write them to the file without waiting for its sync."""
        stale = set(self._stale)
        offsets = yield from self._offsets()
        yield from self._files.begin(self.name, offsets, partial(self._stale.difference_update, stale))
        self._is_reading = False

    def _offsets(self) -> Generator[None, None, PartitionOffsets]:
        """Return the content of the file: the offset of each log, and the offsets that the start found for partitions
        without a log.
        """
        offsets = dict(self.found)
        keys, logs = list(self._logs), list(self._logs.values())    # two lists: pairs would be new tuples
        for number, (key, log) in enumerate(zip(keys, logs, strict=True), 1):
            offset = self._offset_of(log)
            if offset is None:
                offsets.pop(key, None)
            else:
                offsets[key] = offset
            if number % LOGS_AT_ONCE == 0:
                yield
        for number, (key, log) in enumerate(zip(keys, logs, strict=True), 1):
            if self._logs.get(key) is not log:      # deleted since the listing; later deletions are in `_stale`
                offsets.pop(key, None)
            if number % LOGS_COMPARED_AT_ONCE == 0:
                yield
        return offsets
