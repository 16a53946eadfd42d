"""A `.log` from which batches of any magic are read one at a time, for the comparison with index entries."""
from __future__ import annotations

import os
from struct import Struct
from typing import NamedTuple

from kbroker.base.errors import CorruptLogError
from kbroker.record.batch import LOG_OVERHEAD_BYTES, MAGIC
from kbroker.record.records import iter_records

BATCH_HEAD = Struct('>qiib')                        # base offset, length, partition leader epoch (or CRC), magic
LAST_OFFSET_DELTA = Struct('>i')
LAST_OFFSET_DELTA_AT = 23
LEGACY_TIMESTAMP = Struct('>q')
LEGACY_TIMESTAMP_AT = 18                            # the position in a message of magic 1
LEAST_BATCH_LENGTH = 14                             # the length of the shortest message of magic 0
HEADER_READ_BYTES = LAST_OFFSET_DELTA_AT + LAST_OFFSET_DELTA.size
NO_TIMESTAMP_MS = -1


class BatchAt(NamedTuple):
    """A batch of any magic in a `.log`."""

    position: int
    size_bytes: int
    last_offset: int
    magic: int


class LogFile:
    """A `.log` from which batches are read one at a time. It is a context manager. Opening the file raises OSError."""

    def __init__(self, path: str):
        self.path = path
        self._file = open(path, 'rb')               # noqa: SIM115  (closed by __exit__)
        self.size_bytes = os.fstat(self._file.fileno()).st_size
        self._last_found: BatchAt | None = None

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def batch_at(self, position: int, end: int | None = None) -> BatchAt | None:
        """Return the batch that begins at `position`. Return None if the batch is missing or incomplete, or if it ends
        after `end`.

        Raise CorruptLogError if its length field has an impossible value.
        """
        end = self.size_bytes if end is None else min(end, self.size_bytes)
        if position < 0 or position + BATCH_HEAD.size > end:
            return None
        header = self._read(position, HEADER_READ_BYTES)
        base_offset, length, _, magic = BATCH_HEAD.unpack_from(header)
        if length < LEAST_BATCH_LENGTH:
            raise CorruptLogError(f'{self.path}: found a batch length of {length} at {position}, expected at least '
                                  f'{LEAST_BATCH_LENGTH}')
        size_bytes = length + LOG_OVERHEAD_BYTES
        if position + size_bytes > end:
            return None
        last_offset = base_offset
        if magic >= MAGIC:
            last_offset += LAST_OFFSET_DELTA.unpack_from(header, LAST_OFFSET_DELTA_AT)[0]
        return BatchAt(position, size_bytes, last_offset, magic)

    def first_reaching(self, offset: int, position: int) -> BatchAt | None:
        """Return the first batch, at or after `position`, whose last offset is at least `offset`. Raise CorruptLogError
        if a length field has an impossible value."""
        last = self._last_found
        if last is not None and last.last_offset <= offset:
            position = max(position, last.position)     # the batch found last is not after the wanted one
        while (batch := self.batch_at(position)) is not None:
            if batch.last_offset >= offset:
                self._last_found = batch
                return batch
            position += batch.size_bytes
        return None

    def max_timestamp_ms(self, batch: BatchAt) -> int:
        """Return the highest timestamp of the records in a batch. Return -1 if they have no timestamps. Raise
        CorruptLogError or KafkaError if the records are damaged."""
        data = self._read(batch.position, batch.size_bytes)
        if batch.magic >= MAGIC:
            return max((record.timestamp_ms for record in iter_records(data)), default=NO_TIMESTAMP_MS)
        if batch.magic < 1:
            return NO_TIMESTAMP_MS
        # A message of magic 1 has one timestamp. If it wraps compressed messages, this is the highest of their
        # timestamps.
        timestamp_ms: int = LEGACY_TIMESTAMP.unpack_from(data, LEGACY_TIMESTAMP_AT)[0]
        return timestamp_ms

    def _read(self, position: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, position)
