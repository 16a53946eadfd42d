"""Changes of the metadata that are prepared in parts."""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import Pace, Pause
from kbroker.metadata.batches import MAX_BATCH_BYTES, MAX_RECORDS, encode_control
from kbroker.metadata.features import record_version
from kbroker.metadata.image import CONTROL_RECORDS, MetadataImage
from kbroker.protocol.metadata_records import encode_metadata_record
from kbroker.record.batch import BatchEncoder

Result = TypeVar('Result')
Steps = Generator[Any, None, Result]
"""Work in small parts, which `LongWork` runs."""

Charge = Callable[[int], object]
"""A function that counts partitions to be created or deleted. It raises KafkaError if they are too many."""


class Turns:
    """The turns of long changes.

    One change at a time has its turn, and later changes wait in the order of their calls.
    """

    def __init__(self) -> None:
        self._turns: deque[Pause] = deque()
        """The change that has its turn, followed by the waiting changes."""

    def take(self) -> Steps[None]:
        """Wait until all earlier changes have called `end`. The caller must call `end` later, too."""
        turn = Pause()
        self._turns.append(turn)
        if self._turns[0] is turn:
            return
        try:
            yield from turn.wait()
        except BaseException:
            self._leave(turn)
            raise

    def end(self) -> None:
        self._leave(self._turns[0])

    def _leave(self, turn: Pause) -> None:
        had_its_turn = self._turns[0] is turn
        self._turns.remove(turn)
        if had_its_turn and self._turns:
            self._turns[0].end()


class Change:
    """The encoded records of a future batch, and the image after them.

    If another change is committed before this one, its records are replayed on this image, too.
    """

    def __init__(self, image: MetadataImage, timestamp_ms: int, metadata_version: int):
        self.image = image.copy()
        self._timestamp_ms = timestamp_ms
        self.records: list[Any] = []
        self.pace = Pace()
        self._batch = BatchEncoder(timestamp_ms)
        self._metadata_version = metadata_version
        self._size_bytes = 0

    def has_room(self, records_count: int, size_bytes: int) -> bool:
        """Return whether the batch has room for `records_count` more records of `size_bytes` encoded bytes."""
        return len(self.records) + records_count <= MAX_RECORDS and self._size_bytes + size_bytes <= MAX_BATCH_BYTES

    def add(self, records: Iterable[Any]) -> Steps[None]:
        """Encode and replay records in parts. Raise the errors of `put`."""
        for record in records:
            self.put(record)
            if self.pace.spend():
                yield

    def put(self, record: Any) -> None:
        """Encode and replay a record. Either all records of a change are control records, or no record is one.

        Raise KafkaError POLICY_VIOLATION if the batch becomes too large, CorruptLogError if the record contradicts the
        image.
        """
        check_batch_length(len(self.records) + 1)
        if not isinstance(record, CONTROL_RECORDS):
            value = encode_metadata_record(record, record_version(record, self._metadata_version))
            self._size_bytes += len(value)
            check_batch_size(self._size_bytes)
            self._batch.add(value)
        self.image.replay_record(record)
        self.records.append(record)

    def validated(self) -> MetadataImage:
        """Return the image after all records of a change that is only validated, and not written."""
        self.image.end_batch(self.image.metadata_offset, self.image.metadata_epoch, self.image.timestamp_ms)
        return self.image

    def finish(self, base_offset: int, epoch: int) -> bytearray:
        """Return the encoded batch, and set the end of the image to the batch's end."""
        self.image.end_batch(base_offset + len(self.records) - 1, epoch, self._timestamp_ms)
        if isinstance(self.records[0], CONTROL_RECORDS):
            return encode_control(self.records, base_offset=base_offset, epoch=epoch, timestamp_ms=self._timestamp_ms)
        return self._batch.finish(base_offset=base_offset, partition_leader_epoch=epoch)


def check_batch_length(count: int, what: str = 'records') -> None:
    """Raise KafkaError POLICY_VIOLATION if a change has more than MAX_RECORDS records.

    `what` names what `count` counts.
    """
    if count > MAX_RECORDS:
        raise KafkaError(ErrorCode.POLICY_VIOLATION,
                         f'found a change of {count} {what}, expected at most {MAX_RECORDS}')


def check_batch_size(size_bytes: int) -> None:
    """Raise KafkaError POLICY_VIOLATION if a change has more than MAX_BATCH_BYTES bytes."""
    if size_bytes > MAX_BATCH_BYTES:
        raise KafkaError(ErrorCode.POLICY_VIOLATION,
                         f'found a change of {size_bytes} bytes, expected at most {MAX_BATCH_BYTES}')
