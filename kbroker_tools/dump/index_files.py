"""Readers of index files and producer snapshots for a dump.

Entries of an `.index`, `.timeindex` or `.txnindex` and producers of a `.snapshot` are read one by one. The readers
write nothing. (Kafka's tool truncates an `.index` that ends with half an entry.)

A missing `.txnindex` is an error. (Kafka's tool treats it as an empty file.) The version of an entry in a `.txnindex`
is read as an int16. (Kafka's tool reads only one byte of the version.)
"""
from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from struct import Struct
from typing import Any, NamedTuple

from kbroker.base.errors import CorruptLogError
from kbroker.log.formats import (
    OFFSET_ENTRY,
    SNAPSHOT_CRC_FROM,
    SNAPSHOT_ENTRY_BYTES,
    SNAPSHOT_HEAD_BYTES,
    SNAPSHOT_VERSION,
    TIME_ENTRY,
    TRANSACTION_ENTRY,
    TRANSACTION_ENTRY_VERSION,
    offset_columns,
    snapshot_entry,
    snapshot_head,
    whole_entries,
)
from kbroker.wire.crc32c import crc32c
from kbroker_tools.dump import files
from kbroker_tools.dump.error_report import absolute
from kbroker_tools.dump.options import MAX_INT32

MOST_READ_BYTES = 1 << 30
"""The most bytes of a file that is read into memory as a whole."""
BLOCK_ENTRIES = 8192


# ---- entries

class OffsetEntry(NamedTuple):
    offset: int
    position: int


class TimeEntry(NamedTuple):
    timestamp_ms: int
    offset: int


class TransactionRow(NamedTuple):
    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class LastBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int


class SnapshotProducer(NamedTuple):
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    transaction_first_offset: int | None
    last_timestamp_ms: int
    last_batch: LastBatch | None
    """The last batch that the producer wrote. None if the producer wrote only a marker."""


def transaction_rows(path: str) -> Iterator[TransactionRow]:
    """Yield the entries of a `.txnindex`. Omit an incomplete entry at the end. Raise CorruptLogError if an entry has an
    unknown version, and OSError if the file cannot be read."""
    base_offset_of(path)
    for number, fields in enumerate(_read_entries(path, TRANSACTION_ENTRY)):
        row = TransactionRow(*fields)
        if row.version != TRANSACTION_ENTRY_VERSION:
            raise CorruptLogError(f'{path}: found version {row.version} in entry {number}, '
                                  f'expected {TRANSACTION_ENTRY_VERSION}')
        yield row


def snapshot_producers(path: str) -> list[SnapshotProducer]:
    """Return the producers of a `.snapshot`. Raise CorruptLogError if it is damaged, and OSError if it cannot be read.

    The messages have Kafka's words, but they name the sizes for which Kafka's messages have `null`.
    """
    with open(path, 'rb') as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > MOST_READ_BYTES:
            raise CorruptLogError(f'{path}: found {size_bytes} bytes, expected at most {MOST_READ_BYTES}')
        data = file.read()
    head = snapshot_head(data.ljust(SNAPSHOT_HEAD_BYTES, b'\0'))
    if len(data) >= 2 and head['version'] != SNAPSHOT_VERSION:
        raise CorruptLogError('Snapshot failed schema validation: Snapshot contained an unknown file version '
                              f'{head["version"]}')
    if len(data) < SNAPSHOT_HEAD_BYTES:
        raise CorruptLogError(f'Snapshot failed schema validation: found {len(data)} bytes, expected '
                              f'{SNAPSHOT_HEAD_BYTES}')
    if head['count'] < 0:
        raise CorruptLogError('Snapshot failed schema validation: non-nullable field producerEntries was serialized '
                              'as null')
    end = SNAPSHOT_HEAD_BYTES + head['count'] * SNAPSHOT_ENTRY_BYTES
    if len(data) < end:
        raise CorruptLogError(f'Snapshot failed schema validation: found {len(data)} bytes, expected {end}')
    computed_crc = crc32c(memoryview(data)[SNAPSHOT_CRC_FROM:])
    if head['crc'] != computed_crc:
        raise CorruptLogError(f'Snapshot is corrupt (CRC is no longer valid). Stored crc: {head["crc"]}. '
                              f'Computed crc: {computed_crc}')
    return [_snapshot_producer(snapshot_entry(data, number)) for number in range(head['count'])]


def _snapshot_producer(entry: dict[str, int]) -> SnapshotProducer:
    batch = None
    if entry['last_offset'] >= 0:
        first_sequence = entry['last_sequence'] - entry['offset_delta']
        if first_sequence < 0:                      # sequences wrap after the highest int32
            first_sequence += MAX_INT32 + 1
        batch = LastBatch(first_sequence, entry['last_sequence'], entry['last_offset'], entry['offset_delta'])
    first_offset = entry['transaction_first_offset']
    return SnapshotProducer(entry['producer_id'], entry['producer_epoch'], entry['coordinator_epoch'],
                            first_offset if first_offset >= 0 else None, entry['timestamp_ms'], batch)


def base_offset_of(path: str) -> int:
    """Return the offset at the beginning of a segment file's name. Raise CorruptLogError if the name does not begin
    with an offset."""
    offset = files.base_offset_of(path)
    if offset is None:
        raise CorruptLogError(f'{path}: found {os.path.basename(path).partition(".")[0]!r} before the suffix, expected '
                              'the offset of a segment in digits')
    return offset


def _read_entries(path: str, entry: Struct) -> Iterator[tuple[Any, ...]]:
    """Yield the complete entries of a file. The file is read in blocks."""
    with open(path, 'rb') as file:
        while block := file.read(BLOCK_ENTRIES * entry.size):
            yield from whole_entries(entry, block)


class IndexFile:
    """An index file that is opened for reading. This is the common part of offset indexes and time indexes."""

    layout: Struct
    offset_field: int
    """The index of the field with the relative offset in an entry: 0 or 1."""
    title: str
    """Kafka's name for this kind of file in error messages."""

    def __init__(self, path: str):
        """Open the file. Raise CorruptLogError if its name has no offset, and OSError if it cannot be read."""
        self.path = path
        self.base_offset = base_offset_of(path)
        self.size_bytes = os.stat(path).st_size
        self.entries = self.size_bytes // self.layout.size

    def used(self) -> Iterator[tuple[int, int]]:
        """Yield the fields of each entry, up to the zeros at the end of the file. The index of an active segment ends
        with zeros."""
        for number, fields in enumerate(_read_entries(self.path, self.layout)):
            if fields[self.offset_field] == 0 and number > 0:
                return
            yield fields[0], fields[1]

    def check(self) -> None:
        """Make the checks that a broker makes before it uses the index. Raise CorruptLogError with Kafka's message if
        one fails."""
        path = absolute(self.path)
        if self.entries:
            self.check_last(path, self._last())
        if self.size_bytes % self.layout.size:
            raise CorruptLogError(f'{self.title} {path} is corrupt, found {self.size_bytes} bytes which is neither '
                                  f'positive nor a multiple of {self.layout.size}')

    def check_last(self, path: str, last: tuple[Any, ...]) -> None:
        """Raise CorruptLogError if the last entry has an offset or a timestamp below that of the start of the index.
        Each kind of index has its own comparison."""
        raise NotImplementedError(f'{type(self).__name__} has no rule for its last entry')

    def _last(self) -> tuple[Any, ...]:
        with open(self.path, 'rb') as file:
            file.seek((self.entries - 1) * self.layout.size)
            return self.layout.unpack(file.read(self.layout.size))


class OffsetIndexFile(IndexFile):
    """An `.index` file."""

    layout = OFFSET_ENTRY
    offset_field = 0
    title = 'Index file'

    def __iter__(self) -> Iterator[OffsetEntry]:
        return (OffsetEntry(self.base_offset + relative_offset, position) for relative_offset, position in self.used())

    def check_last(self, path: str, last: tuple[Any, ...]) -> None:
        relative_offset, _ = last
        if relative_offset < 0:
            raise CorruptLogError(f'Corrupt index found, index file {path} has non-zero size but the last offset is '
                                  f'{self.base_offset + relative_offset} which is less than the base offset '
                                  f'{self.base_offset}')

    def position_for(self, offset: int) -> int:
        """Return the position of the last entry whose offset is at most `offset`, or 0 without such an entry. A search
        for the batch of `offset` begins at this position."""
        offsets, positions = self._columns
        number = bisect_right(offsets, offset - self.base_offset)
        return positions[number - 1] if number else 0

    @cached_property
    def _columns(self) -> tuple[array[int], array[int]]:
        """Return two arrays of four-byte integers: the relative offsets and the positions."""
        if self.entries * OFFSET_ENTRY.size > MOST_READ_BYTES:
            raise CorruptLogError(f'{self.path}: found {self.entries} entries, expected at most '
                                  f'{MOST_READ_BYTES // OFFSET_ENTRY.size}')
        with open(self.path, 'rb') as file:
            offsets, positions = offset_columns(file.read(self.entries * OFFSET_ENTRY.size))
        end = next((number for number, offset in enumerate(offsets) if offset == 0 and number > 0), len(offsets))
        return offsets[:end], positions[:end]


class TimeIndexFile(IndexFile):
    """A `.timeindex` file."""

    layout = TIME_ENTRY
    offset_field = 1
    title = 'Time index file'

    def __iter__(self) -> Iterator[TimeEntry]:
        return (TimeEntry(timestamp_ms, self.base_offset + relative_offset)
                for timestamp_ms, relative_offset in self.used())

    def check_last(self, path: str, last: tuple[Any, ...]) -> None:
        first_ms, _ = next(_read_entries(self.path, TIME_ENTRY))
        last_ms, relative_offset = last
        if last_ms < first_ms:
            raise CorruptLogError(f'Corrupt time index found, time index file ({path}) has non-zero size but the last '
                                  f'timestamp is {last_ms} which is less than the first timestamp {first_ms}')
        if relative_offset < 0:
            raise CorruptLogError(f'Corrupt time index found, time index file ({path}) has non-zero size but the last '
                                  f'offset is {self.base_offset + relative_offset} which is less than the first offset '
                                  f'{self.base_offset}')
