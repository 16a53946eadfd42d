"""Maps each key to its last offset, in memory of a fixed size.

A key is stored as a 128-bit hash, so that each entry takes 24 bytes. If the hashes of two keys were equal, compaction
would drop a record that it must keep. Therefore the hash is SipHash-2-4 with a random secret for each map: no client
can construct keys with equal hashes.
"""
import os

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef enum:
    SLOT_BYTES = 24
    SECRET_BYTES = 16

cdef extern from *:
    """
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define KB_LE64(v) (v)
    #else
    #define KB_LE64(v) __builtin_bswap64(v)
    #endif
    """
    uint64_t little_endian "KB_LE64"(uint64_t v) noexcept nogil


cdef struct SipState:
    uint64_t v0
    uint64_t v1
    uint64_t v2
    uint64_t v3


cdef inline uint64_t rotate(uint64_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (64 - bits))


cdef inline void mix(SipState *state, int rounds) noexcept nogil:
    cdef int i
    for i in range(rounds):
        state.v0 += state.v1
        state.v1 = rotate(state.v1, 13) ^ state.v0
        state.v0 = rotate(state.v0, 32)
        state.v2 += state.v3
        state.v3 = rotate(state.v3, 16) ^ state.v2
        state.v0 += state.v3
        state.v3 = rotate(state.v3, 21) ^ state.v0
        state.v2 += state.v1
        state.v1 = rotate(state.v1, 17) ^ state.v2
        state.v2 = rotate(state.v2, 32)


cdef inline void take_word(SipState *state, uint64_t word) noexcept nogil:
    state.v3 ^= word
    mix(state, 2)
    state.v0 ^= word


cdef void hash_key(uint64_t secret_low, uint64_t secret_high, const uint8_t *key, Py_ssize_t size, uint64_t *low,
                   uint64_t *high) noexcept nogil:
    """Compute SipHash-2-4 with 128 bits of output (Aumasson and Bernstein)."""
    cdef SipState state
    cdef uint64_t word
    cdef const uint8_t *end = key + (size & ~<Py_ssize_t>7)
    state.v0 = secret_low ^ 0x736f6d6570736575ULL
    state.v1 = secret_high ^ 0x646f72616e646f6dULL ^ 0xee
    state.v2 = secret_low ^ 0x6c7967656e657261ULL
    state.v3 = secret_high ^ 0x7465646279746573ULL
    while key != end:
        memcpy(&word, key, 8)
        take_word(&state, little_endian(word))
        key += 8
    word = 0
    memcpy(&word, key, size & 7)
    take_word(&state, little_endian(word) | <uint64_t>size << 56)
    state.v2 ^= 0xee
    mix(&state, 4)
    low[0] = state.v0 ^ state.v1 ^ state.v2 ^ state.v3
    state.v1 ^= 0xdd
    mix(&state, 4)
    high[0] = state.v0 ^ state.v1 ^ state.v2 ^ state.v3


cdef class OffsetMap:
    """A hash table with open addressing and linear probing. `latest_offset` is the greatest offset in the map, -1 if
    the map is empty.
    """

    def __init__(self, int64_t max_bytes, double load_factor, int64_t max_keys, bytes secret=None):
        """Allocate at most `max_bytes` of memory. Keys fill at most the fraction `load_factor` of it (0.01 to 1; other
        values are clamped). Allocate less memory if that is enough for `max_keys` keys. Raise MemoryError.
        """
        cdef uint64_t words[2]
        secret = os.urandom(SECRET_BYTES) if secret is None else secret
        if len(secret) != SECRET_BYTES:
            raise ValueError(f'found a secret of {len(secret)} bytes, expected {SECRET_BYTES}')
        load_factor = min(max(load_factor, 0.01), 1.0)
        memcpy(words, <const uint8_t *>secret, SECRET_BYTES)
        self.secret_low, self.secret_high = little_endian(words[0]), little_endian(words[1])
        # One slot is always free, because a search for a missing key ends at a free slot.
        self.slots = max(<int64_t>2, min(max_bytes // SLOT_BYTES, <int64_t>(max_keys / load_factor) + 2))
        self.max_entries = max(<int64_t>1, min(<int64_t>(self.slots * load_factor), self.slots - 1))
        self.latest_offset = -1
        self.table = <Slot *>calloc(self.slots, SLOT_BYTES)
        if self.table == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.table)

    cdef Slot *slot_of(self, uint64_t low, uint64_t high) noexcept nogil:
        """Return the slot with the hash. If no slot has it, return the free slot in which the hash must be stored."""
        cdef int64_t number = <int64_t>(low % <uint64_t>self.slots)
        while self.table[number].offset_plus_1 and (self.table[number].low != low or self.table[number].high != high):
            number += 1
            if number == self.slots:
                number = 0
        return &self.table[number]

    cdef bint put_key(self, const uint8_t *key, Py_ssize_t size, int64_t offset) noexcept nogil:
        """Set the last offset of a key. Return False if the map is full and does not contain the key."""
        cdef uint64_t low, high
        cdef Slot *slot
        hash_key(self.secret_low, self.secret_high, key, size, &low, &high)
        slot = self.slot_of(low, high)
        if not slot.offset_plus_1:
            if self.entries >= self.max_entries:
                return False
            self.entries += 1
            slot.low, slot.high = low, high
        slot.offset_plus_1 = offset + 1
        self.latest_offset = offset
        return True

    cdef int64_t offset_of(self, const uint8_t *key, Py_ssize_t size) noexcept nogil:
        """Return the offset of a key, -1 if it is not in the map."""
        cdef uint64_t low, high
        hash_key(self.secret_low, self.secret_high, key, size, &low, &high)
        return self.slot_of(low, high).offset_plus_1 - 1

    def put(self, bytes key not None, int64_t offset) -> bool:
        """Set the last offset of `key`. `offset` must be above all offsets in the map. Return False if the map is full
        and does not contain the key.
        """
        return self.put_key(<const uint8_t *>key, len(key), offset)

    def get(self, bytes key not None) -> int | None:
        cdef int64_t offset = self.offset_of(<const uint8_t *>key, len(key))
        return None if offset < 0 else offset

    def __len__(self) -> int:
        return self.entries


def sip_hash_128(bytes secret not None, bytes key not None) -> bytes:
    """Return the 128-bit SipHash-2-4 of `key`, as 16 bytes."""
    cdef uint64_t words[2]
    cdef uint64_t result[2]
    if len(secret) != SECRET_BYTES:
        raise ValueError(f'found a secret of {len(secret)} bytes, expected {SECRET_BYTES}')
    memcpy(words, <const uint8_t *>secret, SECRET_BYTES)
    hash_key(little_endian(words[0]), little_endian(words[1]), <const uint8_t *>key, len(key), &result[0], &result[1])
    result[0], result[1] = little_endian(result[0]), little_endian(result[1])
    return (<const uint8_t *>result)[:SECRET_BYTES]
