"""Rows of a coordinator's topic in the order of their partitions' logs, to the end or from there on as they come."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kbroker.errors import CorruptLogError, ErrorCode, KafkaError, ProtocolError
from kbroker.protocol.plan import Message
from kbroker.record.batch import BatchHeader
from kbroker.record.records import Record, decode_records
from kbroker_tools.rows.decoders import Formatter
from kbroker_tools.view import View


@dataclass(frozen=True, slots=True)
class Row:
    partition: int
    record: Record
    key: Message
    value: Message | None
    """None deletes what the key names."""
    version: int
    """Of the value; -1 without one."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """A batch and the rows in it that a formatter shows: none in a marker."""

    partition: int
    header: BatchHeader
    data: memoryview
    rows: list[Row]


class CoordinatorTail:
    """Reads on where it stopped. What cannot be read is told once, with its place, and passed over."""

    def __init__(self, view: View, topic: str, partitions: Sequence[int], formatter: Formatter,
                 complain: Callable[[str], None]):
        """It begins at the beginning. `complain` hears of each damage."""
        self._view = view
        self._topic = topic
        self._next_offsets = dict.fromkeys(partitions, 0)
        self._formatter = formatter
        self._complain = complain
        self._told: set[str] = set()

    def seek_to_end(self) -> None:
        """Read only what comes from now on."""
        for partition in self._next_offsets:
            self._next_offsets[partition] = self._view.partition_offsets(self._topic, partition).high_watermark

    def batches(self) -> Iterator[RowBatch]:
        """Up to the end of each partition, one partition after the other. Raises KafkaError, OSError."""
        for partition in self._next_offsets:
            try:
                yield from self._partition_batches(partition)
            except CorruptLogError as error:
                self._tell(partition, self._next_offsets[partition], str(error))
            except KafkaError as error:
                if error.code != ErrorCode.CORRUPT_MESSAGE:
                    raise
                self._tell(partition, self._next_offsets[partition], str(error))

    def _partition_batches(self, partition: int) -> Iterator[RowBatch]:
        start = self._next_offsets[partition]
        for header, data in self._view.batches(self._topic, partition, start):
            rows = [] if header.is_control else list(self._rows(partition, header, data, start))
            # Before the rows are out of the hand: who stops there has seen them.
            self._next_offsets[partition] = header.last_offset + 1
            yield RowBatch(partition, header, data, rows)

    def _rows(self, partition: int, header: BatchHeader, data: memoryview, start: int) -> Iterator[Row]:
        try:
            records = decode_records(data)
        except (KafkaError, ProtocolError) as error:
            self._tell(partition, header.base_offset, f'Could not read batch due to: {error}')
            return
        for record in records:
            if record.offset < start:
                continue
            try:
                row = self._formatter.read(record)
            except CorruptLogError as error:
                self._tell(partition, record.offset, str(error))
                continue
            if row is not None:
                yield Row(partition, record, *row)

    def _tell(self, partition: int, offset: int, what: str) -> None:
        text = f'{self._topic}-{partition}, offset {offset}: {what}'
        if text not in self._told:
            self._told.add(text)
            self._complain(text)
