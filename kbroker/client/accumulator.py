"""The send queue of a partition: gathers records into batches, numbers them, and keeps their order across retries.

    send() --> open batch --closes: full, lingered, flushed--> waiting --take()--> in flight --> done
                                                                  ^                   |
                                                                  +--- put_back() ----+

A partition rejects a batch whose first sequence does not follow its last one. So a batch gets its sequence numbers
when it is first taken, and keeps them when it is sent again. While a batch is being retried, nothing else of its
partition is in flight: the batches in flight behind it were rejected too, and are put back first.
"""
from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from kbroker.record.batch import HEADER_BYTES, NO_PRODUCER_EPOCH, NO_PRODUCER_ID

SEQUENCES = 1 << 31
"""The sequence after 2147483647 is 0."""
RECORD_OVERHEAD_BYTES = 16
"""The most bytes that a record adds to its key, value and headers, if each of these is shorter than 2 MiB."""

ProducedRecord = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def is_valid(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID


class ProducerBatch:
    """A batch of records of one partition, in order. `contexts` holds the sender's context of each record; `ordinal`
    is the position of the batch in its partition.
    """

    __slots__ = ('attempts', 'base_sequence', 'contexts', 'created_ms', 'is_in_doubt', 'ordinal', 'partition',
                 'producer', 'records', 'retry_at_ms', 'size_bytes', 'topic')

    def __init__(self, topic: str, partition: int, now_ms: int, ordinal: int):
        self.topic = topic
        self.partition = partition
        self.created_ms = now_ms
        self.ordinal = ordinal
        self.records: list[ProducedRecord] = []
        self.contexts: list[Any] = []
        self.size_bytes = HEADER_BYTES
        self.attempts = 0
        self.retry_at_ms = 0
        self.is_in_doubt = False
        """The answer to the last attempt was lost, so the batch may have been written."""
        self.producer = ProducerIdAndEpoch()
        self.base_sequence: int | None = None

    def number(self, producer: ProducerIdAndEpoch, base_sequence: int) -> None:
        self.producer = producer
        self.base_sequence = base_sequence

    def halves(self) -> list[ProducerBatch]:
        """Split the batch in two, keeping the sequence numbers: for a topic that accepts only smaller batches."""
        middle = len(self.records) // 2
        parts = []
        for start, end in ((0, middle), (middle, len(self.records))):
            part = ProducerBatch(self.topic, self.partition, self.created_ms, self.ordinal)
            part.records, part.contexts = self.records[start:end], self.contexts[start:end]
            part.size_bytes = HEADER_BYTES + sum(map(record_bytes, part.records))
            part.attempts = self.attempts
            if self.base_sequence is not None:
                part.number(self.producer, (self.base_sequence + start) % SEQUENCES)
            parts.append(part)
        return parts


class PartitionQueue:
    """The batches of one partition: open, waiting and in flight."""

    def __init__(self, topic: str, partition: int, batch_bytes: int):
        self.topic = topic
        self.partition = partition
        self.open: ProducerBatch | None = None
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.producer = ProducerIdAndEpoch()
        """The producer whose sequence numbers are in use; a new producer starts at 0."""
        self.next_sequence = 0
        self._batch_bytes = batch_bytes
        self._next_ordinal = 0

    @property
    def is_empty(self) -> bool:
        return self.open is None and not self.waiting and not self.in_flight

    def append(self, record: ProducedRecord, context: Any, size_bytes: int, now_ms: int) -> bool:
        """Add a record to the open batch. Returns True if a batch became full and now waits."""
        closed = False
        batch = self.open
        if batch is not None and batch.size_bytes + size_bytes > self._batch_bytes:
            self.close_open()
            batch, closed = None, True
        if batch is None:
            batch = self.open = ProducerBatch(self.topic, self.partition, now_ms, self._next_ordinal)
            self._next_ordinal += 1
        batch.records.append(record)
        batch.contexts.append(context)
        batch.size_bytes += size_bytes
        return closed

    def close_open(self) -> None:
        if self.open is not None:
            self.waiting.append(self.open)
            self.open = None

    def due_ms(self, linger_ms: int) -> int | None:
        """Return the time of the next batch: 0 is now, None is not before more records or answers arrive."""
        if self.waiting:
            first = self.waiting[0]
            if self.in_flight and (first.attempts or self.in_flight[0].attempts):
                return None
            return first.retry_at_ms
        return None if self.open is None else self.open.created_ms + linger_ms

    def take(self, producer: ProducerIdAndEpoch) -> ProducerBatch:
        """Move the next batch in flight, numbered if there is a producer id. Raises IndexError if none waits."""
        batch = self.waiting.popleft()
        if producer.is_valid and batch.base_sequence is None:
            if self.producer != producer and not self.in_flight:
                self.producer, self.next_sequence = producer, 0
            batch.number(self.producer, self.next_sequence)
            self.next_sequence = (self.next_sequence + len(batch.records)) % SEQUENCES
        self.in_flight.append(batch)
        return batch

    def finish(self, batch: ProducerBatch) -> None:
        self.in_flight.remove(batch)

    def put_back(self, batch: ProducerBatch, retry_at_ms: int) -> None:
        """Queue a batch to be sent again, before all batches that were appended after it."""
        self.in_flight.remove(batch)
        batch.attempts += 1
        batch.retry_at_ms = retry_at_ms
        place = sum(1 for waiting in self.waiting if waiting.attempts and waiting.ordinal < batch.ordinal)
        self.waiting.insert(place, batch)

    def put_back_halves(self, batch: ProducerBatch) -> None:
        self.in_flight.remove(batch)
        for part in reversed(batch.halves()):
            part.attempts += 1
            self.waiting.appendleft(part)

    def is_first_unfinished(self, batch: ProducerBatch) -> bool:
        """Return whether no earlier batch is in flight or about to be sent again."""
        return self.in_flight[0] is batch and not any(
            waiting.attempts and waiting.ordinal < batch.ordinal for waiting in self.waiting)

    def first_in_doubt(self) -> ProducerBatch | None:
        """Return the first waiting batch that may have been written. Only its own numbers can find that out."""
        return next((batch for batch in self.waiting if batch.is_in_doubt), None)

    def put_first(self, batch: ProducerBatch) -> None:
        """Let a waiting batch be the next one that is sent."""
        self.waiting.remove(batch)
        self.waiting.appendleft(batch)

    def forget_numbers(self) -> None:
        """Clear the numbers of waiting batches, which restart at 0 under a new epoch. Nothing may be in flight."""
        if self.in_flight:
            raise AssertionError(f'{len(self.in_flight)} batches of {self.topic}-{self.partition} are in flight')
        for batch in self.waiting:
            batch.base_sequence = None
        self.producer = ProducerIdAndEpoch()

    def drop_waiting(self) -> list[ProducerBatch]:
        """Remove and return every batch that is not in flight."""
        self.close_open()
        dropped = list(self.waiting)
        self.waiting.clear()
        return dropped


def record_bytes(record: ProducedRecord) -> int:
    """Return the most bytes that the record takes in a batch."""
    _, key, value, headers = record
    size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += 10 + len(name.encode()) + (len(content) if content else 0)
    return size
