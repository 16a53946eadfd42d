"""A partition directory read by somebody who does not own it: a tool, a reader of copied directories.

Nothing is written, locked or kept open. A broker may append, roll, compact and delete meanwhile: a file that is gone
when it is wanted is looked for again in a new listing, and what is read is what the log holds at that moment. The
indexes are hints: an entry that does not lead to its batch is not followed. They are read, not mapped, for a broker
trims them under its readers.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from kbroker.errors import CorruptLogError, ProtocolError
from kbroker.log.batch_walk import read_batches
from kbroker.log.fs import File, FileSystem
from kbroker.log.header_walk import find_end, replay_headers, seek_batch
from kbroker.log.producer_state import ProducerStateTable
from kbroker.log.segment import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, SNAPSHOT_SUFFIX, file_name
from kbroker.log.swap import SWAP_SUFFIX, SegmentFileName, parse_file_name
from kbroker.record.batch import HEADER_BYTES, BatchHeader, CorruptBatchError, read_header

T = TypeVar('T')

ENTRY_BYTES = 8
LAST_OFFSET = (1 << 63) - 1
ATTEMPTS = 20
"""How often files may vanish under one question. Each time the broker has finished a deletion or a compaction."""


class IndexEntry(NamedTuple):
    last_offset: int
    """Of the batch that begins at `position`."""
    position: int


class SegmentReader:
    """One `.log` file as it is when it is opened. OSError."""

    def __init__(self, fs: FileSystem, directory: str, base_offset: int):
        self._index_path = os.path.join(directory, file_name(base_offset, OFFSET_INDEX_SUFFIX))
        self._fs = fs
        self.base_offset = base_offset
        self.file = self._open(os.path.join(directory, file_name(base_offset, LOG_SUFFIX)))
        self.size_bytes = self.file.size()

    def _open(self, path: str) -> File:
        """A segment that compaction has finished and not yet renamed counts: the old one may be gone already."""
        try:
            return self._fs.open(path)
        except FileNotFoundError:
            return self._fs.open(path + SWAP_SUFFIX)

    def position_of(self, offset: int) -> int:
        """Where the first batch begins that ends at or above `offset`; the end of the last batch if there is none."""
        return seek_batch(self.file, self._indexed_position(offset), self.size_bytes, offset)

    def end(self) -> tuple[int, int]:
        """(where the last whole batch ends, the offset that follows it)."""
        position, next_offset = find_end(self.file, self._indexed_position(None), self.size_bytes)
        return position, self.base_offset if next_offset < 0 else next_offset

    def _indexed_position(self, offset: int | None) -> int:
        """Where the batch of the last index entry at or below `offset` begins (of the last entry at all for None)."""
        entry = self._find_entry(offset)
        if entry is None or entry.position + HEADER_BYTES > self.size_bytes:
            return 0
        try:
            header = read_header(self.file.read_at(HEADER_BYTES, entry.position))
        except CorruptBatchError:
            return 0
        return entry.position if header.last_offset == entry.last_offset else 0

    def _find_entry(self, offset: int | None) -> IndexEntry | None:
        try:
            index = self._fs.open(self._index_path)
        except OSError:
            return None
        found = None
        low, high = 0, index.size() // ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            data = index.read_at(ENTRY_BYTES, middle * ENTRY_BYTES)
            entry = IndexEntry(self.base_offset + int.from_bytes(data[:4], 'big'), int.from_bytes(data[4:], 'big'))
            # No batch at the start of a segment is indexed: zeros lie behind the last entry.
            if entry.last_offset > self.base_offset and (offset is None or entry.last_offset <= offset):
                found, low = entry, middle + 1
            else:
                high = middle
        return found


class PartitionReader:
    """Raises OSError, and CorruptLogError where bytes inside the log are no batch.

    Bytes at the end of the last segment that are no whole batch are a write that is not finished, or never was: the log
    ends before them. Checksums are not looked at.
    """

    def __init__(self, fs: FileSystem, directory: str):
        self.directory = directory
        self._fs = fs

    def base_offsets(self) -> list[int]:
        """Of the segments, in order; the first is where the files begin.

        Listed until two listings agree: one alone may miss a file that is renamed while it is made, as a compacted
        segment is that takes its final name, and the segment would be passed over in silence.
        """
        found: list[int] | None = None
        for _ in range(ATTEMPTS):
            before = found
            found = sorted({name.offset for name in self._files(LOG_SUFFIX) if name.state in ('', SWAP_SUFFIX)})
            if found == before:
                break
        return found or []

    def start_offset(self) -> int:
        """Where the files begin; the log itself may begin higher up. 0 when there is no file."""
        return next(iter(self.base_offsets()), 0)

    def end_offset(self) -> int:
        """The offset that the next record would get."""
        return self._attempt(lambda: self._last_segment_end(self.base_offsets()))

    def batches(self, start_offset: int = 0, end_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch that reaches `start_offset` and begins below `end_offset`, or the end of the log if that is
        None: also of what is appended while they are read.
        """
        offset, attempts = start_offset, 0
        while True:
            bases = self.base_offsets()
            attempts += 1
            try:
                for base_offset, next_base in _spans(bases, offset):
                    offset = max(offset, base_offset)
                    if end_offset is not None and offset >= end_offset:
                        return
                    segment = SegmentReader(self._fs, self.directory, base_offset)
                    walk = read_batches(segment.file, segment.position_of(offset), segment.size_bytes)
                    try:
                        for header, batch in walk:
                            if end_offset is not None and header.base_offset >= end_offset:
                                return
                            offset, attempts = header.last_offset + 1, 0
                            yield header, batch
                    except CorruptLogError:
                        if next_base is not None:
                            raise
                    if next_base is not None:
                        offset = max(offset, next_base)
            except FileNotFoundError:
                if attempts == ATTEMPTS:
                    raise
                continue
            if self.base_offsets()[-1:] == bases[-1:]:
                return

    def producer_state(self) -> ProducerStateTable:
        """The state of all producers at the end of the log: the newest sound snapshot, and the batches behind it.

        None has expired: that is for a broker to say, by its clock and its setting.
        """
        return self._attempt(self._replay_producers)

    def _replay_producers(self) -> ProducerStateTable:
        producers = ProducerStateTable()
        bases = self.base_offsets()
        if not bases:
            return producers
        self._load_snapshot(producers, bases[0], self._last_segment_end(bases))
        for base_offset, next_base in _spans(bases, producers.end_offset):
            segment = SegmentReader(self._fs, self.directory, base_offset)
            position = segment.position_of(producers.end_offset)
            try:
                position = replay_headers(producers, segment.file, position, segment.size_bytes)
            except ProtocolError as error:
                raise CorruptLogError(f'{segment.file.path}: found a marker that cannot be read: {error}') from error
            if next_base is not None and position != segment.size_bytes:
                raise CorruptLogError(f'{segment.file.path}: found no batch at {position}, expected one before the end '
                                      f'at {segment.size_bytes}')
        return producers

    def _load_snapshot(self, producers: ProducerStateTable, start_offset: int, end_offset: int) -> None:
        offsets = (name.offset for name in self._files(SNAPSHOT_SUFFIX) if not name.state)
        for offset in sorted((offset for offset in offsets if start_offset <= offset <= end_offset), reverse=True):
            path = os.path.join(self.directory, file_name(offset, SNAPSHOT_SUFFIX))
            try:
                producers.load_snapshot(self._fs.read_file(path), offset, 0)
                return
            except CorruptLogError:
                continue
        producers.clear(start_offset)

    def _files(self, kind: str) -> Iterator[SegmentFileName]:
        for name in self._fs.listdir(self.directory):
            parsed = parse_file_name(name)
            if parsed is not None and parsed.kind == kind and parsed.offset <= LAST_OFFSET and (
                    name == file_name(parsed.offset, kind) + parsed.state):
                yield parsed

    def _last_segment_end(self, bases: list[int]) -> int:
        if not bases:
            return 0
        return SegmentReader(self._fs, self.directory, bases[-1]).end()[1]

    def _attempt(self, question: Callable[[], T]) -> T:
        for _ in range(ATTEMPTS - 1):
            try:
                return question()
            except FileNotFoundError:
                if not self._fs.exists(self.directory):
                    raise
        return question()


def are_of_a_partition(names: Iterable[str]) -> bool:
    """Whether files with these names lie in a partition directory: one of them is a segment."""
    return any(parsed.kind == LOG_SUFFIX and parsed.state in ('', SWAP_SUFFIX)
               for name in names if (parsed := parse_file_name(name)))


def _spans(bases: list[int], offset: int) -> Iterator[tuple[int, int | None]]:
    """(base offset, that of the next segment) of the segments from the one that holds `offset` on."""
    for base_offset, next_base in zip(bases, [*bases[1:], None], strict=False):
        if next_base is None or next_base > offset:
            yield base_offset, next_base
