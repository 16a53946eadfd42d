"""Functions that write single values, for handlers that write their answers without the codec.

Flexible versions of messages have compact lengths and tagged fields (KIP-482).
"""
from libc.stdint cimport int32_t, uint8_t

from kbroker.wire.bytes cimport put_unsigned_varint, write_int32


cdef inline uint8_t *put_count(uint8_t *at, Py_ssize_t count, bint flexible) noexcept:
    """Write the length of an array or of `records`."""
    if flexible:
        return put_unsigned_varint(at, count + 1)
    write_int32(at, <int32_t>count)
    return at + 4


cdef inline uint8_t *put_no_tags(uint8_t *at, bint flexible) noexcept:
    if flexible:
        at[0] = 0
        at += 1
    return at
