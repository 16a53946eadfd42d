"""Counts the records of a partition by what a read_committed consumer gets to see. Only headers and markers are read:
the header of a batch has the number of its records."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kbroker.record.batch import BatchHeader
from kbroker.record.control import ControlType, read_control_type
from kbroker.record.records import decode_records

BATCHES_BETWEEN_REPORTS = 100


@dataclass(slots=True)
class RecordCounts:
    """The numbers of records from a position to the end of the log."""

    committed: int = 0
    """The number of records below the last stable offset that a read_committed consumer receives."""
    held: int = 0
    """The number of committed and non-transactional records above the last stable offset. The consumer receives them
    when the last stable offset advances."""
    undecided: int = 0
    """The number of records in open transactions."""
    aborted: int = 0
    markers: int = 0


class Walk:
    """An iteration over batches that reports its progress. It ends early if the time is over. Then `was_cut` is true,
    and `next_offset` is the offset at which it ended."""

    def __init__(self, batches: Iterable[tuple[BatchHeader, memoryview | None]], start_offset: int,
                 advance: Callable[[int], None], is_over: Callable[[], bool]):
        self._batches = batches
        self._advance = advance
        self._is_over = is_over
        self._reported = self.next_offset = start_offset
        self.was_cut = False

    def __iter__(self) -> Iterator[tuple[BatchHeader, memoryview | None]]:
        for number, (header, batch) in enumerate(self._batches):
            if number % BATCHES_BETWEEN_REPORTS == 0:
                self._report()
                if self._is_over():
                    self.was_cut = True
                    return
            yield header, batch
            self.next_offset = header.last_offset + 1
        self._report()

    def _report(self) -> None:
        self._advance(self.next_offset - self._reported)
        self._reported = self.next_offset


def count_records(batches: Iterable[tuple[BatchHeader, memoryview | None]], position: int, last_stable_offset: int,
                  was_cut: Callable[[], bool] = lambda: False) -> RecordCounts:
    """Count the records at or above `position`, by their outcome.

    `batches` must reach from `position` to the end of the log. The bytes of a batch may be None, except for markers and
    for a batch that begins below `position`. The records that a producer id wrote before its next marker are one
    transaction. The transaction's outcome is in this marker.

    Compaction removes the marker of an aborted transaction only after its records. A transaction without a marker is
    therefore committed if it is below the last stable offset. Above, it is open. If `was_cut` returns true at the end
    of `batches`, later markers are missing, and each transaction without a marker counts as undecided.

    Raise KafkaError if a batch or a marker cannot be read.
    """
    counts = RecordCounts()
    transactions: dict[int, tuple[int, int]] = {}
    for header, batch in batches:
        if header.is_control:
            counts.markers += _records_from(header, batch, position)
            below, above = transactions.pop(header.producer_id, (0, 0))
            if _is_commit(batch):
                counts.committed += below
                counts.held += above
            else:
                counts.aborted += below + above
            continue
        count = _records_from(header, batch, position)
        is_below = header.base_offset < last_stable_offset
        if header.is_transactional:
            below, above = transactions.get(header.producer_id, (0, 0))
            transactions[header.producer_id] = (below + count, above) if is_below else (below, above + count)
        elif is_below:
            counts.committed += count
        else:
            counts.held += count
    without_marker = sum(below for below, _ in transactions.values())
    counts.undecided = sum(above for _, above in transactions.values())
    if was_cut():
        counts.undecided += without_marker
    else:
        counts.committed += without_marker
    return counts


def _records_from(header: BatchHeader, batch: memoryview | None, position: int) -> int:
    """Return the number of records of a batch that are at or above `position`. If the batch begins below `position`,
    decode it, because compaction may have removed some of its records."""
    if header.base_offset >= position:
        return header.records_count
    if header.last_offset < position:
        return 0
    assert batch is not None
    return sum(record.offset >= position for record in decode_records(batch))


def _is_commit(batch: memoryview | None) -> bool:
    """Return whether a marker commits. A marker whose record was removed by compaction does, too: see
    `count_records`."""
    assert batch is not None
    return all(read_control_type(record.key) == ControlType.COMMIT for record in decode_records(batch))
