"""The search for hanging transactions. It has the rules of Kafka's tool (KIP-664), and returns transactions in the same
order.

A transaction hangs if two conditions are met. It has been open in a partition for longer than the longest transaction
timeout, and its coordinator will not end it. The coordinator will not end it if no transactional.id has the producer
id, or if the transaction of this transactional.id does not include the partition.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from kbroker.base.topic_partition import TopicPartition
from kbroker.client.descriptions import ProducerInfo, TransactionInfo, TransactionListing
from kbroker_tools.base.java_order import in_java_order, long_hash, partition_hash

BATCH = 500
"""The most partitions in one request for producers."""


class Coordinators(Protocol):
    """The part of a `View` that knows transactional ids."""

    def now_ms(self) -> int: ...

    def transactions(self) -> list[TransactionListing]: ...

    def transaction(self, transactional_id: str) -> TransactionInfo | None: ...


class OpenTransaction(NamedTuple):
    topic: str
    partition: int
    producer: ProducerInfo


class OpenCount:
    """A callable that returns the producers of partitions and counts their open transactions. A producer has at most
    one open transaction."""

    def __init__(self, producers_of: Callable[[Collection[TopicPartition]], dict[TopicPartition, list[ProducerInfo]]]):
        self._producers_of = producers_of
        self.partitions = 0
        self._producer_ids: set[int] = set()

    @property
    def transactions(self) -> int:
        return len(self._producer_ids)

    def __call__(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, list[ProducerInfo]]:
        found = self._producers_of(partitions)
        for producers in found.values():
            opened = {each.producer_id for each in producers if each.transaction_first_offset is not None}
            self._producer_ids |= opened
            self.partitions += bool(opened)
        return found


def find_hanging(view: Coordinators, partitions: Sequence[TopicPartition], max_timeout_ms: int,
                 producers_of: Callable[[Collection[TopicPartition]], dict[TopicPartition, list[ProducerInfo]]],
                 ) -> list[OpenTransaction]:
    """Return the hanging transactions in `partitions`. Their last record is older than `max_timeout_ms`.

    `producers_of` returns the producers of the given partitions. Raise KafkaError or OSError if the state cannot be
    read.
    """
    candidates: dict[int, list[OpenTransaction]] = {}
    for start in range(0, len(partitions), BATCH):
        found = producers_of(partitions[start:start + BATCH])
        now_ms = view.now_ms()
        for topic, partition in in_java_order(found, partition_hash, len(found)):
            for producer in found[topic, partition]:
                if (producer.transaction_first_offset is not None
                        and now_ms - producer.last_timestamp_ms > max_timeout_ms):
                    candidates.setdefault(producer.producer_id, []).append(OpenTransaction(topic, partition, producer))
    if not candidates:
        return []
    transactional_ids = {listing.producer_id: listing.transactional_id for listing in view.transactions()}
    hanging = []
    for producer_id in in_java_order(candidates, long_hash):
        transactional_id = transactional_ids.get(producer_id)
        known = view.transaction(transactional_id) if transactional_id is not None else None
        covered = frozenset(known.partitions if known is not None else ())
        hanging += [each for each in candidates[producer_id] if (each.topic, each.partition) not in covered]
    return hanging
