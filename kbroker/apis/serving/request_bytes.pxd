"""Readers for single values of a request. A flexible version has compact lengths and tagged fields (KIP-482)."""
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kbroker.wire.bytes cimport LARGEST_TAG_COUNT, Cursor, read_int16, read_int32, take, take_unsigned_varint


cdef enum:
    LONGEST_STRING_BYTES = 32767
    # The tagged fields of all structs of a request. Clients send none in these.
    MOST_REQUEST_TAGS = 50_000


cdef inline int refuse_request(str found) except -1:
    from kbroker.base.errors import ProtocolError    # not above: a module that includes this file has no name of it
    raise ProtocolError(found)


cdef inline Py_ssize_t take_length(Cursor *cursor, bint flexible, bint short) except? -2:
    """Return a length, -1 for null, as which Kafka reads each one below 0."""
    if flexible:
        return max(<int32_t>(<uint32_t>take_unsigned_varint(cursor, 5) - 1), -1)
    return max(read_int16(take(cursor, 2)) if short else read_int32(take(cursor, 4)), -1)


cdef inline Py_ssize_t take_count(Cursor *cursor, bint flexible, Py_ssize_t fewest_bytes) except -1:
    """Return the number of elements of an array, each of at least `fewest_bytes`."""
    cdef Py_ssize_t count = take_length(cursor, flexible, False), left = cursor.end - cursor.at
    if count < 0:
        refuse_request(f'an array of {count} elements')
    if count > left // fewest_bytes:
        refuse_request(f'an array of {count} elements of at least {fewest_bytes} bytes, {left} bytes left')
    return count


cdef inline bint is_ascii(const uint8_t *text, Py_ssize_t length) noexcept:
    """Return whether no byte has its top bit set. It reads eight bytes at a time."""
    cdef uint64_t bits = 0, word
    while length >= 8:
        memcpy(&word, text, 8)
        bits |= word
        text += 8
        length -= 8
    while length:
        length -= 1
        bits |= text[length]
    return not bits & 0x8080808080808080ULL


cdef inline Py_ssize_t take_string(Cursor *cursor, bint flexible, bint nullable, const uint8_t **text) except -2:
    """Set `text` to a string in UTF-8. Return its size in bytes, -1 for null."""
    cdef Py_ssize_t length = take_length(cursor, flexible, True)
    if nullable and length == -1:
        return -1
    if length < 0 or length > LONGEST_STRING_BYTES:
        refuse_request(f'a string of {length} bytes, 0 to {LONGEST_STRING_BYTES} expected')
    text[0] = take(cursor, length)
    if not is_ascii(text[0], length):
        try:
            PyUnicode_DecodeUTF8(<char *>text[0], length, NULL)
        except UnicodeDecodeError as error:
            refuse_request(f'a string that is not UTF-8: {error}')
    return length


cdef inline int skip_tags(Cursor *cursor) except -1:
    """Skip tagged fields, none of which is known."""
    cdef Py_ssize_t left = LARGEST_TAG_COUNT
    return skip_counted_tags(cursor, &left)


cdef inline int skip_counted_tags(Cursor *cursor, Py_ssize_t *left) except -1:
    """Skip the tagged fields of one struct of a request that may have `left` more of them."""
    cdef uint64_t count = take_unsigned_varint(cursor, 5)
    if count > <uint64_t>min(left[0], <Py_ssize_t>LARGEST_TAG_COUNT):
        refuse_request(f'{count} tagged fields, at most {min(left[0], <Py_ssize_t>LARGEST_TAG_COUNT)} expected')
    left[0] -= <Py_ssize_t>count
    while count:
        count -= 1
        take_unsigned_varint(cursor, 5)
        take(cursor, <Py_ssize_t>take_unsigned_varint(cursor, 5))
    return 0
