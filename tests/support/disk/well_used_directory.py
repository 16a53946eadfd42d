"""Clients whose work produces every state of a sound log directory: by compaction, retention, DeleteRecords,
transactions and deletions of topics.
"""
from __future__ import annotations

import pathlib
import random
import time
from typing import Any, Protocol

import confluent_kafka
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from support.clients import librdkafka

LIMIT_S = 120
SETTINGS = {
    'log.roll.ms': '40', 'log.cleaner.backoff.ms': '100', 'log.cleaner.min.cleanable.ratio': '0.01',
    'log.cleaner.delete.retention.ms': '100', 'log.retention.check.interval.ms': '400',
    'log.index.interval.bytes': '200', 'log.flush.offset.checkpoint.interval.ms': '500',
    'log.flush.start.offset.checkpoint.interval.ms': '500', 'log.segment.delete.delay.ms': '1000',
    'log.cleaner.dedupe.buffer.size': '2097152', 'log.cleaner.threads': '1', 'producer.id.expiration.ms': '4000',
    'offsets.topic.num.partitions': '2', 'transaction.state.log.num.partitions': '2',
    'group.initial.rebalance.delay.ms': '0',
}
TOPICS = {
    'kept': {}, 'compacted': {'cleanup.policy': 'compact'},
    'both': {'cleanup.policy': 'compact,delete', 'retention.bytes': '4000'},
    'short': {'retention.bytes': '3000'},
}
CLEANER_FILE = 'cleaner-offset-checkpoint'
TRANSACTIONS = 6
QUIET = {'log_level': 0, 'log.connection.close': False}
"""The settings of clients that stay open while their broker is stopped."""


class Broker(Protocol):
    """A broker process of kbroker or of Apache Kafka."""

    address: str
    directory: pathlib.Path


def create_topics(broker: Broker) -> None:
    librdkafka.create_topics(broker.address, *map(new_topic, TOPICS))


def new_topic(name: str) -> NewTopic:
    return NewTopic(name, 2, 1, config=TOPICS[name])


class Work:
    """The clients of one broker. Each round appends to every topic. The clients of the next broker have the same
    transactional ids.
    """

    def __init__(self, broker: Broker, seed: int):
        self._rng = random.Random(seed)
        self._address = broker.address
        self._directory = broker.directory
        self._admin = AdminClient({'bootstrap.servers': self._address, **QUIET})
        self._round = 0
        self._transactional: dict[str, confluent_kafka.Producer] = {}
        self._consumer = confluent_kafka.Consumer({
            'bootstrap.servers': self._address, 'group.id': 'readers', 'auto.offset.reset': 'earliest', **QUIET})

    def run_rounds(self, count: int) -> None:
        for _ in range(count):
            self.run_round()

    def run_until_cleaned(self) -> None:
        """Run rounds until the cleaner has cleaned the compacted topics and `__consumer_offsets` at least twice."""
        deadline = time.monotonic() + LIMIT_S
        first = self._cleaned()
        while not self._is_beyond(first):
            assert time.monotonic() < deadline, self._cleaned()
            self.run_round()

    def _is_beyond(self, first: dict[str, int]) -> bool:
        now = self._cleaned()
        return all(any(offset > first.get(name, 0) + 20 for name, offset in now.items() if name.startswith(topic))
                   for topic in ('compacted ', 'both ', '__consumer_offsets '))

    def _cleaned(self) -> dict[str, int]:
        try:
            lines = (self._directory / CLEANER_FILE).read_text().splitlines()[2:]
        except FileNotFoundError:
            return {}
        return {f'{topic} {partition}': int(offset) for topic, partition, offset in map(str.split, lines)}

    def run_round(self) -> None:
        self._round += 1
        plain = self._producer({'enable.idempotence': True})
        self._write(plain, 'plain')
        assert plain.flush(LIMIT_S) == 0
        for number in self._rng.sample(range(TRANSACTIONS), 3):
            self._transact(f'tx-{number}', self._rng.choice(('commit', 'abort', 'abort', 'open')))
        self._consumer.commit(offsets=[TopicPartition('kept', self._rng.randrange(2), self._round)],
                              asynchronous=False)
        if self._rng.random() < 0.3:
            self._delete_records()

    def _producer(self, settings: dict[str, Any]) -> confluent_kafka.Producer:
        return confluent_kafka.Producer({'bootstrap.servers': self._address, 'linger.ms': 0, **QUIET, **settings})

    def _write(self, producer: confluent_kafka.Producer, value: str) -> None:
        for topic in TOPICS:
            for partition in (0, 1):
                for _ in range(self._rng.randrange(1, 4)):
                    is_tombstone = self._rng.random() < 0.2
                    producer.produce(topic, None if is_tombstone else f'{value} {self._round}',
                                     f'key {self._rng.randrange(12)}', partition=partition)

    def _transact(self, transactional_id: str, end: str) -> None:
        """Run a transaction. If `end` leaves the transaction open, the next producer with its id ends it, or a later
        start of the broker.
        """
        producer = self._transactional.pop(transactional_id, None)
        if producer is None:
            producer = self._producer({'transactional.id': transactional_id})
            producer.init_transactions(LIMIT_S)
        producer.begin_transaction()
        self._write(producer, transactional_id)
        assert producer.flush(LIMIT_S) == 0
        producer.send_offsets_to_transaction([TopicPartition('kept', 0, self._round)],
                                             self._consumer.consumer_group_metadata(), LIMIT_S)
        if end == 'commit':
            producer.commit_transaction(LIMIT_S)
        elif end == 'abort':
            producer.abort_transaction(LIMIT_S)
        if end != 'open' and self._rng.random() < 0.7:
            self._transactional[transactional_id] = producer

    def _delete_records(self) -> None:
        place = TopicPartition(self._rng.choice(('kept', 'short')), self._rng.randrange(2))
        bounds = [self._admin.list_offsets({place: spec})[place].result(LIMIT_S).offset
                  for spec in (OffsetSpec.earliest(), OffsetSpec.latest())]
        place.offset = self._rng.randint(*bounds)
        self._admin.delete_records([place])[place].result(LIMIT_S)

    def create_again(self, name: str) -> None:
        """Delete a topic and create a topic of the same name. The broker removes the directories of the deleted topic
        later.
        """
        self._admin.delete_topics([name])[name].result(LIMIT_S)
        self._admin.create_topics([new_topic(name)])[name].result(LIMIT_S)
