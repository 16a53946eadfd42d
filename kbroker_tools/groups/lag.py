"""Lag as the number of records that a read_committed consumer has yet to read, without markers and aborted records."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kbroker.record.batch import BatchHeader
from kbroker.record.control import ControlType, read_control_type
from kbroker.record.records import decode_records


@dataclass(slots=True)
class RecordsLeft:
    """The records from a consumer's position to the end of the log."""

    committed: int = 0
    """Records below the last stable offset. The consumer can read them now."""
    held: int = 0
    """Records above the last stable offset that are committed or non-transactional. They are delivered when it
    advances."""
    undecided: int = 0
    """Records of open transactions."""


def count_records_left(batches: Iterable[tuple[BatchHeader, memoryview]], position: int,
                       last_stable_offset: int) -> RecordsLeft:
    """Count the records from `position` on by their outcome.

    `batches` reach from the position to the end of the log. A transaction is everything that a producer id wrote before
    its next marker, so a marker anywhere in `batches` decides it. Without a marker it is open. Raise KafkaError for an
    unreadable batch or marker.
    """
    left = RecordsLeft()
    undecided: dict[int, tuple[int, int]] = {}
    for header, batch in batches:
        if header.is_control:
            below, above = undecided.pop(header.producer_id, (0, 0))
            if _is_commit(batch):
                left.committed += below
                left.held += above
            continue
        count = _records_from(header, batch, position)
        is_below = header.base_offset < last_stable_offset
        if header.is_transactional:
            below, above = undecided.get(header.producer_id, (0, 0))
            undecided[header.producer_id] = (below + count, above) if is_below else (below, above + count)
        elif is_below:
            left.committed += count
        else:
            left.held += count
    left.undecided = sum(below + above for below, above in undecided.values())
    return left


def _records_from(header: BatchHeader, batch: memoryview, position: int) -> int:
    """Count a batch's records from `position` on. Decode the batch if it begins before: compaction may have left
    gaps."""
    if header.base_offset >= position:
        return header.records_count
    if header.last_offset < position:
        return 0
    return sum(record.offset >= position for record in decode_records(batch))


def _is_commit(batch: memoryview) -> bool:
    record, = decode_records(batch)
    return read_control_type(record.key) == ControlType.COMMIT
