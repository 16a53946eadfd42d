"""Reads a partition directory that another process may own, for tools. The reader writes, locks and keeps open no file.

A broker may append, roll, compact and delete during a read. If a file has vanished, the reader lists the directory
again and continues with the files that now exist.

The reader uses index entries only as hints, and ignores an entry that does not lead to its batch. It does not map
indexes into memory, because a broker may trim them at any time.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from kbroker.base.errors import CorruptLogError
from kbroker.log.batch_walk import read_batches
from kbroker.log.formats import OFFSET_ENTRY
from kbroker.log.fs import File, FileSystem
from kbroker.log.header_walk import find_end, read_headers, replay_headers, seek_batch
from kbroker.log.producer_state import ProducerStateTable
from kbroker.log.segment import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, SNAPSHOT_SUFFIX, file_name
from kbroker.log.swap import SWAP_SUFFIX, SegmentFileName, parse_file_name
from kbroker.record.batch import HEADER_BYTES, BatchHeader, CorruptBatchError, read_header

T = TypeVar('T')
Bytes = TypeVar('Bytes', memoryview, memoryview | None)

LAST_OFFSET = (1 << 63) - 1
ATTEMPTS = 20
"""The maximum number of times that files may vanish during one call. Each time, a broker has finished a deletion or a
compaction.
"""


class IndexEntry(NamedTuple):
    last_offset: int
    """An entry of an `.index`: the last offset of a batch, and the position at which the batch begins."""
    position: int


class SegmentReader:
    """Reads one `.log` file, up to the size that it had when it was opened. Methods raise OSError."""

    def __init__(self, fs: FileSystem, directory: str, base_offset: int):
        self._index_path = os.path.join(directory, file_name(base_offset, OFFSET_INDEX_SUFFIX))
        self._fs = fs
        self.base_offset = base_offset
        self.file = self._open(os.path.join(directory, file_name(base_offset, LOG_SUFFIX)))
        self.size_bytes = self.file.size()

    def _open(self, path: str) -> File:
        """Open the `.log` file. If it is missing, open its `.swap` file: a compaction may have removed the old segment
        before the new one gets its final name.
        """
        try:
            return self._fs.open(path)
        except FileNotFoundError:
            return self._fs.open(path + SWAP_SUFFIX)

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch whose last offset is at or above `offset`. If there is none, return
        the position behind the last batch.
        """
        return seek_batch(self.file, self._indexed_position(offset), self.size_bytes, offset)

    def end(self) -> tuple[int, int]:
        """Return the position behind the last whole batch, and the next offset after this batch."""
        position, next_offset = find_end(self.file, self._indexed_position(None), self.size_bytes)
        return position, self.base_offset if next_offset < 0 else next_offset

    def _indexed_position(self, offset: int | None) -> int:
        """Return the position in the last index entry at or below `offset`, or in the last entry if `offset` is
        None."""
        entry = self._find_entry(offset)
        if entry is None or not 0 <= entry.position <= self.size_bytes - HEADER_BYTES:
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
        low, high = 0, index.size() // OFFSET_ENTRY.size
        while low < high:
            middle = (low + high) // 2
            data = index.read_at(OFFSET_ENTRY.size, middle * OFFSET_ENTRY.size)
            if len(data) < OFFSET_ENTRY.size:       # a broker has trimmed the file since it was opened
                high = middle
                continue
            relative_offset, position = OFFSET_ENTRY.unpack(data)
            entry = IndexEntry(self.base_offset + relative_offset, position)
            # Skip an entry of zeros, which is behind the last entry: the first batch of a segment is never indexed.
            if entry.last_offset > self.base_offset and (offset is None or entry.last_offset <= offset):
                found, low = entry, middle + 1
            else:
                high = middle
        return found


class PartitionReader:
    """Reads a partition directory without owning it. Methods raise OSError, and CorruptLogError for damage.

    If the last segment ends in bytes that are not a whole batch, they are an unfinished write, and the log ends before
    them. Checksums are not verified.
    """

    def __init__(self, fs: FileSystem, directory: str):
        self.directory = directory
        self._fs = fs

    def base_offsets(self) -> list[int]:
        """Return the base offsets of the segments, in ascending order.

        List the directory until two listings agree. A single listing may miss a file that is being renamed, for example
        a compacted segment that gets its final name. The reader would then skip the segment silently.
        """
        found: list[int] | None = None
        for _ in range(ATTEMPTS):
            before = found
            found = sorted({name.offset for name in self._files(LOG_SUFFIX) if name.state in ('', SWAP_SUFFIX)})
            if found == before:
                break
        return found or []

    def start_offset(self) -> int:
        """Return the base offset of the first segment, 0 if there is none. The log start offset may be higher."""
        return next(iter(self.base_offsets()), 0)

    def size_bytes(self) -> int:
        """Return the sum of the sizes of the `.log` files."""
        return self._attempt(lambda: sum(SegmentReader(self._fs, self.directory, base).size_bytes
                                         for base in self.base_offsets()))

    def end_offset(self) -> int:
        """Return the offset that the next appended record gets."""
        return self._attempt(lambda: self._last_segment_end(self.base_offsets()))

    def batches(self, start_offset: int = 0, end_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield every batch that overlaps [`start_offset`, `end_offset`). If `end_offset` is None, read to the end of
        the log, including batches that are appended during the iteration.
        """
        return self._walk(read_batches, start_offset, end_offset)

    def headers(self, start_offset: int = 0,
                end_offset: int | None = None) -> Iterator[tuple[BatchHeader, memoryview | None]]:
        """Yield the headers of the same batches as `batches`, with None instead of the bytes of a batch. Only markers,
        and batches that begin below `start_offset`, come with their bytes.
        """
        def walk(file: File, position: int, end: int) -> Iterator[tuple[BatchHeader, memoryview | None]]:
            return read_headers(file, position, end, start_offset)

        return self._walk(walk, start_offset, end_offset)

    def _walk(self, read: Callable[[File, int, int], Iterable[tuple[BatchHeader, Bytes]]], start_offset: int,
              end_offset: int | None) -> Iterator[tuple[BatchHeader, Bytes]]:
        """Yield what `read` yields for each segment, within the offsets that `batches` describes."""
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
                    walk = read(segment.file, segment.position_of(offset), segment.size_bytes)
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
        """Return the state of all producers at the end of the log. It is built from the newest sound snapshot and the
        batches after it.

        Expired producers are included, because expiry depends on the clock and the configuration of a broker.
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
            position = replay_headers(producers, segment.file, position, segment.size_bytes)
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
    """Return whether the file names are those of a partition directory: whether one of them is the name of a segment
    file.
    """
    return any(parsed.kind == LOG_SUFFIX and parsed.state in ('', SWAP_SUFFIX)
               for name in names if (parsed := parse_file_name(name)))


def _spans(bases: list[int], offset: int) -> Iterator[tuple[int, int | None]]:
    """Yield (base offset, base offset of the next segment) of each segment, beginning with the segment that contains
    `offset`. The second value is None for the last segment.
    """
    for base_offset, next_base in zip(bases, [*bases[1:], None], strict=False):
        if next_base is None or next_base > offset:
            yield base_offset, next_base
