"""Histories of producers, written to the partitions of a directory by a broker in the test's process.

A history knows which of its batches the next start of the directory has to recognise if they are repeated. It is an
oracle that knows only the rules: a broker remembers the last five batches of the current epoch of each producer.
"""
from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from support.brokers.in_process_broker import InProcessBroker
from support.clients.tv1_producer import InProcessPeer, sound
from support.messages.message_builder import batch_of

from kbroker.base.clock import ManualClock
from kbroker.log.producer_state import ActiveProducer

SETTINGS = {'transaction.state.log.num.partitions': '1', 'offsets.topic.num.partitions': '1',
            'share.coordinator.state.topic.num.partitions': '1', 'transaction.two.phase.commit.enable': 'true',
            'transaction.partition.verification.enable': 'false'}
"""The broker settings. Without the verification, a producer needs no transactional id: the test writes its markers."""
HOUR_MS = 3_600_000
EXPIRATION_MS = 24 * HOUR_MS
"""The default of `producer.id.expiration.ms`."""
TRANSACTION_LIMIT_MS = 900_000
"""The default of `transaction.max.timeout.ms`. The other broker has to start within this time."""
REMEMBERED = 5
FIRST_PRODUCER_ID = 1 << 40
"""Ids from here on are not assigned by a broker."""
PRODUCERS_OF_PARTITION = 1000
PLAIN, BOUNDED = 'plain', 'bounded'
"""Two topics. The start of a partition of BOUNDED replays only a few kilobytes."""
CONFIGS = {PLAIN: {}, BOUNDED: {'max.message.bytes': '1500'}}
ANY_TIMESTAMP = {'message.timestamp.after.max.ms': str((1 << 63) - 1)}


@dataclass(eq=False)
class Producer:
    """A producer of one partition. Its transactions follow the rules of version 1 or 2; with version 0, it has none.

    The coordinator knows it if it has a transactional id.
    """

    producer_id: int
    transaction_version: int = 0
    transactional_id: str | None = None
    epoch: int = 0
    sequence: int = 0
    is_open: bool = False
    is_kept: bool = False
    last_timestamp_ms: int = -1
    known: list[Sent] = field(default_factory=list)
    """The batches that a broker remembers as long as it runs, oldest first."""

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.sequence, self.known = epoch, 0, []


class Sent(NamedTuple):
    """A batch that was appended."""

    producer: Producer
    records: bytes
    base_offset: int

    @property
    def is_transactional(self) -> bool:
        return self.producer.transaction_version > 0


class PartitionHistory:
    """The batches and markers of one partition. `sent` has the batches in the order of the log."""

    def __init__(self, name: str, topic: str, partition: int):
        self.name, self.topic, self.partition = name, topic, partition
        self.producers: list[Producer] = []
        self.sent: list[Sent] = []
        self.rows: list[ActiveProducer] = []
        """The producers that the broker knew before its last stop."""
        self.coordinator_epoch = 0
        self.rolled_at = self.log_start_offset = self.log_end_offset = 0
        self._broker: InProcessBroker
        self._peer: InProcessPeer

    def now_ms(self) -> int:
        return self._broker.clock.wall_ms()

    def continue_on(self, broker: InProcessBroker) -> None:
        self._broker, self._peer = broker, InProcessPeer(broker)

    def add_producer(self, transaction_version: int = 0) -> Producer:
        """Return a new producer that no coordinator knows."""
        producer = Producer(FIRST_PRODUCER_ID + self.partition * PRODUCERS_OF_PARTITION + len(self.producers),
                            transaction_version)
        self.producers.append(producer)
        return producer

    def add_transactional(self, transaction_version: int, **options: Any) -> Producer:
        """Return a new producer with a transactional id. `options` are fields of InitProducerId 6."""
        name = f'{self.topic}-{self.partition}-{len(self.producers)}'
        self._peer.ask('FindCoordinator', 4, key_type=1, coordinator_keys=[name])
        answer = sound(self._peer.ask('InitProducerId', 6, transactional_id=name,
                                      transaction_timeout_ms=TRANSACTION_LIMIT_MS, **options))
        producer = Producer(answer.producer_id, transaction_version, name, answer.producer_epoch)
        self.producers.append(producer)
        return producer

    def write(self, producer: Producer, count: int = 1, *, timestamp_ms: int | None = None) -> None:
        """Append a batch of `count` records. The default timestamp is the time of the clock."""
        timestamp_ms = self.now_ms() if timestamp_ms is None else timestamp_ms
        values = [f'{self.partition} {len(self.sent)} {number}'.encode() for number in range(count)]
        is_transactional = producer.transaction_version > 0
        records = batch_of(timestamp_ms, *values, producer_id=producer.producer_id, producer_epoch=producer.epoch,
                           base_sequence=producer.sequence, transactional=is_transactional)
        if producer.transactional_id is not None and not producer.is_open:
            sound(self._peer.ask('AddPartitionsToTxn', 3, v3_and_below_transactional_id=producer.transactional_id,
                                 v3_and_below_producer_id=producer.producer_id,
                                 v3_and_below_producer_epoch=producer.epoch,
                                 v3_and_below_topics=[dict(name=self.topic, partitions=[self.partition])]))
        answer = sound(self._peer.ask('Produce', 11, acks=-1, timeout_ms=1000,
                                      transactional_id='any' if is_transactional else None, topic_data=[
                                          dict(name=self.topic, partition_data=[
                                              dict(index=self.partition, records=records)])]))
        batch = Sent(producer, records, answer.responses[0].partition_responses[0].base_offset)
        assert batch.base_offset == self.log_end_offset, 'the batch is new'
        self.log_end_offset += count
        self.sent.append(batch)
        producer.known = [*producer.known, batch][-REMEMBERED:]
        producer.sequence += count
        producer.is_open = is_transactional
        producer.last_timestamp_ms = timestamp_ms

    def end(self, producer: Producer, *, committed: bool = True, raises_epoch: bool | None = None) -> None:
        """Append the marker of the producer's transaction. By default, the transaction version says whether the marker
        raises the epoch.
        """
        raises_epoch = producer.transaction_version == 2 if raises_epoch is None else raises_epoch
        epoch = producer.epoch + raises_epoch
        if producer.transactional_id is None:
            sound(self._peer.ask('WriteTxnMarkers', 2, markers=[dict(
                producer_id=producer.producer_id, producer_epoch=epoch, transaction_result=committed,
                coordinator_epoch=self.coordinator_epoch, transaction_version=producer.transaction_version,
                topics=[dict(name=self.topic, partition_indexes=[self.partition])])]))
        else:
            end_transaction(self._peer, producer, committed)
        self.log_end_offset += 1
        producer.is_open = False
        producer.last_timestamp_ms = self.now_ms()
        if raises_epoch:
            producer.begin_epoch(epoch)

    def keep(self, producer: Producer) -> None:
        """Let a new client keep the prepared transaction in two-phase commit (KIP-939)."""
        answer = sound(self._peer.ask('InitProducerId', 6, transactional_id=producer.transactional_id, enable2_pc=True,
                                      transaction_timeout_ms=TRANSACTION_LIMIT_MS, keep_prepared_txn=True))
        assert answer.ongoing_txn_producer_id == producer.producer_id
        producer.is_kept = True

    def roll(self) -> None:
        self._broker.logs.logs[self.topic, self.partition].roll()
        self.rolled_at = self.log_end_offset

    def delete_records(self, offset: int) -> None:
        """Delete the records below an offset."""
        sound(self._peer.ask('DeleteRecords', 2, timeout_ms=1000, topics=[
            dict(name=self.topic, partitions=[dict(partition_index=self.partition, offset=offset)])]))
        self.log_start_offset = max(self.log_start_offset, offset)

    def expire_producers(self, now_ms: int) -> None:
        """Note that the broker has removed the producers that were idle for a day."""
        for producer in self.producers:
            if not producer.is_open and now_ms - producer.last_timestamp_ms >= EXPIRATION_MS:
                producer.known = []

    def stop(self, now_ms: int) -> None:
        """Note that the broker stops cleanly and starts again. A producer whose transaction has been open for a day may
        be absent from the snapshot, if its transaction begins above the snapshot. If all records are deleted, the
        broker forgets all producers, and each begins another epoch.
        """
        for producer in self.producers:
            if now_ms - producer.last_timestamp_ms >= EXPIRATION_MS:
                producer.known = []
            if self.log_start_offset == self.log_end_offset:
                producer.begin_epoch(producer.epoch + 1)
                producer.is_open = False

    def rows_to_keep(self, now_ms: int) -> list[ActiveProducer]:
        """Return the rows of the producers that the next start of a clean directory at `now_ms` has to know. A producer
        whose time has expired may be known or not. All are unknown if all records are deleted.
        """
        if self.log_start_offset == self.log_end_offset:
            return []
        return [row for row in self.rows
                if row.transaction_first_offset >= 0 or now_ms - row.last_timestamp_ms < EXPIRATION_MS]

    def recognised(self) -> list[Sent]:
        """Return the batches that the start after a clean stop has to recognise. Call `stop` before.

        They are those that the broker remembers, except that only the last batch of a producer is known if the start
        does not replay the batches before it.
        """
        first = max(self.rolled_at, self.log_start_offset + 1)
        if self.topic == BOUNDED:
            first = self.log_end_offset
        return [batch for producer in self.producers for number, batch in enumerate(reversed(producer.known))
                if number == 0 or batch.base_offset >= first]


def end_transaction(peer: Any, producer: Producer, committed: bool) -> None:
    """End a transaction by the coordinator."""
    raises_epoch = producer.transaction_version == 2
    answer = sound(peer.ask('EndTxn', 5 if raises_epoch else 4, transactional_id=producer.transactional_id,
                            producer_id=producer.producer_id, producer_epoch=producer.epoch, committed=committed))
    assert not raises_epoch or answer.producer_epoch == producer.epoch + 1


Work = Callable[[PartitionHistory], Iterator[None]]
"""The type of a generator that writes a history in three parts. The first part is written two days ago. Most producers
expire before the second part, which is written a few minutes ago. A clean stop and a start follow, then the third part.
"""


def write_histories(directory: pathlib.Path, works: Mapping[str, Mapping[str, Work]], now_ms: int,
                    ) -> list[PartitionHistory]:
    """Write a history to each partition of the topics, and stop the broker cleanly at `now_ms`. Return the histories.
    `works` is {topic: {name of a history: work}}.
    """
    histories, running = [], []
    for topic, by_name in works.items():
        for partition, (name, work) in enumerate(by_name.items()):
            histories.append(PartitionHistory(name, topic, partition))
            running.append(work(histories[-1]))
    clock = ManualClock(now_ms - 2 * EXPIRATION_MS)

    def write_part(broker: InProcessBroker) -> None:
        for history, work in zip(histories, running, strict=True):
            history.continue_on(broker)
            next(work, None)

    with InProcessBroker(directory, SETTINGS, clock=clock) as broker:
        for topic, by_name in works.items():
            broker.topics.create(topic, len(by_name), {**CONFIGS[topic], **ANY_TIMESTAMP})
        broker.turn()
        write_part(broker)
        clock.advance(2 * EXPIRATION_MS - HOUR_MS // 10)
        broker.turn()
        for history in histories:
            history.expire_producers(clock.wall_ms())
        write_part(broker)
    for history in histories:
        history.stop(clock.wall_ms())
    clock.advance(now_ms - clock.wall_ms())
    with InProcessBroker(directory, SETTINGS, clock=clock) as broker:
        write_part(broker)
        for history in histories:
            history.rows = broker.logs.logs[history.topic, history.partition].producer_state.active_producers()
    for history in histories:
        history.stop(now_ms)
    return histories
