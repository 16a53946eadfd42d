"""Changes of the metadata. They are prepared in parts, so that a long change does not hold the loop."""
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
"""A generator that does a work in small parts. `LongWork` runs it."""

Charge = Callable[[int], object]
"""A function that is called with a number of partitions to create or delete.

It raises KafkaError if they exceed a quota.
"""


class Turns:
    """The turns of long changes. Only one change at a time has its turn.

    The other changes wait, the first caller first.
    """

    def __init__(self) -> None:
        self._turns: deque[Pause] = deque()
        """The pauses of all changes: first that of the change that has its turn, then those of the waiting changes."""

    def take(self) -> Steps[None]:
        """Wait until all changes that called `take` earlier have called `end`.

        The caller must call `end` after its change.
        """
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
    """The encoded records of a future batch, and the image after these records.

    If another change is committed first, the records of that change are replayed on this image, too.
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
        """Return whether `records_count` more records, which take `size_bytes` encoded, fit into the batch."""
        return len(self.records) + records_count <= MAX_RECORDS and self._size_bytes + size_bytes <= MAX_BATCH_BYTES

    def add(self, records: Iterable[Any]) -> Steps[None]:
        """Encode and replay records, in parts. Raise the errors that `put` raises."""
        for record in records:
            self.put(record)
            if self.pace.spend():
                yield

    def put(self, record: Any) -> None:
        """Encode and replay a record.

        A change contains either only control records or no control records. Raise KafkaError POLICY_VIOLATION if the
        batch becomes too large, CorruptLogError if the record contradicts the image.
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
        """Return the image after all records of this change, which is only validated and will not be written."""
        self.image.end_batch(self.image.metadata_offset, self.image.metadata_epoch, self.image.timestamp_ms)
        return self.image

    def finish(self, base_offset: int, epoch: int) -> bytearray:
        """Return the encoded batch, and set the end offset, epoch and timestamp of the image."""
        self.image.end_batch(base_offset + len(self.records) - 1, epoch, self._timestamp_ms)
        if isinstance(self.records[0], CONTROL_RECORDS):
            return encode_control(self.records, base_offset=base_offset, epoch=epoch, timestamp_ms=self._timestamp_ms)
        return self._batch.finish(base_offset=base_offset, partition_leader_epoch=epoch)


def check_batch_length(count: int, what: str = 'records') -> None:
    """Raise KafkaError POLICY_VIOLATION if `count` exceeds MAX_RECORDS. `what` says in the message what is counted."""
    if count > MAX_RECORDS:
        raise KafkaError(ErrorCode.POLICY_VIOLATION,
                         f'found a change of {count} {what}, expected at most {MAX_RECORDS}')


def check_batch_size(size_bytes: int) -> None:
    """Raise KafkaError POLICY_VIOLATION if `size_bytes` exceeds MAX_BATCH_BYTES."""
    if size_bytes > MAX_BATCH_BYTES:
        raise KafkaError(ErrorCode.POLICY_VIOLATION,
                         f'found a change of {size_bytes} bytes, expected at most {MAX_BATCH_BYTES}')
