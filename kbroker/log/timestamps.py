"""Search by time in the segments of a log, for ListOffsets."""
from __future__ import annotations

from kbroker.log.segment import Segment
from kbroker.record.records import decode_records

Position = tuple[int, int, int]
"""Timestamp in ms, offset, leader epoch."""


def first_at_or_after(segments: list[Segment], log_start_offset: int, timestamp_ms: int) -> Position | None:
    """Return the position of the first record at or after `timestamp_ms`, None if there is none."""
    for segment in segments:
        offset = log_start_offset
        while (found := segment.batch_with_timestamp(timestamp_ms, offset)) is not None:
            header, batch = found
            for record in decode_records(batch):
                if record.timestamp_ms >= timestamp_ms and record.offset >= log_start_offset:
                    return record.timestamp_ms, record.offset, header.partition_leader_epoch
            offset = header.last_offset + 1
    return None


def greatest(segments: list[Segment]) -> Position | None:
    """Return the position of the first record with the greatest timestamp, None if no record has one."""
    segment = max(segments, key=lambda each: each.max_timestamp_ms)
    if segment.max_timestamp_ms < 0:
        return None
    found = segment.batch_at_or_after(segment.max_timestamp_offset)
    records = [] if found is None else decode_records(found[2])
    if found is None or not records:
        return None
    record = max(records, key=lambda each: each.timestamp_ms)
    return record.timestamp_ms, record.offset, found[1].partition_leader_epoch
