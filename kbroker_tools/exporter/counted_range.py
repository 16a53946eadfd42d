"""Counts the records of a partition that a read_committed consumer gets.

A consumer gets no record at the offset of a marker, of an aborted record, or of a record that compaction has removed.
These offsets are gaps. The counter reads each batch once, and keeps only the gaps, so that it can count the records
between any two offsets that it has passed. If groups are far apart, it counts from the group that is nearest to the end
first, and continues downwards with the next group.
"""
from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from kbroker.record.batch import BatchHeader
from kbroker.record.records import decode_records
from kbroker_tools.exporter.facts import RecordBounds

MOST_GAPS = 100_000
"""The most gaps that are kept for a partition, of 24 bytes each. Above that, the lower half is forgotten."""


class CountedRange:
    """The gaps in the offsets from `start` to `end`. Batches are added at its end."""

    def __init__(self, start: int, most_gaps: int = MOST_GAPS):
        self.start = self.end = start
        self.most_gaps = most_gaps
        self.is_cut = False
        """True if gaps were forgotten because there were too many."""
        self._firsts = array('q')
        self._ends = array('q')
        self._before = array('q')
        """For each gap, the number of offsets in the gaps before it. Forgotten gaps are included."""
        self._total = 0
        self._forgotten = 0
        """The number of offsets in the forgotten gaps."""

    def add(self, header: BatchHeader, batch: memoryview, is_delivered: bool, limit: int | None = None) -> None:
        """Add a batch that ends above the range. Offsets at or above `limit` are not counted."""
        after = header.last_offset + 1 if limit is None else min(header.last_offset + 1, limit)
        if not is_delivered:
            self._add_gap(self.end, after)
        elif header.records_count == header.last_offset - header.base_offset + 1:
            self._add_gap(self.end, min(header.base_offset, after))
        else:
            self._add_gaps_between([record.offset for record in decode_records(batch)], after)
        self.end = max(self.end, after)
        self._cut()

    @property
    def is_half_full(self) -> bool:
        return len(self._firsts) > self.most_gaps // 2

    def forget_if_half_full(self, offset: int) -> None:
        """Let the range begin at `offset` if it needs the room. A group may go back to an offset that was passed."""
        if self.is_half_full:
            self.forget_below(offset)

    def join(self, upper: CountedRange) -> None:
        """Add a range that begins where this one ends."""
        for first, end in zip(upper._firsts, upper._ends, strict=True):
            self._add_gap(max(first, self.end), end)
        self.end = max(self.end, upper.end)
        self.is_cut = self.is_cut or upper.is_cut
        self._cut()

    def _cut(self) -> None:
        if len(self._firsts) > self.most_gaps:
            self.forget_below(self._ends[len(self._firsts) - self.most_gaps // 2 - 2])
            self.is_cut = True

    def forget_below(self, offset: int) -> None:
        """Let the range begin at `offset`."""
        self.start = max(self.start, min(offset, self.end))
        count = bisect_right(self._ends, self.start)
        if count:
            self._forgotten = self._before[count] if count < len(self._before) else self._total
            del self._firsts[:count], self._ends[:count], self._before[:count]

    def records_between(self, first: int, end: int) -> int:
        """Return the number of records from `first` to below `end`, which are offsets of the range."""
        return end - first - (self._gaps_below(end) - self._gaps_below(first))

    def _gaps_below(self, offset: int) -> int:
        index = bisect_right(self._firsts, offset) - 1
        if index < 0:
            return self._forgotten
        return self._before[index] + min(offset, self._ends[index]) - self._firsts[index]

    def _add_gaps_between(self, offsets: Iterable[int], after: int) -> None:
        position = self.end
        for offset in offsets:
            if offset >= after:
                break
            if offset >= position:
                self._add_gap(position, offset)
                position = offset + 1
        self._add_gap(position, after)

    def _add_gap(self, first: int, end: int) -> None:
        if first >= end:
            return
        if self._ends and self._ends[-1] == first:
            self._ends[-1] = end
        else:
            self._firsts.append(first)
            self._ends.append(end)
            self._before.append(self._total)
        self._total += end - first


class PartitionCount:
    """The count of one partition: a range that grows to the last stable offset, and one below it that grows to the
    first one."""

    def __init__(self) -> None:
        self._main: CountedRange | None = None
        self._lower: CountedRange | None = None
        self._growing: CountedRange | None = None
        """The range that the next batches belong to."""

    def next_offset(self, positions: Sequence[int], last_stable_offset: int, most_gaps: int = MOST_GAPS) -> int | None:
        """Return the offset from which to read next. Return None if all is counted.

        `positions` has the committed offsets below the last stable offset, in ascending order.
        """
        self._growing = self._next(positions, last_stable_offset, most_gaps)
        return None if self._growing is None else self._growing.end

    def _next(self, positions: Sequence[int], last_stable_offset: int, most_gaps: int) -> CountedRange | None:
        if not positions:
            self._main = self._lower = None
            return None
        main = self._main
        if main is None or main.end > last_stable_offset or positions[0] > main.end:
            self._main = main = CountedRange(positions[-1])
            self._lower = None
        main.most_gaps = most_gaps
        main.is_cut = main.is_cut and positions[0] < main.start
        main.forget_if_half_full(positions[0])
        if main.end < last_stable_offset:
            return main
        self._lower = self._next_lower(main, [position for position in positions if position < main.start])
        return self._lower

    def _next_lower(self, main: CountedRange, below: Sequence[int]) -> CountedRange | None:
        if not below or (main.is_cut and main.is_half_full):
            return None
        lower = self._lower
        if lower is None or not (lower.start <= below[-1] <= lower.end or lower.is_cut):
            lower = CountedRange(below[-1], main.most_gaps)
        lower.forget_if_half_full(min((position for position in below if position >= lower.start),
                                      default=lower.start))
        return lower

    def add(self, header: BatchHeader, batch: memoryview, is_delivered: bool) -> None:
        """Add the next batch from the offset on that `next_offset` has returned."""
        growing, main = self._growing, self._main
        assert growing is not None and main is not None
        if header.last_offset < growing.end:
            return
        if growing is main:
            main.add(header, batch, is_delivered)
            return
        growing.add(header, batch, is_delivered, main.start)
        if growing.end >= main.start:
            growing.join(main)
            self._main, self._lower, self._growing = growing, None, growing

    def bounds(self, position: int, last_stable_offset: int) -> RecordBounds:
        """Return the bounds of the number of records from `position` to below the last stable offset."""
        left = max(last_stable_offset - position, 0)
        records = 0
        for counted in (self._main, self._lower):
            if counted is None:
                continue
            first, end = max(position, counted.start), min(last_stable_offset, counted.end)
            if first < end:
                found = counted.records_between(first, end)
                left -= end - first
                records += found
        return RecordBounds(records, records + left)
