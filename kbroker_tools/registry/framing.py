"""The id of a schema in a value or in its headers, as Confluent's serializers write it.

| place | bytes |
| --- | --- |
| the beginning of the value | 0 and the id in 4 bytes (big-endian), or 1 and the guid in 16 bytes |
| the header `__value_schema_id` or `__key_schema_id` | the same; then the value is only the data |

In Protobuf, message indexes follow the id or guid. They name a message of a `.proto` file: its position in the file,
then the position of a nested message in it, and so on. They are zigzag varints, with their count first. A single 0 byte
stands for the first message.
"""
from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

VALUE_HEADER = '__value_schema_id'
KEY_HEADER = '__key_schema_id'
MOST_INDEXES = 64
"""The most message indexes: messages are not nested more deeply."""
ID_BYTES, GUID_BYTES = 5, 17


class FramingError(ValueError):
    """The bytes have no schema id, or a broken one."""


class Frame(NamedTuple):
    """The id of a value's schema, and the position of the data in the value."""

    key: int | uuid.UUID
    indexes: tuple[int, ...]
    """The message indexes of a Protobuf value. Empty for other formats."""
    data_at: int


def read_prefix(data: bytes, has_indexes: bool = False) -> Frame:
    """Return the frame at the beginning of a value. Raise FramingError if there is none."""
    if not data:
        raise FramingError('found an empty value, expected the prefix of a schema registry')
    if data[0] == 0 and len(data) >= ID_BYTES:
        key: int | uuid.UUID = int.from_bytes(data[1:ID_BYTES], 'big')
        position = ID_BYTES
    elif data[0] == 1 and len(data) >= GUID_BYTES:
        key = uuid.UUID(bytes=data[1:GUID_BYTES])
        position = GUID_BYTES
    else:
        raise FramingError(f'found {len(data)} bytes that begin with {data[0]}, expected 0 and a schema id of 4 bytes')
    if not has_indexes:
        return Frame(key, (), position)
    indexes, position = _read_indexes(data, position)
    return Frame(key, indexes, position)


def read_header(content: bytes, has_indexes: bool = False) -> Frame:
    """Return the frame in the content of a header. The data begins with the value. Raise FramingError if the content is
    not a schema id."""
    frame = read_prefix(content, has_indexes)
    if frame.data_at != len(content):
        raise FramingError(f'found {len(content)} bytes in the header, expected {frame.data_at}')
    return Frame(frame.key, frame.indexes, 0)


def prefix_of(key: int | uuid.UUID, indexes: Sequence[int] = ()) -> bytes:
    """Return the bytes of a schema id: the prefix of a value, or the content of a header."""
    head = b'\0' + key.to_bytes(4, 'big') if isinstance(key, int) else b'\1' + key.bytes
    if not indexes:
        return head
    if tuple(indexes) == (0,):
        return head + b'\0'
    return head + b''.join(_zigzag(each) for each in [len(indexes), *indexes])


def _zigzag(number: int) -> bytes:
    rest, found = number << 1, bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest])


def _read_indexes(data: bytes, position: int) -> tuple[tuple[int, ...], int]:
    count, position = _read_zigzag(data, position)
    if count == 0:
        return (0,), position
    if not 0 < count <= MOST_INDEXES:
        raise FramingError(f'found {count} message indexes, expected 0 to {MOST_INDEXES}')
    found = []
    for _ in range(count):
        index, position = _read_zigzag(data, position)
        found.append(index)
    return tuple(found), position


def _read_zigzag(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if position >= len(data):
            raise FramingError('found the end of the bytes in the message indexes')
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number >> 1 ^ -(number & 1), position
    raise FramingError('found a message index of more than 5 bytes, expected at most 5')
