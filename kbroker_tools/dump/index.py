"""Index files and producer snapshots as kafka-dump-log shows them, and its final report of errors.

The entries of `.index`, `.timeindex` and `.txnindex` and the producers of a `.snapshot` are read one by one. The
entries of the first two are compared with the log. Nothing is written: Kafka's own tool truncates an `.index` that
ends with half an entry, this one does not.

A missing `.txnindex` is an error (for Kafka it is an empty one). The version of its entries is read as an int16
(Kafka reads one byte of it).
"""
from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, NamedTuple, TypeVar

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
from kbroker.record.batch import LOG_OVERHEAD_BYTES, MAGIC
from kbroker.record.records import iter_records
from kbroker.wire.crc32c import crc32c
from kbroker_tools.dump import files
from kbroker_tools.dump.gaps import Gaps
from kbroker_tools.dump.options import DEFAULT_MAX_MESSAGE_BYTES, MAX_INT32

MOST_READ_BYTES = 1 << 30
"""The largest file that is read as a whole."""

BATCH_HEAD = struct.Struct('>qiib')                 # base offset, length, partition leader epoch (or CRC), magic
LAST_OFFSET_DELTA = struct.Struct('>i')
LAST_OFFSET_DELTA_AT = 23
LEGACY_TIMESTAMP = struct.Struct('>q')
LEGACY_TIMESTAMP_AT = 18                            # from magic 1 on
LEAST_BATCH_LENGTH = 14                             # of a message of magic 0
HEADER_READ_BYTES = LAST_OFFSET_DELTA_AT + LAST_OFFSET_DELTA.size
NO_TIMESTAMP_MS = -1
NO_OFFSET = -1
BLOCK_ENTRIES = 8192
LINES_AT_ONCE = 1024

T = TypeVar('T')


@dataclass(frozen=True)
class IndexOptions:
    """The options of kafka-dump-log for indexes."""

    verify_index_only: bool = False
    """Compare the entries with the log and print none."""
    index_sanity_check: bool = False
    """Only check whether the broker would rebuild the index at its start."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    """The most bytes of the log that are read for the batch of an entry."""
    compat: str = '4.3'
    """The release of Kafka whose texts are printed: 4.2, 4.3 or 4.4."""


# ---- errors

Pairs = dict[str, list[tuple[int, int]]]
"""Pairs of numbers by file, in the order in which they were found."""


class ErrorReport:
    """The errors in all files, by absolute path, printed at the end.

    Kafka lists the files of a section in the order of a hash map. Here they are in the order in which they were read.
    """

    def __init__(self, compat: str = '4.3'):
        """`compat` is the release of Kafka whose text is printed."""
        self._is_sorted = compat != '4.2'
        self._mismatches: Pairs = {}
        self._timestamp_mismatches: Pairs = {}
        self._out_of_order: Pairs = {}
        self._not_found: Pairs = {}
        self._non_consecutive: dict[str, Gaps] = {}

    def __bool__(self) -> bool:
        """True if there is anything to print."""
        return any((self._mismatches, self._timestamp_mismatches, self._out_of_order, self._not_found,
                    self._non_consecutive))

    def mismatch(self, index_path: str, index_offset: int, log_offset: int) -> None:
        """Add an entry whose batch ends at another offset. Of entries with the same offset, the last one is kept."""
        self._mismatches.setdefault(_absolute(index_path), []).append((index_offset, log_offset))

    def timestamp_mismatch(self, index_path: str, index_timestamp_ms: int, log_timestamp_ms: int) -> None:
        self._timestamp_mismatches.setdefault(_absolute(index_path), []).append((index_timestamp_ms, log_timestamp_ms))

    def out_of_order(self, index_path: str, timestamp_ms: int, previous_ms: int) -> None:
        self._out_of_order.setdefault(_absolute(index_path), []).append((timestamp_ms, previous_ms))

    def not_found(self, index_path: str, index_offset: int, log_offset: int) -> None:
        """Add an indexed offset at which no batch ends. `log_offset` is the end of the next batch; -1 if none."""
        self._not_found.setdefault(_absolute(index_path), []).append((index_offset, log_offset))

    def gaps(self, log_path: str) -> Gaps:
        """Return the gaps of a log, created at the first call."""
        return self._non_consecutive.setdefault(_absolute(log_path), Gaps())

    def lines(self) -> Iterator[str]:
        """Yield Kafka's text. Up to 4.2, a file's last mismatch or gap comes first; later releases sort by offset."""
        for path, pairs in self._mismatches.items():
            yield f'Mismatches in :{path}'
            shown = sorted(dict(pairs).items()) if self._is_sorted else pairs
            yield from (f'  Index offset: {index}, log offset: {log}' for index, log in reversed(shown))
        for path, pairs in self._timestamp_mismatches.items():
            yield f'Found timestamp mismatch in :{path}'
            yield from (f'  Index timestamp: {index}, log timestamp: {log}' for index, log in pairs)
        for path, pairs in self._out_of_order.items():
            yield f'Found out of order timestamp in :{path}'
            yield from (f'  Index timestamp: {index}, Previously indexed timestamp: {previous}'
                        for index, previous in pairs)
        for path, pairs in self._not_found.items():
            yield 'The following indexed offsets are not found in ' + (f':{path}' if self._is_sorted else 'the log.')
            yield from (f'Indexed offset: {index}, found log offset: {log}' for index, log in pairs)
        for path, gaps in self._non_consecutive.items():
            yield f'Non-consecutive offsets in {path}'
            found = gaps if self._is_sorted else reversed(list(gaps.unsorted()))
            yield from (f'  {first} is followed by {second}' for first, second in found)

    def print(self, stream: IO[str]) -> None:
        for line in self.lines():
            stream.write(line + '\n')


def _absolute(path: str) -> str:
    """Prefix the working directory. As in Java, `..` is not resolved."""
    return os.path.join(os.getcwd(), path)


# ---- files

def dump_index(path: str, options: IndexOptions, out: IO[str], report: ErrorReport) -> None:
    """Print an `.index`, comparing each entry with the `.log`.

    Raises CorruptLogError if the sanity check fails or an entry points to an impossible position. OSError, also for a
    missing `.log`.
    """
    index = OffsetIndexFile(path)
    with LogFile(sibling(path, '.log')) as log:
        if not index.entries:
            out.write(f'{path} is empty.\n')
        elif options.index_sanity_check:
            index.check()
            out.write(f'{path} passed sanity check.\n')
        else:
            _write_lines(out, options, verified_offsets(index, log, options, report),
                         lambda entry: f'offset: {entry.offset} position: {entry.position}\n')


def dump_time_index(path: str, options: IndexOptions, out: IO[str], report: ErrorReport) -> None:
    """Print a `.timeindex`, comparing each entry with the `.log`, which is searched through the `.index`.

    Raises CorruptLogError if the sanity check fails or the log is unreadable at an entry's position; OSError.
    """
    index = TimeIndexFile(path)
    with LogFile(sibling(path, '.log')) as log:
        offsets = OffsetIndexFile(sibling(path, '.index'))
        if options.index_sanity_check:
            index.check()
            out.write(f'{path} passed sanity check.\n')
        else:
            _write_lines(out, options, verified_timestamps(index, offsets, log, report),
                         lambda entry: f'timestamp: {entry.timestamp_ms} offset: {entry.offset}\n')


def dump_transaction_index(path: str, options: IndexOptions, out: IO[str], report: ErrorReport) -> None:
    """Print a `.txnindex`. Raises CorruptLogError for an entry of another version, OSError."""
    for row in transaction_rows(path):
        out.write(f'version: {row.version} producerId: {row.producer_id} firstOffset: {row.first_offset} '
                  f'lastOffset: {row.last_offset} lastStableOffset: {row.last_stable_offset}\n')


def dump_snapshot(path: str, options: IndexOptions, out: IO[str], report: ErrorReport) -> None:
    """Print the producers of a `.snapshot`. Raises CorruptLogError for a damaged one, OSError."""
    for producer in snapshot_producers(path):
        first_offset = producer.transaction_first_offset
        out.write(f'producerId: {producer.producer_id} producerEpoch: {producer.producer_epoch} '
                  f'coordinatorEpoch: {producer.coordinator_epoch} currentTxnFirstOffset: '
                  f'{"OptionalLong.empty" if first_offset is None else f"OptionalLong[{first_offset}]"} '
                  f'lastTimestamp: {producer.last_timestamp_ms}')
        if producer.last_batch is not None:
            batch = producer.last_batch
            out.write(f' firstSequence: {batch.first_sequence} lastSequence: {batch.last_sequence} '
                      f'lastOffset: {batch.last_offset} offsetDelta: {batch.offset_delta} '
                      f'timestamp: {producer.last_timestamp_ms}')
        elif options.compat == '4.2':
            out.write(' ')
        out.write('\n')


def _write_lines(out: IO[str], options: IndexOptions, entries: Iterable[T], text: Callable[[T], str]) -> None:
    """Write a line for each entry, many at a time. Entries before a damaged one are written before the error."""
    lines: list[str] = []
    try:
        for entry in entries:
            if not options.verify_index_only:
                lines.append(text(entry))
                if len(lines) >= LINES_AT_ONCE:
                    out.write(''.join(lines))
                    lines.clear()
    finally:
        out.write(''.join(lines))


def sibling(path: str, suffix: str) -> str:
    """Return the file of the same segment with another suffix."""
    directory, name = os.path.split(path)
    return os.path.join(directory, name.partition('.')[0] + suffix)


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
    """None if the producer wrote only a marker."""


def verified_offsets(index: OffsetIndexFile, log: LogFile, options: IndexOptions,
                     report: ErrorReport) -> Iterator[OffsetEntry]:
    """Yield the entries of an `.index`, reporting those whose batch ends at another offset. CorruptLogError."""
    for entry in index:
        batch = log.batch_at(entry.position, entry.position + options.max_message_bytes)
        if batch is None:
            raise CorruptLogError(f'{index.path}: found position {entry.position} for offset {entry.offset}, where '
                                  f'{log.path} of {log.size_bytes} bytes has no whole batch of at most '
                                  f'{options.max_message_bytes} bytes')
        if batch.last_offset != entry.offset:
            report.mismatch(index.path, entry.offset, batch.last_offset)
        yield entry


def verified_timestamps(index: TimeIndexFile, offsets: OffsetIndexFile, log: LogFile,
                        report: ErrorReport) -> Iterator[TimeEntry]:
    """Yield the entries of a `.timeindex`, reporting those that contradict the log or the previous entry."""
    previous_ms = NO_TIMESTAMP_MS
    for entry in index:
        batch = log.first_reaching(entry.offset, offsets.position_for(entry.offset))
        if batch is None:
            report.not_found(index.path, entry.offset, NO_OFFSET)
        elif batch.last_offset != entry.offset:
            report.not_found(index.path, entry.offset, batch.last_offset)
        else:
            found_ms = log.max_timestamp_ms(batch)
            if found_ms != entry.timestamp_ms:
                report.timestamp_mismatch(index.path, entry.timestamp_ms, found_ms)
            if previous_ms >= entry.timestamp_ms:
                report.out_of_order(index.path, entry.timestamp_ms, previous_ms)
        yield entry
        previous_ms = entry.timestamp_ms


def transaction_rows(path: str) -> Iterator[TransactionRow]:
    """Yield the entries of a `.txnindex`, ignoring an incomplete one at its end. CorruptLogError, OSError."""
    base_offset_of(path)
    for number, fields in enumerate(_read_entries(path, TRANSACTION_ENTRY)):
        row = TransactionRow(*fields)
        if row.version != TRANSACTION_ENTRY_VERSION:
            raise CorruptLogError(f'{path}: found version {row.version} in entry {number}, '
                                  f'expected {TRANSACTION_ENTRY_VERSION}')
        yield row


def snapshot_producers(path: str) -> list[SnapshotProducer]:
    """Return the producers of a `.snapshot`. OSError, CorruptLogError.

    The errors have Kafka's words, except that they name the sizes for which Kafka says `null`.
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
    """Return the offset at the beginning of a segment file's name. Raises CorruptLogError."""
    offset = files.base_offset_of(path)
    if offset is None:
        raise CorruptLogError(f'{path}: found {os.path.basename(path).partition(".")[0]!r} before the suffix, expected '
                              'the offset of a segment in digits')
    return offset


def _read_entries(path: str, entry: struct.Struct) -> Iterator[tuple[Any, ...]]:
    """Yield the whole entries of a file, which is read block by block."""
    with open(path, 'rb') as file:
        while block := file.read(BLOCK_ENTRIES * entry.size):
            yield from whole_entries(entry, block)


class OffsetIndexFile:
    """An `.index` file, opened read-only."""

    def __init__(self, path: str):
        """Raises OSError, CorruptLogError for a name without an offset."""
        self.path = path
        self.base_offset = base_offset_of(path)
        self.size_bytes = os.stat(path).st_size
        self.entries = self.size_bytes // OFFSET_ENTRY.size

    def __iter__(self) -> Iterator[OffsetEntry]:
        """The entries up to the zeros that a segment has behind them while it is appended to."""
        for number, (relative_offset, position) in enumerate(_read_entries(self.path, OFFSET_ENTRY)):
            if relative_offset == 0 and number > 0:
                return
            yield OffsetEntry(self.base_offset + relative_offset, position)

    def check(self) -> None:
        """Check what a broker checks before it trusts the index. Raises CorruptLogError in Kafka's words."""
        path = _absolute(self.path)
        if self.entries:
            relative_offset, _ = _last_entry(self.path, OFFSET_ENTRY, self.entries)
            if relative_offset < 0:
                raise CorruptLogError(f'Corrupt index found, index file {path} has non-zero size but the last offset '
                                      f'is {self.base_offset + relative_offset} which is less than the base offset '
                                      f'{self.base_offset}')
        if self.size_bytes % OFFSET_ENTRY.size:
            raise CorruptLogError(f'Index file {path} is corrupt, found {self.size_bytes} bytes which is neither '
                                  f'positive nor a multiple of {OFFSET_ENTRY.size}')

    def position_for(self, offset: int) -> int:
        """Return the position of the last entry at or below `offset`, or 0: a search for its batch begins there."""
        offsets, positions = self._columns
        number = bisect_right(offsets, offset - self.base_offset)
        return positions[number - 1] if number else 0

    @cached_property
    def _columns(self) -> tuple[array[int], array[int]]:
        """The relative offsets and positions, four bytes each."""
        if self.entries * OFFSET_ENTRY.size > MOST_READ_BYTES:
            raise CorruptLogError(f'{self.path}: found {self.entries} entries, expected at most '
                                  f'{MOST_READ_BYTES // OFFSET_ENTRY.size}')
        with open(self.path, 'rb') as file:
            offsets, positions = offset_columns(file.read(self.entries * OFFSET_ENTRY.size))
        end = next((number for number, offset in enumerate(offsets) if offset == 0 and number > 0), len(offsets))
        return offsets[:end], positions[:end]


class TimeIndexFile:
    """A `.timeindex` file, opened read-only."""

    def __init__(self, path: str):
        """Raises OSError, CorruptLogError for a name without an offset."""
        self.path = path
        self.base_offset = base_offset_of(path)
        self.size_bytes = os.stat(path).st_size
        self.entries = self.size_bytes // TIME_ENTRY.size

    def __iter__(self) -> Iterator[TimeEntry]:
        """The entries up to the zeros that a segment has behind them while it is appended to."""
        for number, (timestamp_ms, relative_offset) in enumerate(_read_entries(self.path, TIME_ENTRY)):
            if relative_offset == 0 and number > 0:
                return
            yield TimeEntry(timestamp_ms, self.base_offset + relative_offset)

    def check(self) -> None:
        """Check what a broker checks before it trusts the index. Raises CorruptLogError in Kafka's words."""
        path = _absolute(self.path)
        if self.entries:
            first_ms, _ = next(_read_entries(self.path, TIME_ENTRY))
            last_ms, relative_offset = _last_entry(self.path, TIME_ENTRY, self.entries)
            if last_ms < first_ms:
                raise CorruptLogError(f'Corrupt time index found, time index file ({path}) has non-zero size but the '
                                      f'last timestamp is {last_ms} which is less than the first timestamp {first_ms}')
            if relative_offset < 0:
                raise CorruptLogError(f'Corrupt time index found, time index file ({path}) has non-zero size but the '
                                      f'last offset is {self.base_offset + relative_offset} which is less than the '
                                      f'first offset {self.base_offset}')
        if self.size_bytes % TIME_ENTRY.size:
            raise CorruptLogError(f'Time index file {path} is corrupt, found {self.size_bytes} bytes which is neither '
                                  f'positive nor a multiple of {TIME_ENTRY.size}')


def _last_entry(path: str, entry: struct.Struct, entries: int) -> tuple[Any, ...]:
    with open(path, 'rb') as file:
        file.seek((entries - 1) * entry.size)
        return entry.unpack(file.read(entry.size))


# ---- the log

class BatchAt(NamedTuple):
    """A batch of any magic in a `.log`."""

    position: int
    size_bytes: int
    last_offset: int
    magic: int


class LogFile:
    """A `.log` from which single batches are read. A context manager. Opening it raises OSError."""

    def __init__(self, path: str):
        self.path = path
        self._file = open(path, 'rb')               # noqa: SIM115  (closed by __exit__)
        self.size_bytes = os.fstat(self._file.fileno()).st_size
        self._last_found: BatchAt | None = None

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def batch_at(self, position: int, end: int | None = None) -> BatchAt | None:
        """Return the batch that begins at `position` and ends at or before `end`, or None if there is no whole one.

        Raises CorruptLogError for an impossible length field.
        """
        end = self.size_bytes if end is None else min(end, self.size_bytes)
        if position < 0 or position + BATCH_HEAD.size > end:
            return None
        header = self._read(position, HEADER_READ_BYTES)
        base_offset, length, _, magic = BATCH_HEAD.unpack_from(header)
        if length < LEAST_BATCH_LENGTH:
            raise CorruptLogError(f'{self.path}: found a batch length of {length} at {position}, expected at least '
                                  f'{LEAST_BATCH_LENGTH}')
        size_bytes = length + LOG_OVERHEAD_BYTES
        if position + size_bytes > end:
            return None
        last_offset = base_offset
        if magic >= MAGIC:
            last_offset += LAST_OFFSET_DELTA.unpack_from(header, LAST_OFFSET_DELTA_AT)[0]
        return BatchAt(position, size_bytes, last_offset, magic)

    def first_reaching(self, offset: int, position: int) -> BatchAt | None:
        """Return the first batch from `position` on that ends at or after `offset`. Raises CorruptLogError."""
        last = self._last_found
        if last is not None and last.last_offset <= offset:
            position = max(position, last.position)     # no batch before the last answer can reach a higher offset
        while (batch := self.batch_at(position)) is not None:
            if batch.last_offset >= offset:
                self._last_found = batch
                return batch
            position += batch.size_bytes
        return None

    def max_timestamp_ms(self, batch: BatchAt) -> int:
        """Return the highest timestamp of its records, or -1. Raises CorruptLogError, KafkaError for damaged ones."""
        data = self._read(batch.position, batch.size_bytes)
        if batch.magic >= MAGIC:
            return max((record.timestamp_ms for record in iter_records(data)), default=NO_TIMESTAMP_MS)
        if batch.magic < 1:
            return NO_TIMESTAMP_MS
        # A message of magic 1 has one timestamp; a wrapper of compressed messages has the highest of theirs.
        timestamp_ms: int = LEGACY_TIMESTAMP.unpack_from(data, LEGACY_TIMESTAMP_AT)[0]
        return timestamp_ms

    def _read(self, position: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, position)
