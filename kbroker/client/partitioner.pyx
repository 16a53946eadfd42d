"""Chooses the partition of a record by its key. A record without a key goes to the sticky partition of its topic
(KIP-794).
"""
import random

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint32_t

cdef enum:
    MULTIPLIER = 0x5BD1E995

cdef uint32_t SEED = 0x9747B28C


cdef uint32_t hash_of(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    """Return the 32-bit MurmurHash2 of `data`, read as little-endian words, with Kafka's seed."""
    cdef uint32_t hashed = SEED ^ <uint32_t>size, word
    cdef const uint8_t *end = data + (size & ~3)
    while data < end:
        word = data[0] | <uint32_t>data[1] << 8 | <uint32_t>data[2] << 16 | <uint32_t>data[3] << 24
        word *= <uint32_t>MULTIPLIER
        word = (word ^ word >> 24) * <uint32_t>MULTIPLIER
        hashed = hashed * <uint32_t>MULTIPLIER ^ word
        data += 4
    size &= 3
    if size:
        word = data[0]
        if size > 1:
            word |= <uint32_t>data[1] << 8
        if size > 2:
            word |= <uint32_t>data[2] << 16
        hashed = (hashed ^ word) * <uint32_t>MULTIPLIER
    hashed = (hashed ^ hashed >> 13) * <uint32_t>MULTIPLIER
    return hashed ^ hashed >> 15


def murmur2(bytes data not None):
    """Return the hash with which Kafka's clients choose the partition of a key, as a signed integer."""
    return <int32_t>hash_of(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


def partition_for_key(bytes key not None, int32_t partitions):
    """Return the partition, 0 to `partitions` - 1, that every Kafka client chooses for this key."""
    if partitions < 1:
        raise ValueError(f'found {partitions} partitions, expected one or more')
    return partition_of(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), partitions)


cdef class StickyPartitions:
    """Chooses partitions for the records without keys of one topic: it stays at one partition for a full batch, then
    changes it.

    If each record went to a new partition, there would be many small batches.
    """

    def __init__(self, Py_ssize_t batch_bytes, rng=None):
        self.batch_bytes = batch_bytes
        self.random = rng or random.Random()
        self.current = -1
        self.available = ()

    cpdef int32_t place(self, Py_ssize_t size_bytes, available) except -1:
        """Return the partition for a record of this size. `available` has the partitions that have a leader, at least
        one.
        """
        if self.placed_bytes >= self.batch_bytes or (
                self.available is not available and self.current not in available):
            self.current = self.another(available)
            self.placed_bytes = 0
        self.available = available
        self.placed_bytes += size_bytes
        return self.current

    cdef int32_t another(self, available) except -1:
        if len(available) == 1:
            return available[0]
        return self.random.choice([partition for partition in available if partition != self.current])
