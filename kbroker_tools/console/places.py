"""The offsets that the options of kbroker-consume select: offsets of partitions, times, and the last records.

A record counts if a consumer with the isolation level gets it: markers and aborted records do not. Offsets have gaps,
so the last records are searched backwards, in ranges of growing length.
"""
from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

import click

from kbroker.base.topic_partition import TopicPartition
from kbroker.settings.durations import duration_ms, time_ms
from kbroker_tools.base.command import ToolError

if TYPE_CHECKING:
    from kbroker.client.consumed import DeliveredRecords
    from kbroker.record.records import Record

    Found = tuple[TopicPartition, Record]

MOST_LAST = 1_000_000
"""The most records that can be counted from the end of a partition."""
LEAST_STEP = 64
"""The least number of offsets that a search reads at once."""
GROWTH = 4
"""The factor by which each step of a search is longer than the step before."""
MOST_HELD = 100_000
"""About the most records that a search for the last records holds, unless more are wanted."""
MOST_AT_ONCE = 100
"""The most partitions that are searched at once."""
LEAST_EPOCH_DIGITS = 12
"""The least number of digits of a time in ms since 1970. A shorter number is probably a time in seconds."""


class Wanted(NamedTuple):
    """The topics and offsets to read, as the options name them."""

    topic: str | None
    include: str | None
    partition: int | None
    offset: str | None
    """'earliest', 'latest', an offset, `-N` for the last N records of a partition, or `P:O,...` for offsets of
    partitions. None means that `from_beginning` determines the offset."""
    from_beginning: bool
    isolation_level: str
    timeout_ms: int | None
    from_ms: int | None = None
    to_ms: int | None = None
    last: int | None = None
    """The number of records to read at the end, or None to read all."""
    matches: Callable[[Record], bool] | None = None
    """The filter that a record has to pass to count as one of the last, or None."""

    @property
    def is_bounded(self) -> bool:
        """Return whether the reading ends at offsets that are known when it begins."""
        return self.to_ms is not None or self.last is not None

    @property
    def is_searched(self) -> bool:
        """Return whether the offsets depend on the records or on their times."""
        return self.is_bounded or self.from_ms is not None or (self.offset or '')[:1] == '-' or ':' in (
            self.offset or '')


class Range(NamedTuple):
    """The offsets of a partition from `start` until before `end`."""

    start: int
    end: int


class RangeReader(Protocol):
    """A reader of ranges of partitions. It returns only records of the wanted isolation level."""

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        """Return all readable offsets of each partition."""

    def offsets_at(self, partitions: Collection[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record at or after a time, or None if a partition has no record so late."""

    def read(self, ranges: Mapping[TopicPartition, Range]) -> Iterator[list[DeliveredRecords]]:
        """Yield the records of the ranges. Put each partition that cannot be read to its end into `failed`."""

    failed: set[TopicPartition]


def parse_offsets(text: str) -> dict[int | None, str]:
    """Return {partition: offset} of `P:O,...`, or {None: offset} of an offset alone.

    Raise click.UsageError for any other text.
    """
    found: dict[int | None, str] = {}
    for part in text.lower().split(','):
        partition, colon, offset = part.strip().rpartition(':')
        is_partition = partition.isascii() and partition.isdigit() and int(partition) < 2**31
        if not _is_offset(offset) or (not is_partition if colon else len(text.split(',')) > 1):
            raise click.UsageError(
                f"The provided offset value '{text}' is incorrect. Valid values are 'earliest', 'latest', a "
                f'non-negative long, -N (the last N records, at most {MOST_LAST:,}), and P:O,... for partitions.')
        key = int(partition) if colon else None
        if key in found:
            raise click.UsageError(f'--offset: found partition {key} twice in {text!r}, expected it once')
        found[key] = offset
    return found


def _is_offset(text: str) -> bool:
    if text in ('earliest', 'latest'):
        return True
    number = text.removeprefix('-')
    if not (number.isascii() and number.isdigit()):
        return False
    return 0 < int(number) <= MOST_LAST if text.startswith('-') else int(number) < 2**63


def parse_time_ms(option: str, text: str, now_ms: int) -> int:
    """Return a time in ms since 1970: an age such as `2h`, a number of ms since 1970, or an ISO 8601 time.

    Raise ToolError for any other text.
    """
    if text.isascii() and text.isdigit() and len(text) >= LEAST_EPOCH_DIGITS and int(text) < 2**63:
        return int(text)
    try:
        return max(now_ms - duration_ms(text), 0)
    except ValueError:
        pass
    try:
        if not text.isdigit():
            return max(time_ms(text), 0)
    except (ValueError, OverflowError):
        pass
    raise ToolError(f'{option}: found {text!r}, expected an age such as 15m, 2h or 2d, an ISO 8601 time such as '
                    '2026-11-27T10:00Z, or ms since 1970')


def selected_ranges(reader: RangeReader, wanted: Wanted,
                    partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
    """Return the range of each partition that the options select. Its end is the present end, or that of `--to`."""
    ranges = _started(reader, wanted, reader.bounds(partitions))
    if wanted.from_ms is not None:
        found = reader.offsets_at(ranges, wanted.from_ms)
        ranges = {at: Range(_or(found[at], end), end) for at, (_, end) in ranges.items()}
    if wanted.to_ms is not None:
        found = reader.offsets_at(ranges, wanted.to_ms)
        ranges = {at: Range(start, min(_or(found[at], end), end)) for at, (start, end) in ranges.items()}
    return ranges


def _or(offset: int | None, other: int) -> int:
    return other if offset is None else offset


def _started(reader: RangeReader, wanted: Wanted,
             bounds: Mapping[TopicPartition, Range]) -> dict[TopicPartition, Range]:
    """Return the ranges from the offsets that `--offset` names."""
    if wanted.offset is None:
        return dict(bounds)
    offsets = parse_offsets(wanted.offset)
    chosen = {at: offsets.get(None, offsets.get(at[1], '')) for at in bounds}
    ranges = {}
    for at, offset in chosen.items():
        start, end = bounds[at]
        if offset == 'latest':
            start = end
        elif offset.isdigit():
            start = int(offset)
        elif offset.startswith('-'):
            records = last_of_each(reader, {at: bounds[at]}, int(offset[1:]))[at]
            start = records[0].offset if records else start
        ranges[at] = Range(start, end)
    return ranges


def read_selected(reader: RangeReader, wanted: Wanted,
                  ranges: Mapping[TopicPartition, Range]) -> Iterator[list[DeliveredRecords]]:
    """Yield the records of the ranges, or only the last ones of all ranges, from the oldest to the newest."""
    if wanted.last is None:
        yield from reader.read(ranges)
        return
    from kbroker.client.consumed import DeliveredRecords
    found = last_of_all(reader, ranges, wanted.last, wanted.matches)
    yield [DeliveredRecords(topic, partition, [record for _, record in records])
           for (topic, partition), records in groupby(found, key=lambda each: each[0])]


def last_of_all(reader: RangeReader, ranges: Mapping[TopicPartition, Range], count: int,
                matches: Callable[[Record], bool] | None = None) -> list[Found]:
    """Return the newest `count` records of all ranges that match, by their timestamps, from the oldest to the newest.

    The records of a partition stay in the order of their offsets.
    """
    newest: list[Found] = []
    left = deque(sorted(ranges))
    at_once = max(min(MOST_AT_ONCE, MOST_HELD // count), 1)
    while left:
        part = {at: ranges[at] for at in (left.popleft() for _ in range(min(at_once, len(left))))}
        tails = last_of_each(reader, part, count, matches)
        lists = [newest, *([(at, record) for record in reversed(tails[at])] for at in part)]
        newest = list(islice(heapq.merge(*lists, key=lambda found: found[1].timestamp_ms, reverse=True), count))
    return newest[::-1]


def last_of_each(reader: RangeReader, ranges: Mapping[TopicPartition, Range], count: int,
                 matches: Callable[[Record], bool] | None = None) -> dict[TopicPartition, list[Record]]:
    """Return the last `count` records of each range that match, or all of them if there are fewer."""
    found: dict[TopicPartition, list[Record]] = {at: [] for at in ranges}
    step = max(count, LEAST_STEP)
    parts = {at: Range(max(start, end - step), end) for at, (start, end) in ranges.items() if start < end}
    while parts:
        newer: dict[TopicPartition, deque[Record]] = {at: deque(maxlen=count - len(found[at])) for at in parts}
        for batches in reader.read(parts):
            for batch in batches:
                newer[batch.topic, batch.partition].extend(filter(matches, batch.records) if matches else batch.records)
        for at, records in newer.items():
            found[at] = [*records, *found[at]]
        step *= GROWTH
        parts = {at: Range(max(ranges[at].start, part.start - step), part.start) for at, part in parts.items()
                 if len(found[at]) < count and part.start > ranges[at].start and at not in reader.failed}
    return found
