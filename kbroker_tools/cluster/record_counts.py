"""Counts the records of a partition by what a read_committed consumer gets to see. Only headers and markers are read:
the header of a batch has the number of its records."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kbroker.record.batch import BatchHeader
from kbroker.record.control import ControlType, read_control_type
from kbroker.record.records import decode_records


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


def count_records(batches: Iterable[tuple[BatchHeader, memoryview | None]], position: int,
                  last_stable_offset: int) -> RecordCounts:
    """Count the records at or above `position`, by their outcome.

    `batches` must reach from `position` to the end of the log. The bytes of a batch may be None, except for markers and
    for a batch that begins below `position`. The records that a producer id wrote before its next marker are one
    transaction. The transaction's outcome is in this marker.

    Compaction removes the marker of an aborted transaction only after its records. A transaction without a marker is
    therefore committed if it is below the last stable offset. Above, it is open.

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
    counts.committed += sum(below for below, _ in transactions.values())
    counts.undecided = sum(above for _, above in transactions.values())
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
