"""Records on their way to a partition: gathered into batches, numbered, and kept in order while batches are sent again.

    send() --> open batch --closes: full, lingered, flushed--> waiting --take()--> in flight --> done
                                                                  ^                   |
                                                                  +--- put_back() ----+

A partition refuses a batch whose first sequence does not follow its last one. So a batch gets its numbers when it is
first taken, keeps them when it is sent again, and as long as a batch is on its second way nothing else of the
partition is on any way: the batches that were in flight behind it have been refused too, and come back first.
"""
from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from kbroker.record.batch import HEADER_BYTES, NO_PRODUCER_EPOCH, NO_PRODUCER_ID

SEQUENCES = 1 << 31
"""The sequence after 2147483647 is 0."""
RECORD_OVERHEAD_BYTES = 16
"""What a record has beside key, value and headers is at most this, as long as each is shorter than 2 MiB."""

ProducedRecord = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def is_valid(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID


class ProducerBatch:
    """Some records of one partition, in order. `contexts` are what the sender gave along with each; `ordinal`
    is the place of the batch in its partition.
    """

    __slots__ = ('attempts', 'base_sequence', 'contexts', 'created_ms', 'ordinal', 'partition', 'producer',
                 'records', 'retry_at_ms', 'size_bytes', 'topic')

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
        self.producer = ProducerIdAndEpoch()
        self.base_sequence: int | None = None

    def number(self, producer: ProducerIdAndEpoch, base_sequence: int) -> None:
        self.producer = producer
        self.base_sequence = base_sequence

    def halves(self) -> list[ProducerBatch]:
        """The same records under the same numbers in two batches: for a topic that takes smaller ones only."""
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
    """What is to be sent to one partition, and what is under way."""

    def __init__(self, topic: str, partition: int, batch_bytes: int):
        self.topic = topic
        self.partition = partition
        self.open: ProducerBatch | None = None
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.producer = ProducerIdAndEpoch()
        """Whom the numbers of the last batch belong to; a producer that changed begins at 0."""
        self.next_sequence = 0
        self._batch_bytes = batch_bytes
        self._next_ordinal = 0

    @property
    def is_empty(self) -> bool:
        return self.open is None and not self.waiting and not self.in_flight

    def append(self, record: ProducedRecord, context: Any, size_bytes: int, now_ms: int) -> bool:
        """True: a batch has become full and waits."""
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
        """When there is something to take: 0 is now, None is never unless records or answers come."""
        if self.waiting:
            first = self.waiting[0]
            if self.in_flight and (first.attempts or self.in_flight[0].attempts):
                return None
            return first.retry_at_ms
        return None if self.open is None else self.open.created_ms + linger_ms

    def take(self, producer: ProducerIdAndEpoch) -> ProducerBatch:
        """The next batch, numbered if there is a producer id, now in flight. IndexError: nothing waits."""
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
        """To be sent again, before all that was appended after it."""
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
        """No earlier batch is under way or about to be sent again."""
        return self.in_flight[0] is batch and not any(
            waiting.attempts and waiting.ordinal < batch.ordinal for waiting in self.waiting)

    def forget_numbers(self) -> None:
        """What waits will be numbered anew, from 0: under a new epoch. Nothing may be in flight."""
        if self.in_flight:
            raise AssertionError(f'{len(self.in_flight)} batches of {self.topic}-{self.partition} are in flight')
        for batch in self.waiting:
            batch.base_sequence = None
        self.producer = ProducerIdAndEpoch()

    def drop_waiting(self) -> list[ProducerBatch]:
        """Everything not yet under way, taken out."""
        self.close_open()
        dropped = list(self.waiting)
        self.waiting.clear()
        return dropped


def record_bytes(record: ProducedRecord) -> int:
    """At most so many bytes has the record in a batch."""
    _, key, value, headers = record
    size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += 10 + len(name.encode()) + (len(content) if content else 0)
    return size
