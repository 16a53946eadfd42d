"""Functions that read single values of a request. Flexible versions have compact lengths and tagged fields
(KIP-482)."""
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kbroker.wire.bytes cimport LARGEST_TAG_COUNT, Cursor, read_int16, read_int32, take, take_unsigned_varint


cdef enum:
    LONGEST_STRING_BYTES = 32767
    # The most tagged fields in all structs of a request together. No known client sends any.
    MOST_REQUEST_TAGS = 50_000


cdef inline int refuse_request(str found) except -1:
    from kbroker.base.errors import ProtocolError    # not above: a module that includes this file has no name of it
    raise ProtocolError(found)


cdef inline Py_ssize_t take_length(Cursor *cursor, bint flexible, bint short) except? -2:
    """Read and return a length. Return -1 for null: as in Kafka, every length below 0 means null."""
    if flexible:
        return max(<int32_t>(<uint32_t>take_unsigned_varint(cursor, 5) - 1), -1)
    return max(read_int16(take(cursor, 2)) if short else read_int32(take(cursor, 4)), -1)


cdef inline bint is_ascii(const uint8_t *text, Py_ssize_t length) noexcept:
    """Return whether no byte of the text has its top bit set. Read eight bytes at a time, for speed."""
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
    """Read a string: set `text` to its first byte in UTF-8. Return its size in bytes, or -1 for null."""
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
    """Skip the tagged fields of a struct that has no known tagged fields."""
    cdef uint64_t count = take_unsigned_varint(cursor, 5)
    if count > LARGEST_TAG_COUNT:
        refuse_request(f'{count} tagged fields, at most {LARGEST_TAG_COUNT} expected')
    while count:
        count -= 1
        take_unsigned_varint(cursor, 5)
        take(cursor, <Py_ssize_t>take_unsigned_varint(cursor, 5))
    return 0
