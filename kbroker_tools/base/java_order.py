"""The order of a java.util.HashMap, in which Kafka's tools print settings, topics, partitions and producer ids."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from kbroker.base.topic_partition import TopicPartition

T = TypeVar('T')


def in_java_order(entries: Iterable[T], hash_of: Callable[[T], int], capacity: int = 16, size: int = 0) -> list[T]:
    """Sort entries as a hash map with this initial capacity iterates after they were inserted one by one.

    `size` is the number of entries in the map if these are only some of them. The number of buckets is a power of two,
    doubled when the map is more than three quarters full. The bucket of an entry is the hash of its key, with the upper
    half folded onto the lower, modulo the number of buckets. Entries in one bucket keep their order.
    """
    inserted = list(entries)
    buckets = 1
    while buckets < capacity:
        buckets *= 2
    while max(len(inserted), size) * 4 > buckets * 3:
        buckets *= 2
    return sorted(inserted, key=lambda entry: (hash_of(entry) ^ hash_of(entry) >> 16) & buckets - 1)


def string_hash(text: str) -> int:
    """Return the 32-bit hash of a String. Names in Kafka are ASCII, so each character is one UTF-16 unit."""
    found = 0
    for character in text:
        found = 31 * found + ord(character)
    return found & 0xFFFFFFFF


def partition_hash(key: TopicPartition) -> int:
    """Return the hash of a TopicPartition."""
    topic, partition = key
    return (31 * (31 + partition) + string_hash(topic)) & 0xFFFFFFFF


def long_hash(value: int) -> int:
    """Return the hash of a Long: its two halves, combined by exclusive or."""
    return (value ^ value >> 32) & 0xFFFFFFFF
