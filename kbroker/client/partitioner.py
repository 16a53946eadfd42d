"""Which partition a record goes to: by its key, or, without one, to where the current batch is (KIP-794)."""
from __future__ import annotations

import random
import struct
from collections.abc import Sequence

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key: MurmurHash2 in 32 bits, little-endian, with a seed of its own; signed."""
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
    """The partition, 0 to `partitions` - 1, that every client of Kafka gives this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartitions:
    """Keyless records of one topic: they stay on a partition until a batch's worth is there, then go to another.

    A record at a time to each partition would make many small batches.
    """

    def __init__(self, batch_bytes: int, rng: random.Random | None = None):
        self._batch_bytes = batch_bytes
        self._random = rng or random.Random()
        self._current = -1
        self._placed_bytes = 0

    def place(self, size_bytes: int, available: Sequence[int]) -> int:
        """The partition for a record of this size. `available`: those that have a leader, at least one."""
        if self._current not in available or self._placed_bytes >= self._batch_bytes:
            self._current = self._another(available)
            self._placed_bytes = 0
        self._placed_bytes += size_bytes
        return self._current

    def _another(self, available: Sequence[int]) -> int:
        if len(available) == 1:
            return available[0]
        return self._random.choice([partition for partition in available if partition != self._current])
