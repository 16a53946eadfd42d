# cython: language_level=3
"""Readers and writers of big-endian integers and varints in C, with the only bounds check. `take` checks the bounds,
and readers access only memory that `take` has granted. So all modules can be compiled with `boundscheck=False`. Varints
are zigzag in records (KIP-98) and plain in flexible messages (KIP-482); both are little-endian groups of 7 bits, whose
top bit means that another group follows.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define KB_BE16(v) __builtin_bswap16(v)
    #define KB_BE32(v) __builtin_bswap32(v)
    #define KB_BE64(v) __builtin_bswap64(v)
    #else
    #define KB_BE16(v) (v)
    #define KB_BE32(v) (v)
    #define KB_BE64(v) (v)
    #endif
    static inline int16_t kb_read_int16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return (int16_t)KB_BE16(v); }
    static inline int32_t kb_read_int32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return (int32_t)KB_BE32(v); }
    static inline int64_t kb_read_int64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return (int64_t)KB_BE64(v); }
    static inline void kb_write_int16(uint8_t *p, int16_t s) { uint16_t v = KB_BE16((uint16_t)s); memcpy(p, &v, 2); }
    static inline void kb_write_int32(uint8_t *p, int32_t s) { uint32_t v = KB_BE32((uint32_t)s); memcpy(p, &v, 4); }
    static inline void kb_write_int64(uint8_t *p, int64_t s) { uint64_t v = KB_BE64((uint64_t)s); memcpy(p, &v, 8); }
    """
    int leading_zeros "__builtin_clzll"(unsigned long long) noexcept nogil
    int16_t read_int16 "kb_read_int16"(const uint8_t *p) noexcept nogil
    int32_t read_int32 "kb_read_int32"(const uint8_t *p) noexcept nogil
    int64_t read_int64 "kb_read_int64"(const uint8_t *p) noexcept nogil
    void write_int16 "kb_write_int16"(uint8_t *p, int16_t v) noexcept nogil
    void write_int32 "kb_write_int32"(uint8_t *p, int32_t v) noexcept nogil
    void write_int64 "kb_write_int64"(uint8_t *p, int64_t v) noexcept nogil


cdef struct Cursor:
    const uint8_t *at
    const uint8_t *end


cdef enum:
    # The most tagged fields of one struct, as in Apache Kafka 4.4.
    LARGEST_TAG_COUNT = 10_000


cdef inline int refuse(const char *what, Py_ssize_t needed, Py_ssize_t left) except -1 with gil:
    from kbroker.base.errors import ProtocolError    # not above: a module that includes this file has no name of it
    raise ProtocolError(f'{what.decode()}: {needed} bytes expected, {left} left')


cdef inline const uint8_t *take(Cursor *cursor, Py_ssize_t n) except NULL nogil:
    """Return the address of the next `n` bytes, and advance the cursor. Raise ProtocolError if fewer bytes are left.
    Readers advance a cursor only with this function."""
    cdef const uint8_t *start = cursor.at
    if n < 0 or n > cursor.end - start:
        refuse(b'truncated', n, cursor.end - start)
    cursor.at = start + n
    return start


cdef inline uint64_t take_unsigned_varint(Cursor *cursor, int max_bytes) except? 0xFFFFFFFFFFFFFFFF nogil:
    """Read an unsigned varint of at most `max_bytes` bytes: 5 for a length, 10 for a varlong."""
    cdef const uint8_t *at = cursor.at
    cdef const uint8_t *end = cursor.end if cursor.end - at < max_bytes else at + max_bytes
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t group
    while at < end:
        group = at[0]
        at += 1
        value |= <uint64_t>(group & 0x7f) << shift
        if group < 0x80:
            cursor.at = at
            return value
        shift += 7
    refuse(b'varint without an end', max_bytes, cursor.end - cursor.at)
    return 0


# The next two functions signal an error by returning a rare number, not -1. When a function returns its error number,
# Cython takes the GIL to check whether there was an error, and -1 is frequent: it is the length of null.


cdef inline int32_t take_varint(Cursor *cursor) except? -2147483648 nogil:
    """Read a zigzag varint of at most 5 bytes."""
    cdef uint32_t raw = <uint32_t>take_unsigned_varint(cursor, 5)
    return <int32_t>(raw >> 1) ^ -<int32_t>(raw & 1)


cdef inline int64_t take_varlong(Cursor *cursor) except? -4611686018427387904 nogil:
    """Read a zigzag varint of at most 10 bytes."""
    cdef uint64_t raw = take_unsigned_varint(cursor, 10)
    return <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)


cdef inline Py_ssize_t unsigned_varint_size(uint64_t value) noexcept nogil:
    """Return the size of an unsigned varint, a byte for each 7 bits. The factor 9 / 64 stands for 1 / 7: up to 64 bits,
    the results are the same.
    """
    return 1 if value < 0x80 else ((63 - leading_zeros(value)) * 9 + 73) >> 6


cdef inline uint8_t *put_unsigned_varint(uint8_t *at, uint64_t value) noexcept nogil:
    """Write an unsigned varint at `at`, where there must be room for it. Return the address after it."""
    while value >= 0x80:
        at[0] = <uint8_t>(value | 0x80)
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
    return at + 1


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
