"""Chooses the partition of a record: by its key, or without a key the partition of the current batch (KIP-794)."""
from __future__ import annotations

import random
import struct
from collections.abc import Sequence

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return Kafka's hash of a key: 32-bit MurmurHash2, little-endian, with Kafka's seed; signed."""
    length = len(data)
    hashed = _SEED ^ length
    for (word,) in struct.iter_unpack('<I', data[:length & ~3]):
        word = word * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        hashed = hashed * _MULTIPLIER & _MASK ^ word
    tail = data[length & ~3:]
    if tail:
        hashed = (hashed ^ int.from_bytes(tail, 'little')) * _MULTIPLIER & _MASK
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _MASK
    hashed ^= hashed >> 15
    return hashed - (1 << 32) if hashed >> 31 else hashed


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition, 0 to `partitions` - 1, that every Kafka client chooses for this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartitions:
    """The partition choice for keyless records of one topic: a full batch to one partition, then to another.

    Choosing a new partition for each record would make many small batches.
    """

    def __init__(self, batch_bytes: int, rng: random.Random | None = None):
        self._batch_bytes = batch_bytes
        self._random = rng or random.Random()
        self._current = -1
        self._placed_bytes = 0

    def place(self, size_bytes: int, available: Sequence[int]) -> int:
        """Return the partition for a record of this size. `available`: the partitions with a leader, at least one."""
        if self._current not in available or self._placed_bytes >= self._batch_bytes:
            self._current = self._another(available)
            self._placed_bytes = 0
        self._placed_bytes += size_bytes
        return self._current

    def _another(self, available: Sequence[int]) -> int:
        if len(available) == 1:
            return available[0]
        return self._random.choice([partition for partition in available if partition != self._current])
