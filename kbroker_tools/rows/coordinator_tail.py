"""A reader of a coordinator's topic. It yields rows in log order, and can follow the rows that are appended."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError, ProtocolError
from kbroker.protocol.plan import Message
from kbroker.record.batch import BatchHeader
from kbroker.record.records import Record, decode_records
from kbroker_tools.base.view import View
from kbroker_tools.rows.decoders import Formatter


@dataclass(frozen=True, slots=True)
class Row:
    partition: int
    record: Record
    key: Message
    value: Message | None
    """The row's value. None for a tombstone."""
    version: int
    """The version of the row's value. -1 for a tombstone."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """A batch, with the rows in it that the formatter shows. A marker has no rows."""

    partition: int
    header: BatchHeader
    data: memoryview
    rows: list[Row]


class CoordinatorTail:
    """A reader that continues where its last call stopped. It skips a batch or row that cannot be read, and reports it
    once."""

    def __init__(self, view: View, topic: str, partitions: Sequence[int], formatter: Formatter,
                 report: Callable[[str], None]):
        """The first read begins at offset 0. `report` is called with one line of text for each batch or row that cannot
        be read."""
        self._view = view
        self._topic = topic
        self._next_offsets = dict.fromkeys(partitions, 0)
        self._formatter = formatter
        self._report = report
        self._reported: set[str] = set()

    def seek_to_end(self) -> None:
        """Skip all rows that are in the topic now."""
        for partition in self._next_offsets:
            self._next_offsets[partition] = self._view.partition_offsets(self._topic, partition).high_watermark

    def batches(self) -> Iterator[RowBatch]:
        """Yield the batches of one partition after another, each to its end. Raise KafkaError or OSError if a partition
        cannot be read."""
        for partition in self._next_offsets:
            try:
                yield from self._partition_batches(partition)
            except CorruptLogError as error:
                self._report_once(partition, self._next_offsets[partition], str(error))
            except KafkaError as error:
                if error.code != ErrorCode.CORRUPT_MESSAGE:
                    raise
                self._report_once(partition, self._next_offsets[partition], str(error))

    def _partition_batches(self, partition: int) -> Iterator[RowBatch]:
        start = self._next_offsets[partition]
        for header, data in self._view.batches(self._topic, partition, start):
            rows = [] if header.is_control else list(self._rows(partition, header, data, start))
            # Advance before the yield. If the caller stops after this batch, it has already received the rows of the
            # batch.
            self._next_offsets[partition] = header.last_offset + 1
            yield RowBatch(partition, header, data, rows)

    def _rows(self, partition: int, header: BatchHeader, data: memoryview, start: int) -> Iterator[Row]:
        try:
            records = decode_records(data)
        except (KafkaError, ProtocolError) as error:
            self._report_once(partition, header.base_offset, f'Could not read batch due to: {error}')
            return
        for record in records:
            if record.offset < start:
                continue
            try:
                row = self._formatter.read(record)
            except CorruptLogError as error:
                self._report_once(partition, record.offset, str(error))
                continue
            if row is not None:
                yield Row(partition, record, *row)

    def _report_once(self, partition: int, offset: int, problem: str) -> None:
        text = f'{self._topic}-{partition}, offset {offset}: {problem}'
        if text not in self._reported:
            self._reported.add(text)
            self._report(text)
