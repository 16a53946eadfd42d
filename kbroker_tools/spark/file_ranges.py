"""Byte ranges of partitions. Tasks read them independently. This module cuts partitions into ranges and reads the
ranges."""
from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kbroker.base.errors import KafkaError
from kbroker.log.formats import OFFSET_ENTRY, offset_columns
from kbroker.record.batch import HEADER_BYTES, CorruptBatchError, read_header
from kbroker.record.batch_filter import BatchFilter, TransactionRanges
from kbroker.record.columns import ColumnDecoder
from kbroker_tools.spark.partition_files import (
    NO_OFFSET,
    PartitionFiles,
    PartitionState,
    SegmentFiles,
    next_sound_batch,
    read_batches,
)
from kbroker_tools.spark.skipped import Skipped
from kbroker_tools.spark.storage import FileFacts, Storage, window

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker_tools.spark.schema import Assembler

logger = logging.getLogger(__name__)

TRIES = 5
SLACK = 8
"""A task may exceed the wanted size by 1/SLACK, which is 1/8."""
ABORTED_OF_A_TASK = 10_000
"""The approximate limit of the aborted transactions for one task. A range with more of them is cut into smaller
ranges."""


class DataLossError(Exception):
    """Wanted records are lost or damaged. The message names the file, the position in it, the offsets and a remedy."""


@dataclass(frozen=True)
class FileRange:
    """A run of whole batches in one segment. Records outside [start_offset, end_offset) are omitted when it is read.

    `first` and `end` describe the same range by base offsets, which do not change when a cleaner rewrites the segment.
    The range has all batches whose base offset is in [first, end).
    """

    storage: Storage
    topic: str
    partition: int
    segment: SegmentFiles
    is_sealed: bool
    """True if the plan found a later segment. Nothing is then appended to this segment."""
    previous: SegmentFiles | None
    """The segment before this one, or None. If a cleaner removes this segment, it moves the remaining records to the
    previous segment."""
    start_position: int
    end_position: int
    first: int
    end: int
    start_offset: int
    end_offset: int
    aborted: tuple[tuple[int, int, int], ...] = ()
    open: dict[int, int] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.start_position

    @property
    def name(self) -> str:
        """Return a name for the range that no other range of the plan has."""
        return f'{self.topic}-{self.partition}-{self.first:020d}'

    @property
    def aborted_inside(self) -> list[tuple[int, int, int]]:
        """Return the aborted transactions whose markers are in the range."""
        low, high = max(self.start_offset, self.first), min(self.end_offset, self.end)
        return [row for row in self.aborted if low <= row[2] < high]

    @property
    def path(self) -> str:
        return self.storage.path(self.segment.name('log'))


def cut(state: PartitionState, start_offset: int, end_offset: int, *, split_bytes: int,
        max_records: int | None = None) -> list[FileRange]:
    """Cut [start_offset, end_offset) into ranges. Each range has about `split_bytes` bytes and, if `max_records` is
    given, at most about that many offsets."""
    files = state.files
    ranges: list[FileRange] = []
    for previous, segment, following in zip([None, *files.segments], files.segments, [*files.segments[1:], None],
                                            strict=False):
        above = following.base_offset if following else NO_OFFSET
        if above <= start_offset or segment.base_offset >= end_offset:
            continue
        points = _cut_points(files, segment, start_offset, end_offset, split_bytes, max_records)
        for (first, start_position), (end, end_position) in pairwise([*points, (above, segment.size_bytes)]):
            if end_position > start_position and first < end_offset:
                ranges.append(FileRange(files.storage, files.topic, files.partition, segment, following is not None,
                                        previous, start_position, end_position, first, end, start_offset, end_offset))
    return [part for each in ranges for part in _bounded(state, _with_transactions(state, each))]


def _bounded(state: PartitionState, each: FileRange) -> list[FileRange]:
    """Cut a range into smaller ranges if it has more aborted transactions than a task may receive."""
    if len(each.aborted) <= ABORTED_OF_A_TASK:
        return [each]
    size = max(1, each.size_bytes * ABORTED_OF_A_TASK // len(each.aborted))
    points = [(each.first, each.start_position)]
    for base_offset, position in _cut_points(state.files, each.segment, each.first, each.end, size, None):
        if points[-1][1] < position < each.end_position:
            points.append((base_offset, position))
    return [_with_transactions(state, replace(each, first=first, start_position=start, end=end, end_position=stop))
            for (first, start), (end, stop) in pairwise([*points, (each.end, each.end_position)])]


def _with_transactions(state: PartitionState, each: FileRange) -> FileRange:
    low, high = max(each.start_offset, each.first), min(each.end_offset, each.end)
    return replace(each, aborted=tuple(state.aborted(low, high)), open=state.open)


def _cut_points(files: PartitionFiles, segment: SegmentFiles, start_offset: int, end_offset: int, split_bytes: int,
                max_records: int | None) -> list[tuple[int, int]]:
    """Return (base offset, position) of the first batch of each range. The batches are found in the index and verified
    in the log.

    The first point is the last batch known at or below `start_offset`. The last point only ends the last range, so it
    may be above `end_offset`.
    """
    points = [(segment.base_offset, 0)]
    offsets, positions = _index_entries(files, segment, split_bytes)
    number = bisect_right(offsets, start_offset) - 1
    end = bisect_left(offsets, end_offset) + 1
    high = positions[end] if end < len(positions) else segment.size_bytes
    piece_bytes = _even_piece(high - (positions[number] if number >= 0 else 0), split_bytes)
    with files.storage.open(segment.name('log')) as file:
        if number >= 0:
            points = _point(file, segment, points, offsets[number], positions[number]) or points
        while points[-1][0] < end_offset:
            following = bisect_left(positions, points[-1][1] + piece_bytes, number + 1)
            if max_records:
                least = max(points[-1][0], start_offset) + max_records
                following = min(following, bisect_left(offsets, least, number + 1))
            number = min(following, max(number + 1, end))
            if number >= len(offsets):
                break
            points += _point(file, segment, points, offsets[number], positions[number])
    return points


def _point(file: Any, segment: SegmentFiles, points: list[tuple[int, int]], last_offset: int,
           position: int) -> list[tuple[int, int]]:
    """Return a list with the batch to which an index entry points. Return [] if the entry is wrong. A missing point
    only makes a range larger."""
    try:
        header = read_header(file.read_at(min(HEADER_BYTES, segment.size_bytes - position), position))
    except CorruptBatchError:
        return []
    return [(header.base_offset, position)] if points[-1][0] < header.base_offset <= last_offset else []


def _even_piece(size_bytes: int, split_bytes: int) -> int:
    """Return a piece size near `split_bytes` that divides the range evenly.

    A remainder of up to 1/8 of a piece is distributed over the pieces, because one more piece would start one more
    task.
    """
    pieces = max(1, -(-(size_bytes - split_bytes // SLACK) // split_bytes))
    return max(1, -(-size_bytes // pieces))


def _index_entries(files: PartitionFiles, segment: SegmentFiles, split_bytes: int) -> tuple[list[int], list[int]]:
    """Return (last offsets of batches, positions of batches), both ascending. If a large segment has no index, its
    headers are read instead."""
    if not segment.has_index and segment.size_bytes <= split_bytes:
        return [], []
    try:
        written = _written(files.storage, segment.name('index')) if segment.has_index else b''
    except FileNotFoundError:
        written = b''
    offsets, positions = (column.tolist() for column in offset_columns(written))
    offsets, positions = _ascending(offsets, positions, segment.size_bytes)
    if offsets or segment.size_bytes <= split_bytes:
        return [segment.base_offset + each for each in offsets], positions
    with files.storage.open(segment.name('log')) as file:
        found = [(header.last_offset, position)
                 for position, header, _ in read_batches(file, 0, segment.size_bytes) if position > 0]
    return [offset for offset, _ in found], [position for _, position in found]


def _written(storage: Storage, name: str) -> bytes:
    """Return the entries of an index file. Most zeros at the end of the file are not read: a broker preallocates the
    file."""
    data = b''
    with storage.open(name) as file:
        while True:
            more: bytes = file.read_at(storage.window_bytes, len(data))
            data += more
            if len(more) < storage.window_bytes or more.endswith(bytes(OFFSET_ENTRY.size)):
                break
    size = -(-len(data.rstrip(b'\0')) // OFFSET_ENTRY.size) * OFFSET_ENTRY.size
    return data[:min(size, len(data) - len(data) % OFFSET_ENTRY.size)]


def _ascending(offsets: list[int], positions: list[int], size_bytes: int) -> tuple[list[int], list[int]]:
    """Remove three kinds of entries: an entry for the first batch, entries after the listed size of the log, and the
    zeros of a preallocated index."""
    count = len(positions)
    if positions != sorted(positions) or offsets != sorted(offsets):
        count = next(number for number in range(1, count) if positions[number] <= positions[number - 1]
                     or offsets[number] <= offsets[number - 1])
    start, end = bisect_right(positions, 0, 0, count), bisect_left(positions, size_bytes, 0, count)
    return offsets[start:end], positions[start:end]


def pack(ranges: Iterable[FileRange], split_bytes: int) -> list[list[FileRange]]:
    """Group small ranges into tasks. Otherwise, a thousand tiny partitions would become a thousand tasks."""
    tasks: list[list[FileRange]] = []
    size_bytes = aborted = 0
    for each in ranges:
        size_bytes, aborted = size_bytes + each.size_bytes, aborted + len(each.aborted)
        if tasks and size_bytes <= split_bytes + split_bytes // SLACK and aborted <= ABORTED_OF_A_TASK:
            tasks[-1].append(each)
        else:
            tasks.append([each])
            size_bytes, aborted = each.size_bytes, len(each.aborted)
    return tasks


# ---- reading

@dataclass(frozen=True)
class ReadOptions:
    batch_rows: int = 10_000
    batch_bytes: int = 1024 * 1024
    check_crcs: bool = True
    fail_on_data_loss: bool = True
    is_read_committed: bool = True
    timestamp_overflow: str = 'error'
    skipped: Skipped = field(default_factory=Skipped)
    """The counts of the records that the task has skipped."""


def read_range(each: FileRange, assembler: Assembler, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range. Raise DataLossError if records are lost or damaged.

    The memory holds one read, one decompressed batch and two Arrow batches. Spark has one of the Arrow batches, and the
    other one is being built.
    """
    decoder = ColumnDecoder(assembler.columns, check_crcs=options.check_crcs, batch_rows=options.batch_rows,
                            batch_bytes=options.batch_bytes)
    rule = TransactionRanges(each.aborted, each.open, is_committed_only=options.is_read_committed)
    for part, file in _opened(each, options):
        yield from _read_part(part, file, decoder, rule, assembler, options)
    rows, columns = decoder.take()
    if rows:
        yield assembler.batch(rows, columns)


def _read_part(each: FileRange, file: Any, decoder: ColumnDecoder, rule: BatchFilter, assembler: Assembler,
               options: ReadOptions) -> Iterator[pa.RecordBatch]:
    position, size = each.start_position, each.storage.window_bytes
    while position < each.end_position and decoder.next_offset < each.end_offset:
        data = window(file, min(size, each.end_position - position), position)
        used, bad_at = 0, None
        try:
            while True:
                bad_at = None
                used = decoder.feed(data, rule, position=used, start_offset=each.start_offset,
                                    end_offset=each.end_offset)
                bad_at = position + used
                if not decoder.is_full:
                    break
                yield assembler.batch(*decoder.take())
            if used == 0 and decoder.next_offset < each.end_offset:
                size = _size_of_batch(data, each.end_position - position)
        except KafkaError as error:
            bad_at = position + decoder.position if bad_at is None else bad_at
            used = _skip(each, file, bad_at, max(each.first, decoder.next_offset), str(error), options) - position
        if used:
            position, size = position + used, each.storage.window_bytes


def _size_of_batch(window: memoryview, room: int) -> int:
    """Return the size in bytes of a batch that does not fit the window. Raise CorruptBatchError if the batch is
    incomplete in the file."""
    size = read_header(window).size_bytes
    if size > room or size <= len(window):
        raise CorruptBatchError(f'found {min(len(window), room)} bytes of a batch, expected {size}')
    return size


def _skip(each: FileRange, file: Any, position: int, low: int, what: str, options: ReadOptions) -> int:
    """Return the position of the next valid batch after the damage at `position`. Raise DataLossError if the options do
    not allow the task to skip it."""
    sound = next_sound_batch(file, position, each.end_position, low, each.end)
    high = each.end
    if sound < each.end_position:
        high = read_header(file.read_at(HEADER_BYTES, sound)).base_offset
    _report(each, position, f'{what}; {sound - position} bytes to the next valid batch', low, high, options)
    return sound


def _report(each: FileRange, position: int, what: str, low: int, high: int, options: ReadOptions) -> None:
    low, high = max(low, each.start_offset), min(high, each.end_offset)
    text = (f'{each.path}, position {position}: {what}; lost are records among the {high - low} offsets {low} to '
            f'{high - 1} of {each.topic}-{each.partition}')
    if options.fail_on_data_loss:
        raise DataLossError(f'{text}. Inspect it with kbroker-dump-log, or read with failOnDataLoss=false to skip them')
    options.skipped.lose(each.topic, each.partition, low, high, text)
    logger.warning('%s. They were skipped', text)


def _opened(each: FileRange, options: ReadOptions) -> Iterator[tuple[FileRange, Any]]:
    """Yield (range, open file) for each file that has batches of the range. It is the planned file, unless a cleaner
    has moved the batches to other files since the plan.

    The directory is listed only if the segment has changed. A listing is slow, because the directory may have many
    files and the query many ranges.
    """
    name = each.segment.name('log')
    for _ in range(TRIES):
        try:
            with each.storage.open(name) as file:
                # The file may have been replaced before it was opened, so it is compared with the plan after the
                # opening.
                facts = each.storage.facts(name)
                if facts is not None and _is_as_planned(each, facts):
                    yield each, file
                    return
            if facts is not None:
                yield from _found_again(each, None)
                return
        except FileNotFoundError:
            pass
        try:
            files = PartitionFiles.list(each.storage, each.topic, each.partition)
        except FileNotFoundError:
            files = PartitionFiles(each.storage, each.topic, each.partition, (), ())
        if each.segment.base_offset not in [segment.base_offset for segment in files.segments]:
            _check_gone(each, files, options)
            yield from _found_again(each, files)
            return
    raise DataLossError(f'{each.path}: vanished {TRIES} times while it was opened; is the topic being deleted?')


def _check_gone(each: FileRange, files: PartitionFiles, options: ReadOptions) -> None:
    """Report that a segment was deleted and its records are lost. Do nothing if a cleaner removed the segment: the
    cleaner has then rewritten the previous segment."""
    bases = {segment.base_offset: segment for segment in files.segments}
    first = files.segments[0].base_offset if files.segments else None
    if first is None:
        what, high = 'the segment and all others are gone', each.end
    elif first > each.first:
        what, high = f'the segment is gone, the log now begins at offset {first}', min(first, each.end)
    elif each.previous is not None and bases.get(each.previous.base_offset) == each.previous:
        what, high = 'the segment is gone, and no cleaner has touched the one before it', each.end
    else:
        return
    _report(each, each.start_position, what, each.first, high, options)


def _is_as_planned(each: FileRange, facts: FileFacts) -> bool:
    if each.is_sealed:
        return facts == (each.segment.size_bytes, each.segment.modified_ns)
    return facts.size_bytes >= each.segment.size_bytes


def _found_again(each: FileRange, files: PartitionFiles | None) -> Iterator[tuple[FileRange, Any]]:
    """Yield (range, open file) for each file that has batches of the range after a cleaning. The batches are found by
    their base offsets.

    `files` is a listing that was made after the cleaning. If it is None, the directory is listed here.
    """
    reached, end = each.first, min(each.end, each.end_offset)
    for _ in range(TRIES):
        try:
            files = files or PartitionFiles.list(each.storage, each.topic, each.partition)
            for segment, following in pairwise([*files.segments, None]):
                assert segment is not None
                if (following and following.base_offset <= reached) or segment.base_offset >= end:
                    continue
                with each.storage.open(segment.name('log')) as file:
                    part = _located(replace(each, first=reached, segment=segment), file)
                    if part is not None:
                        yield part, file
                reached = following.base_offset if following else end
            return
        except FileNotFoundError:
            files = None  # list again, and continue at `reached`, so that no batch is read twice
    raise DataLossError(f'{each.path}: files vanished {TRIES} times while they were read; is the topic being deleted?')


def _located(each: FileRange, file: Any) -> FileRange | None:
    """Return the range with its positions in this file. Return None if the file has no batch of the range."""
    inside = [(position, position + header.size_bytes) for position, header, _ in read_batches(file, 0, file.size())
              if each.first <= header.base_offset < each.end]
    return replace(each, start_position=inside[0][0], end_position=inside[-1][1]) if inside else None
