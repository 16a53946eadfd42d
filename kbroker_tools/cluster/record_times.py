"""Finds records by their timestamps in a log directory, with the answers that a broker gives to ListOffsets."""
from __future__ import annotations

from kbroker.base.topic_partition import TopicPartition
from kbroker.record.batch import BatchHeader
from kbroker.record.records import Record, decode_records
from kbroker_tools.base.view import PartitionOffsets
from kbroker_tools.cluster.directory_view import DirectoryView


def first_record_since(view: DirectoryView, at: TopicPartition, ends: PartitionOffsets,
                       timestamp_ms: int) -> Record | None:
    """Return the first record at or after a time. Return None if there is none below the high watermark."""
    for header, _ in view.batch_headers(*at, ends.log_start_offset, ends.high_watermark):
        if header.max_timestamp_ms >= timestamp_ms:
            for record in _records(view, at, header, ends):
                if record.timestamp_ms >= timestamp_ms:
                    return record
    return None


def newest_record(view: DirectoryView, at: TopicPartition, ends: PartitionOffsets) -> Record | None:
    """Return the first of the records with the greatest timestamp. Return None if no record has a timestamp."""
    newest = max((header for header, _ in view.batch_headers(*at, ends.log_start_offset, ends.high_watermark)
                  if header.max_timestamp_ms >= 0), key=lambda header: header.max_timestamp_ms, default=None)
    records = [] if newest is None else _records(view, at, newest, ends)
    return max(records, key=lambda record: record.timestamp_ms, default=None)


def _records(view: DirectoryView, at: TopicPartition, header: BatchHeader, ends: PartitionOffsets) -> list[Record]:
    """Return the records of one batch that are not below the start of the log."""
    start = max(header.base_offset, ends.log_start_offset)
    return [record for _, batch in view.batches(*at, start, header.last_offset + 1)
            for record in decode_records(batch) if record.offset >= start]
