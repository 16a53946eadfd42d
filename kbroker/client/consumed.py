"""The records that a consumer returns: columns with the records of one partition, decoded from answers to Fetch."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kbroker.base.errors import KafkaError
from kbroker.record.abort_filter import AbortFilter
from kbroker.record.batch import CorruptBatchError, iter_batches, read_header
from kbroker.record.columns import RECORD_COLUMNS, Blobs, ColumnDecoder, RecordColumns
from kbroker.record.records import MAX_DECOMPRESSED_BYTES, Record


class DeliveredRecords(NamedTuple):
    """Records of one partition that a share consumer returns, as objects."""

    topic: str
    partition: int
    records: Sequence[Record]
    delivery_count: int | None = None
    """The number of times that the share group has delivered these records, including this delivery."""


class ConsumedBatch:
    """One or more consecutive records of one partition, stored as columns instead of one object for each record.

    `keys` and `values` are sequences of bytes or None, and Arrow arrays. `offsets` and `timestamps` (in milliseconds)
    are views of int64. The columns stay valid as long as they are referenced.
    """

    __slots__ = ('_columns', 'keys', 'offsets', 'partition', 'timestamps', 'topic', 'values')

    def __init__(self, topic: str, partition: int, columns: RecordColumns):
        self.topic = topic
        self.partition = partition
        self.keys: Blobs = columns.keys
        self.values: Blobs = columns.values
        self.offsets = columns.offsets
        self.timestamps = columns.timestamps
        self._columns = columns

    def __len__(self) -> int:
        return self._columns.count

    def __repr__(self) -> str:
        return (f'<{len(self)} records of {self.topic}-{self.partition}, offsets {self.offsets[0]} to '
                f'{self.offsets[-1]}>')

    def records(self) -> list[Record]:
        """Return the records as objects, with their headers. Each call creates new objects."""
        return self._columns.records()


class FetchedPartition(NamedTuple):
    """The part of an answer about one partition. `row` is the PartitionData of FetchResponse."""

    topic: str
    partition: int
    fetch_offset: int
    row: Any


class FetchedRecords:
    """The fetched records of one partition that the consumer has not returned yet. `offset` is that of the next record.

    Markers, aborted records and records below the requested offset are hidden. In an answer to read_uncommitted,
    `aborted_transactions` is null, so the aborted records are returned, too.
    """

    def __init__(self, fetched: FetchedPartition, check_crcs: bool, batch_records: int):
        self.topic = fetched.topic
        self.partition = fetched.partition
        self.offset = fetched.fetch_offset
        self.is_finished = False
        self._data = fetched.row.records or b''
        self._position = 0
        self._start_offset = fetched.fetch_offset
        self._filter = AbortFilter([(entry.producer_id, entry.first_offset)
                                    for entry in fetched.row.aborted_transactions or ()])
        self._decoder = ColumnDecoder(RECORD_COLUMNS, check_crcs=check_crcs, batch_rows=batch_records,
                                      max_decompressed_bytes=MAX_DECOMPRESSED_BYTES)

    def take(self) -> ConsumedBatch | None:
        """Return the next records, or None if only hidden records are left. The records end with a whole batch of the
        log.

        Raise KafkaError for a damaged batch. The message contains the offset after the batch, at which the program may
        continue. `offset` remains at the damaged batch, so the next call raises the same error.
        """
        try:
            self._position = self._decoder.feed(self._data, self._filter, position=self._position,
                                                start_offset=self._start_offset)
            self.is_finished = not self._decoder.is_full
        except KafkaError as error:
            # Return the records before the damaged batch first: the next call raises the error.
            self._position = self._decoder.position
            if not self._decoder.rows:
                raise self._located(error) from None
        self.offset = max(self.offset, self._decoder.next_offset)
        return ConsumedBatch(self.topic, self.partition, RecordColumns(self._decoder)) if self._decoder.rows else None

    def _located(self, error: KafkaError) -> KafkaError:
        """Return the error with the offset of the damaged batch in its message.

        If the header of the batch is sound, the message also contains the offset after the batch.
        """
        where, rest = f'{self.topic}-{self.partition}, offset ', ''
        try:
            header = read_header(self._data, self._position)
            where += str(header.base_offset)
            rest = f'; the records after the batch begin at offset {header.last_offset + 1}'
        except CorruptBatchError:
            where += str(self.offset)
        return KafkaError(error.code, f'{where}: {error}{rest}')


def next_offset(fetched: FetchedPartition) -> int:
    """Return the offset after the last whole batch in the answer. Hidden batches count, because markers have offsets,
    too.
    """
    offset = fetched.fetch_offset
    try:
        for header, _ in iter_batches(fetched.row.records or b''):
            offset = max(offset, header.last_offset + 1)
    except CorruptBatchError:
        pass    # `take` raises the error after the records before it
    return offset
