"""A partition's log as a list of batches, with a slow check of the rules for producers. The tests compare `kbroker.log`
with it."""
from __future__ import annotations

from dataclasses import dataclass, field

CLIENT, COORDINATOR = 'client', 'coordinator'


@dataclass
class Batch:
    """A batch for the log, with the base offset that the log sets when the batch is appended."""

    data: bytes
    count: int
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    transactional: bool = False
    marker: str | None = None
    coordinator_epoch: int = 0
    transaction_version: int = 0
    timestamp_ms: int = 0
    base_offset: int = -1

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.count - 1


@dataclass
class Producer:
    epoch: int = -1
    coordinator_epoch: int = -1
    batches: list[Batch] = field(default_factory=list)
    open_since: int | None = None

    @property
    def last_sequence(self) -> int:
        if not self.batches or self.batches[-1].sequence < 0:
            return -1
        return (self.batches[-1].sequence + self.batches[-1].count - 1) % 2**31


class Refused(Exception):
    """Raised if the log refuses an append. The argument is Kafka's name of the error code."""


class ReferenceLog:
    """A log that computes its state from the list of all batches in each call."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    def producers(self, restarted_at: int = 0) -> dict[int, Producer]:
        """Return {producer id: Producer} after all batches. `restarted_at` is the log end at the last restart: of the
        batches before it, each producer remembers only the last one."""
        state: dict[int, Producer] = {}
        for batch in self.batches:
            if batch.producer_id < 0:
                continue
            producer = state.setdefault(batch.producer_id, Producer())
            if batch.epoch != producer.epoch:
                producer.batches = []
            producer.epoch = batch.epoch
            if batch.marker:
                producer.coordinator_epoch = batch.coordinator_epoch
                producer.open_since = None
                continue
            producer.batches = [*producer.batches, batch][-5:]
            if batch.transactional and producer.open_since is None:
                producer.open_since = batch.base_offset
        for producer in state.values():
            old = [batch for batch in producer.batches if batch.base_offset < restarted_at]
            producer.batches = old[-1:] + producer.batches[len(old):]
        return state

    def append(self, batch: Batch, origin: str, restarted_at: int = 0) -> tuple[int, bool]:
        """Append a batch. Return (base offset, whether the batch is a duplicate). Raise Refused if the batch violates a
        rule."""
        producer = self.producers(restarted_at).get(batch.producer_id)
        if batch.producer_id >= 0 and producer is not None:
            if origin == CLIENT:
                for known in producer.batches:
                    if (known.epoch, known.sequence, known.count) == (batch.epoch, batch.sequence, batch.count):
                        return known.base_offset, True
            self._judge(batch, producer, origin)
        batch.base_offset = self.end_offset
        self.batches.append(batch)
        return batch.base_offset, False

    def _judge(self, batch: Batch, producer: Producer, origin: str) -> None:
        if batch.epoch < producer.epoch:
            raise Refused('INVALID_PRODUCER_EPOCH')
        if batch.marker:
            same_epoch_open = batch.epoch == producer.epoch and producer.open_since is not None
            if batch.transaction_version == 2 and same_epoch_open and batch.epoch != 32767:
                raise Refused('INVALID_PRODUCER_EPOCH')
            if batch.coordinator_epoch < producer.coordinator_epoch:
                raise Refused('TRANSACTION_COORDINATOR_FENCED')
            return
        if origin == CLIENT:
            expected = 0 if batch.epoch != producer.epoch else (producer.last_sequence + 1) % 2**31
            if batch.sequence != expected:
                raise Refused('OUT_OF_ORDER_SEQUENCE_NUMBER')
        if producer.open_since is not None and not batch.transactional:
            raise Refused('INVALID_TXN_STATE')

    def truncate_to(self, end_offset: int) -> None:
        """Remove the batches from `end_offset` on, as a crash would."""
        self.batches = [batch for batch in self.batches if batch.last_offset < end_offset]

    def transactions(self) -> list[tuple[int, int, int | None, str | None]]:
        """Return (producer id, first offset, marker offset, outcome) for each transaction, sorted by first offset. The
        last two are None for an open transaction."""
        found: list[tuple[int, int, int | None, str | None]] = []
        opened: dict[int, int] = {}
        for batch in self.batches:
            if batch.marker:
                if batch.producer_id in opened:
                    found.append((batch.producer_id, opened.pop(batch.producer_id), batch.base_offset, batch.marker))
            elif batch.transactional:
                opened.setdefault(batch.producer_id, batch.base_offset)
        found += [(producer_id, first, None, None) for producer_id, first in opened.items()]
        return sorted(found, key=lambda row: row[1])

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        unstable = [first for _, first, marker, _ in self.transactions() if marker is None or marker >= high_watermark]
        return min(unstable) if unstable else None

    def aborted(self, start_offset: int, end_offset: int) -> set[tuple[int, int]]:
        """Return (producer id, first offset) for each aborted transaction that has a batch or its marker from
        `start_offset` to before `end_offset`."""
        return {(producer_id, first) for producer_id, first, marker, end in self.transactions()
                if end == 'abort' and marker is not None and marker >= start_offset and first < end_offset}
