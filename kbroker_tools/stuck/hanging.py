"""Transactions that nobody will end, found as Kafka's tool finds them (KIP-664); its order of rows, too.

A transaction hangs if it is open on a partition for longer than any transaction may be, and the coordinator either has
no transactional.id for its producer id, or has one whose transaction is without the partition.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from kbroker_tools.view import ProducerInfo, TransactionInfo, View

BATCH = 500
"""How many partitions are asked for at once."""

TopicPartition = tuple[str, int]
K = TypeVar('K', bound=Hashable)


class OpenTransaction(NamedTuple):
    topic: str
    partition: int
    producer: ProducerInfo


def find_hanging(view: View, partitions: Sequence[TopicPartition], max_timeout_ms: int,
                 producers_of: Callable[[Collection[TopicPartition]], dict[TopicPartition, list[ProducerInfo]]],
                 ) -> list[OpenTransaction]:
    """Those among `partitions` whose last record is older than `max_timeout_ms`. KafkaError, OSError."""
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
        hanging += [candidate for candidate in candidates[producer_id] if not _is_covered(known, candidate)]
    return hanging


def _is_covered(known: TransactionInfo | None, candidate: OpenTransaction) -> bool:
    return known is not None and (candidate.topic, candidate.partition) in known.partitions


# ---- the order of a java.util.HashMap, in which Kafka's tool meets partitions and producer ids

def in_java_order(keys: Iterable[K], hash_of: Callable[[K], int], capacity: int = 16) -> list[K]:
    """As a hash map of this initial capacity has them, after they were put into it one by one.

    The table has a power of two of buckets, doubled when it is filled by more than three quarters; a key's bucket is
    its hash, upper half folded onto the lower, modulo that. In a bucket they stay in the order in which they came.
    """
    came = list(keys)
    buckets = 1
    while buckets < capacity:
        buckets *= 2
    while len(came) * 4 > buckets * 3:
        buckets *= 2
    return sorted(came, key=lambda key: (hash_of(key) ^ hash_of(key) >> 16) & buckets - 1)


def string_hash(text: str) -> int:
    """Of a String, in 32 bits. Names of topics have no character beyond ASCII."""
    found = 0
    for character in text:
        found = 31 * found + ord(character)
    return found & 0xFFFFFFFF


def partition_hash(key: TopicPartition) -> int:
    """Of a TopicPartition."""
    topic, partition = key
    return (31 * (31 + partition) + string_hash(topic)) & 0xFFFFFFFF


def long_hash(value: int) -> int:
    """Of a Long: its halves, folded."""
    return (value ^ value >> 32) & 0xFFFFFFFF
