"""Workers that write outside transactions, and the checks of their topics at the end of a phase."""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import confluent_kafka
import kafka
from endurance.worker import Load, Numbers, Worker, number_of, value_of

from kbroker.client import Admin, ConsumedBatch, Consumer, Delivery, KafkaError, NewTopic, Producer
from kbroker.client.admin import EARLIEST, LATEST

KEPT, EXPIRING, TABLE = 'kept', 'expiring', 'table'
KEPT_PARTITIONS = 4
SEGMENT_BYTES = 1 << 20
"""The lowest value that a topic's `segment.bytes` may have."""
RETENTION_BYTES = 2 << 20
EXPIRING_AT_ONCE = {'segment.ms': '1000', 'retention.ms': '1000'}
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    KEPT: (KEPT_PARTITIONS, {'segment.bytes': str(SEGMENT_BYTES), 'retention.ms': '-1'}),
    EXPIRING: (1, {'segment.bytes': str(SEGMENT_BYTES), 'retention.bytes': str(RETENTION_BYTES)}),
    TABLE: (1, {'segment.bytes': str(SEGMENT_BYTES), 'segment.ms': '2000', 'cleanup.policy': 'compact',
                'min.cleanable.dirty.ratio': '0.01', 'delete.retention.ms': '1000'}),
}
DELIVERY_TIMEOUT_MS = 30_000
MOST_BATCHES = 400
"""The largest number of batches that one producer writes. Then the worker creates a new producer."""
MOST_RECORDS = 10
BIG_BYTES = 4096
KEYS = 100
ROW_BYTES = 900
TOMBSTONE_SHARE = 0.1
FLUSH_S = 60
READ_MS = 60_000
"""The time in seconds without a record after which reading counts as failed. A restart takes less time, even on a
loaded machine.
"""


def create_topics(admin: Admin, load: Load) -> None:
    topics = [NewTopic(load.name(name), partitions, 1, None, configs)
              for name, (partitions, configs) in TOPICS.items()]
    found = admin.create_topics(topics)
    assert not any(found.values()), found


def batches_from(servers: str, topic: str, partitions: int) -> Iterator[ConsumedBatch]:
    """Read a topic from its start to its current end. Raise AssertionError if a record does not arrive."""
    places = [(topic, partition) for partition in range(partitions)]
    with Admin(servers) as admin, Consumer(servers, auto_offset_reset='none', enable_auto_commit=False) as consumer:
        starts, ends = (admin.list_offsets(dict.fromkeys(places, which)) for which in (EARLIEST, LATEST))
        consumer.assign(places)
        for place in places:
            consumer.seek(*place, starts[place].offset)
        while any((consumer.position(*place) or 0) < ends[place].offset for place in places):
            found = consumer.poll(READ_MS)
            assert found, f'{topic} cannot be read up to its end'
            yield from found


class BatchWriter(Worker):
    """A worker that writes batches with an idempotent producer, and replaces the producer after a while."""

    longest_pause_s = 0.4

    def work(self) -> None:
        with closing(self.open()) as producer:
            for _ in range(self.chance.randint(1, MOST_BATCHES)):
                self.write(producer)
                self.done['batches'] += 1
                self.pause(self.longest_pause_s)
                if self.stop.is_set():
                    return

    @abstractmethod
    def open(self) -> Any:
        """Return a producer, which has a method `close`."""

    @abstractmethod
    def write(self, producer: Any) -> None:
        """Write a batch, and wait until it is acknowledged."""


class ConfluentProducer:
    """A producer of librdkafka. Its methods raise errors instead of reporting them to callbacks."""

    def __init__(self, servers: str):
        # After a new bootstrap, librdkafka 2.16 waits forever for the group coordinator that it knew before.
        self._producer = confluent_kafka.Producer({
            'bootstrap.servers': servers, 'enable.idempotence': True, 'linger.ms': 1, 'log_level': 0,
            'message.timeout.ms': DELIVERY_TIMEOUT_MS, 'metadata.recovery.strategy': 'none'})
        self.acknowledged: list[Any] = []
        self._failure: confluent_kafka.KafkaError | None = None

    def send(self, topic: str, value: bytes | None, context: Any, partition: int = 0, key: bytes | None = None) -> None:
        def delivered(error: confluent_kafka.KafkaError | None, message: Any) -> None:
            if error is None:
                self.acknowledged.append(context)
            else:
                self._failure = error

        self._producer.produce(topic, value, key, partition, on_delivery=delivered)

    def flush(self) -> None:
        left = self._producer.flush(FLUSH_S)
        if left or self._failure:
            raise confluent_kafka.KafkaException(self._failure or f'{left} records are not delivered')

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(FLUSH_S)


# ---- records that stay

class KeptWriter(BatchWriter):
    """A worker that writes to the topic `kept`, which every group of the load reads."""

    def write(self, producer: Any) -> None:
        topic = self.load.name(KEPT)
        self.write_records(producer, topic, [(self.chance.randrange(KEPT_PARTITIONS), next(self.load.numbers))
                                             for _ in range(self.chance.randint(1, MOST_RECORDS))])

    @abstractmethod
    def write_records(self, producer: Any, topic: str, records: list[tuple[int, int]]) -> None:
        """Write the records with these (partition, number). Note each acknowledgement."""


class OwnKeptWriter(KeptWriter):
    def open(self) -> Producer:
        return Producer(self.load.servers, on_delivery=self._delivered, delivery_timeout_ms=DELIVERY_TIMEOUT_MS)

    def _delivered(self, delivery: Delivery) -> None:
        if delivery.error is not None:
            raise delivery.error
        for number in delivery.contexts:
            self.load.acknowledged.add(number)

    def write_records(self, producer: Producer, topic: str, records: list[tuple[int, int]]) -> None:
        for partition, number in records:
            producer.send(topic, value_of(number), partition=partition, context=number)
        producer.flush()


class ConfluentKeptWriter(KeptWriter):
    def open(self) -> ConfluentProducer:
        return ConfluentProducer(self.load.servers)

    def write_records(self, producer: ConfluentProducer, topic: str, records: list[tuple[int, int]]) -> None:
        for partition, number in records:
            producer.send(topic, value_of(number), number, partition)
        try:
            producer.flush()
        finally:
            for number in producer.acknowledged:
                self.load.acknowledged.add(number)
            producer.acknowledged.clear()


class KafkaPythonKeptWriter(KeptWriter):
    def open(self) -> Any:
        return kafka.KafkaProducer(bootstrap_servers=self.load.servers, enable_idempotence=True, acks='all',
                                   delivery_timeout_ms=DELIVERY_TIMEOUT_MS, request_timeout_ms=10_000,
                                   max_block_ms=DELIVERY_TIMEOUT_MS)

    def write_records(self, producer: Any, topic: str, records: list[tuple[int, int]]) -> None:
        sent = [(number, producer.send(topic, value_of(number), partition=partition)) for partition, number in records]
        for number, future in sent:
            future.get(FLUSH_S)
            self.load.acknowledged.add(number)


def check_kept(load: Load) -> str:
    """Check that each acknowledged record is in the topic once and unchanged. Return a line of the report."""
    found = Numbers()
    for batch in batches_from(load.servers, load.name(KEPT), KEPT_PARTITIONS):
        for value in batch.values:
            number = number_of(value)
            assert found.add(number), f'{batch.topic}-{batch.partition}: record {number} is there twice'
            assert bytes(value or b'') == value_of(number)
    assert load.acknowledged.without(found) == [], 'acknowledged records are lost'
    return f'kept: {len(load.acknowledged):,} records acknowledged, {len(found):,} found'


# ---- retention

class ExpiringWriter(BatchWriter):
    """A writer of big records to a topic with a small retention. The numbers of the records ascend."""

    def __init__(self, load: Load, seed: int):
        super().__init__('expiring', load, seed)
        self._number = 0
        self.acknowledged = -1

    def open(self) -> Producer:
        return Producer(self.load.servers, on_delivery=self._delivered, delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
                        compression_type=self.chance.choice(('none', 'lz4', 'zstd')))

    def _delivered(self, delivery: Delivery) -> None:
        if delivery.error is not None:
            raise delivery.error
        self.acknowledged = max(self.acknowledged, *delivery.contexts)

    def write(self, producer: Producer) -> None:
        for _ in range(MOST_RECORDS):
            producer.send(self.load.name(EXPIRING), value_of(self._number, BIG_BYTES), partition=0,
                          context=self._number)
            self._number += 1
        producer.flush()

    def check(self) -> str:
        """Check that the oldest records are deleted, the newest are there, and no number is there twice."""
        topic = self.load.name(EXPIRING)
        batches = list(batches_from(self.load.servers, topic, 1))
        first, numbers = batches[0].offsets[0], [number_of(value) for batch in batches for value in batch.values]
        assert numbers == sorted(set(numbers)), f'{topic}: numbers do not ascend'
        kept = len(numbers) * BIG_BYTES
        assert numbers[-1] >= self.acknowledged, f'{topic}: ends at {numbers[-1]}, expected {self.acknowledged}'
        assert kept <= RETENTION_BYTES + 4 * SEGMENT_BYTES, f'{topic}: keeps {kept} bytes'
        if self._number * BIG_BYTES > RETENTION_BYTES + 4 * SEGMENT_BYTES:
            assert first > 0, f'{topic}: retention has removed nothing'
        return f'expiring: {self._number:,} records written, those from offset {first:,} on are left'


# ---- compaction

class TableWriter(BatchWriter):
    """A writer of rows and tombstones to a compacted topic."""

    longest_pause_s = 0.2

    def __init__(self, load: Load, seed: int):
        super().__init__('table', load, seed)
        self._number = 0
        self._possible: dict[bytes, list[int | None]] = {}
        """Maps each key to the values that it may have: the last acknowledged value, and the later values whose outcome
        is unknown.
        """

    def open(self) -> ConfluentProducer:
        return ConfluentProducer(self.load.servers)

    def write(self, producer: ConfluentProducer) -> None:
        chosen = self.chance.sample(range(KEYS), MOST_RECORDS)
        rows = {b'key %d' % key: None if self.chance.random() < TOMBSTONE_SHARE else self._number + index
                for index, key in enumerate(chosen)}
        self._number += len(rows)
        for key, number in rows.items():
            self._possible.setdefault(key, [None]).append(number)
            producer.send(self.load.name(TABLE), None if number is None else value_of(number, ROW_BYTES), key, key=key)
        try:
            producer.flush()
        finally:
            for key in producer.acknowledged:
                self._possible[key] = [rows[key]]
            producer.acknowledged.clear()

    def check(self) -> str:
        """Check that each key has one of the values that it may have."""
        topic, count = self.load.name(TABLE), 0
        found: dict[bytes, int | None] = {}
        for batch in batches_from(self.load.servers, topic, 1):
            count += len(batch)
            for key, value in zip(batch.keys, batch.values, strict=True):
                assert key is not None
                found[bytes(key)] = None if value is None else number_of(value)
        for key, possible in self._possible.items():
            assert found.get(key) in possible, f'{topic}: {key!r} is {found.get(key)}, expected one of {possible}'
        return f'table: {self._number:,} records written, {count:,} are left'


# ---- topics that are created and deleted

class TopicChurner(Worker):
    """A worker that creates, writes, reads, alters and deletes a topic. Sometimes it uses the same name again."""

    def work(self) -> None:
        with Admin(self.load.servers) as admin:
            for name in (self.load.name(f'churn-{self.name}-{next(self.load.numbers)}'),) * self.chance.randint(1, 2):
                self._live(admin, name)
                self.pause(1)

    def _live(self, admin: Admin, name: str) -> None:
        partitions = self.chance.randint(1, 8)
        configs = self.chance.choice(({}, {'cleanup.policy': 'compact'}, EXPIRING_AT_ONCE))
        self._accept(admin.create_topics([NewTopic(name, partitions, 1, None, configs)]))
        sent = [next(self.load.numbers) for _ in range(MOST_RECORDS)]
        with Producer(self.load.servers, delivery_timeout_ms=DELIVERY_TIMEOUT_MS) as producer:
            for number in sent:
                producer.send(name, value_of(number), key=b'%d' % number, partition=number % partitions)
        self.done['topics'] += 1
        if configs is not EXPIRING_AT_ONCE:
            found = [number_of(value) for batch in batches_from(self.load.servers, name, partitions)
                     for value in batch.values]
            assert sorted(found) == sent, f'{name}: found {sorted(found)}, expected {sent}'
        match self.chance.randrange(3):
            case 0:
                self._accept(admin.create_partitions({name: partitions + 2}))
            case 1:
                admin.alter_config('topic', name, {'max.message.bytes': 100_000})
        self.pause(2)
        self._accept(admin.delete_topics([name]))

    @staticmethod
    def _accept(found: dict[str, KafkaError | None]) -> None:
        for error in found.values():
            if error is not None:
                raise error
