"""Statistics of each segment of a partition."""
from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kbroker.base.errors import CorruptLogError, KafkaError, ProtocolError
from kbroker.record.batch import HEADER_BYTES, MAGIC, BatchHeader
from kbroker.record.compression import decompress
from kbroker.record.control import ControlType, read_control_type
from kbroker.record.records import decode_records
from kbroker_tools.base.render import Column
from kbroker_tools.dump.files import as_java_shows
from kbroker_tools.dump.legacy_messages import iter_messages
from kbroker_tools.dump.options import DumpOptions
from kbroker_tools.dump.segment_reader import SegmentReader
from kbroker_tools.dump.selection import Selection
from kbroker_tools.dump.text import MAX_DECOMPRESSED_BYTES

COLUMNS = (
    Column('file', 'Segment'), Column('batches', 'Batches', 'right'), Column('records', 'Records', 'right'),
    Column('size_bytes', 'Bytes', 'right'), Column('uncompressed_bytes', 'Uncompressed', 'right'),
    Column('compression_ratio', 'Ratio', 'right'), Column('producers', 'Producers', 'right'),
    Column('committed', 'Committed', 'right'), Column('aborted', 'Aborted', 'right'), Column('open', 'Open', 'right'),
    Column('unreadable', 'Unreadable', 'right'),
)


@dataclass
class SegmentStatistics:
    """The counts of one segment.

    `open_producers` has the producer ids whose transactions are open at the end of the segment. These transactions may
    have begun in an earlier segment.
    """

    open_producers: set[int] = field(default_factory=set)
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    uncompressed_bytes: int = 0
    unreadable: int = 0
    """The number of batches with a wrong checksum or damaged records. An incomplete batch at the end counts as one
    batch."""
    markers: dict[ControlType, int] = field(default_factory=lambda: {ControlType.COMMIT: 0, ControlType.ABORT: 0})
    producers: set[int] = field(default_factory=set)

    def count(self, reader: SegmentReader) -> None:
        """Count the current batch of the reader. Raise KafkaError or CorruptLogError if the batch is damaged."""
        header = reader.header()
        self.batches += 1
        self.size_bytes += reader.size_bytes
        self.uncompressed_bytes += uncompressed_bytes(reader, header)
        if not reader.crc_is_right():
            self.unreadable += 1
        if reader.magic != MAGIC:
            self.records += sum(1 for _ in iter_messages(reader.batch(), MAX_DECOMPRESSED_BYTES))
        elif header.is_control:
            self._count_marker(reader, header)
        else:
            self.records += header.records_count
            if header.producer_id >= 0:
                self.producers.add(header.producer_id)
            if header.is_transactional:
                self.open_producers.add(header.producer_id)

    def _count_marker(self, reader: SegmentReader, header: BatchHeader) -> None:
        if not header.is_transactional:
            return
        for record in decode_records(reader.batch()):
            control_type = read_control_type(record.key)
            if control_type in self.markers:
                self.markers[control_type] += 1
                self.open_producers.discard(header.producer_id)

    def row(self, path: str) -> list[Any]:
        ratio = round(self.uncompressed_bytes / self.size_bytes, 2) if self.size_bytes else None
        return [path, self.batches, self.records, self.size_bytes, self.uncompressed_bytes, ratio, len(self.producers),
                self.markers[ControlType.COMMIT], self.markers[ControlType.ABORT], len(self.open_producers),
                self.unreadable]


def uncompressed_bytes(reader: SegmentReader, header: BatchHeader) -> int:
    """Return the size in bytes that the batch has without compression. For a batch of magic 0 or 1, return its actual
    size."""
    if not header.compression or reader.magic != MAGIC:
        return reader.size_bytes
    block = memoryview(reader.batch())[HEADER_BYTES:]
    return HEADER_BYTES + len(decompress(header.compression, block, MAX_DECOMPRESSED_BYTES))


def statistics_of(paths: Iterable[str], options: DumpOptions,
                  selection: Selection | None) -> Iterable[tuple[str, SegmentStatistics]]:
    """Yield the statistics of each segment. A transaction that is open at the end of a segment continues in the next
    segment of the directory. Raise OSError if a file cannot be read."""
    open_producers: set[int] = set()
    directory = None
    for path in paths:
        if os.path.dirname(path) != directory:
            open_producers = set()
            directory = os.path.dirname(path)
        statistics = SegmentStatistics(open_producers=set(open_producers))
        reader = SegmentReader(path, options.most_file_bytes)
        while True:
            try:
                if not reader.step():
                    break
                if selection is None or reader.is_in(selection):
                    statistics.count(reader)
            except (KafkaError, ProtocolError, CorruptLogError):
                if reader.at_end:
                    break
                statistics.unreadable += 1
        if reader.end > reader.position and not options.is_limited:
            statistics.unreadable += 1
        open_producers = statistics.open_producers
        yield as_java_shows(path), statistics
