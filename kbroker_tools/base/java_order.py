"""The iteration order of a java.util.HashMap. Kafka's tools print settings, topics, partitions and producer ids in this
order."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from kbroker.base.topic_partition import TopicPartition

T = TypeVar('T')


def in_java_order(entries: Iterable[T], hash_of: Callable[[T], int], capacity: int = 16, size: int = 0) -> list[T]:
    """Sort entries into the order in which a HashMap with this initial capacity iterates over them.

    `entries` are in the order of their insertion. If they are only a part of the map, `size` is the number of all its
    entries. The number of buckets is a power of two, and doubles when the map is more than three quarters full. The
    bucket of an entry is the hash of its key, with the upper half folded onto the lower, modulo the number of buckets.
    Entries in the same bucket keep their order.
    """
    inserted = list(entries)
    buckets = 1
    while buckets < capacity:
        buckets *= 2
    while max(len(inserted), size) * 4 > buckets * 3:
        buckets *= 2
    return sorted(inserted, key=lambda entry: (hash_of(entry) ^ hash_of(entry) >> 16) & buckets - 1)


def string_hash(text: str) -> int:
    """Return the 32-bit hash of a Java String. Names in Kafka are ASCII, so each character is one UTF-16 unit."""
    found = 0
    for character in text:
        found = 31 * found + ord(character)
    return found & 0xFFFFFFFF


def partition_hash(key: TopicPartition) -> int:
    """Return Java's hash of a TopicPartition."""
    topic, partition = key
    return (31 * (31 + partition) + string_hash(topic)) & 0xFFFFFFFF


def long_hash(value: int) -> int:
    """Return Java's hash of a Long: its two halves, combined by exclusive or."""
    return (value ^ value >> 32) & 0xFFFFFFFF
