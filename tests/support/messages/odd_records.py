"""Batches with records that no writer should write. Each batch is complete and has the correct checksum."""
from __future__ import annotations

from kbroker.record.batch import HEADER_BYTES, encode_batch
from kbroker.record.compression import compress
from kbroker.wire.crc32c import crc32c

Part = int | bytes


def varint(value: int, least_bytes: int = 1) -> bytes:
    """Return a zigzag varint, padded to at least `least_bytes`."""
    raw = (value << 1 ^ value >> 63) & (1 << 64) - 1
    encoded = bytearray()
    while raw >= 0x80 or len(encoded) + 1 < least_bytes:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes(encoded) + bytes((raw,))


def joined(*parts: Part) -> bytes:
    return b''.join(part if isinstance(part, bytes) else varint(part) for part in parts)


def record(*, size: int = 0, attributes: int = 0, timestamp: Part = 0, offset: Part = 0, key: Part = 1,
           value: Part = 1, headers: Part = 0, behind: bytes = b'') -> bytes:
    """Return a record of key `k` and value `v`. Write a number as a varint, and bytes unchanged. Add `size` to the
    correct length of the record.
    """
    body = joined(bytes((attributes,)), timestamp, offset, key, b'k', value, b'v', headers, behind)
    return varint(len(body) + size) + body


def odd_records() -> dict[str, list[bytes]]:
    """Return {name of a batch: its records}. The first batches are valid."""
    good = record()
    name = joined(1, b'h')
    return {
        'good': [good, record(offset=1)],
        'headers': [record(headers=joined(2, name, 1, b'x', name, -1))],
        'attributes': [record(attributes=0x7F)],
        # lengths of records
        'a record one byte short': [record(size=-1)],
        'a record one byte long': [record(size=1)],
        'a record one byte long, and one more': [record(size=1), record(offset=1)],
        'a record far too long': [record(size=1000)],
        'a record of no bytes': [b'\0'],
        'a record of -1 bytes': [varint(-1) + good[1:]],
        'a record of -2 bytes': [varint(-2) + good[1:]],
        'a record of -8 bytes': [varint(-8) + good[1:]],
        'a record of 2 GiB': [varint(2**31 - 1) + good[1:]],
        'bytes behind the headers': [record(behind=b'xyz')],
        'bytes behind the last record': [good + b'xyz'],
        'a zero behind the last record': [good + b'\0'],
        'a record behind the last record': [good + record(offset=1)],
        # varints
        'padded varints': [record(timestamp=varint(0, 10), offset=varint(0, 5), key=varint(1, 5))],
        'a length of 6 bytes': [varint(7, 6) + good[1:]],
        'a timestamp of 11 bytes': [record(timestamp=varint(0, 11))],
        'an offset of 6 bytes': [record(offset=varint(0, 6))],
        'a key length of 6 bytes': [record(key=varint(1, 6))],
        'a varint without an end': [record(headers=b'\xff\xff\xff')],
        'a varint of ones': [record(headers=b'\xff' * 10)],
        'an offset above 32 bits': [record(offset=b'\x80\x80\x80\x80\x70')],
        # offsets
        'offsets from 1': [record(offset=1), record(offset=2)],
        'offsets that repeat': [good, good],
        'offsets with a gap': [good, record(offset=2)],
        'offsets that fall': [record(offset=1), good],
        'a negative offset': [record(offset=-1)],
        'a huge offset': [record(offset=2**31 - 1)],
        'the least offset': [record(offset=-(2**31))],
        # timestamps
        'a timestamp that wraps': [record(timestamp=2**63 - 1)],
        'the least timestamp': [record(timestamp=-(2**63))],
        # keys and values
        'a null key': [null_record('key', -1)],
        'a key of -2 bytes': [null_record('key', -2)],
        'a key of -1000 bytes': [null_record('key', -1000)],
        'a key of the least length': [null_record('key', -(2**31))],
        'a key beyond its record': [record(key=5)],
        'a key of 2 GiB': [record(key=2**31 - 1)],
        'a null value': [null_record('value', -1)],
        'a value of -2 bytes': [null_record('value', -2)],
        'a value of -1000 bytes': [null_record('value', -1000)],
        'a value of the least length': [null_record('value', -(2**31))],
        'a value beyond its record': [record(value=5)],
        # headers
        'a header count of -1': [record(headers=-1)],
        'a header count of -2': [record(headers=-2)],
        'too many headers': [record(headers=3)],
        'too many headers, which a record behind has': [record(headers=3), record(offset=1)],
        '2^31 headers': [record(headers=2**31 - 1)],
        'a header key of -1 bytes': [record(headers=joined(1, -1, 1, b'x'))],
        'a header key of -2 bytes': [record(headers=joined(1, -2, 1, b'x'))],
        'a header key beyond its record': [record(headers=joined(1, 9, b'h', 1, b'x'))],
        'a header key that is no UTF-8': [record(headers=joined(1, 2, b'\xff\xfe', 1, b'x'))],
        'an empty header key': [record(headers=joined(1, 0, 1, b'x'))],
        'a header value of -2 bytes': [null_record('header', -2)],
        'a header value of -1000 bytes': [null_record('header', -1000)],
        'a header value beyond its record': [record(headers=joined(1, name, 9, b'x'))],
    }


def null_record(part: str, length: int) -> bytes:
    """Return a record in which one part has a negative length and no bytes. `part` is the key, the value, or the value
    of a header.
    """
    key, value, headers = joined(1, b'k'), joined(1, b'v'), joined(0)
    if part == 'key':
        key = varint(length)
    elif part == 'value':
        value = varint(length)
    else:
        headers = joined(1, 1, b'h', length)
    body = joined(b'\0', 0, 0, key, value, headers)
    return varint(len(body)) + body


def batch_of_records(records: list[bytes], base_timestamp_ms: int, *, count: int | None = None, codec: int = 0,
                     attributes: int = 0, max_timestamp_ms: int | None = None) -> bytes:
    """Return the batch. `count` defaults to the number of records."""
    count = len(records) if count is None else count
    batch = encode_batch([(base_timestamp_ms, None, None)])[:HEADER_BYTES]
    batch += compress(codec, b''.join(records))
    return finished(batch, {8: (len(batch) - 12).to_bytes(4, 'big'), 22: bytes((attributes | codec,)),
                            23: (count - 1).to_bytes(4, 'big', signed=True),
                            35: (max_timestamp_ms or base_timestamp_ms).to_bytes(8, 'big', signed=True),
                            57: count.to_bytes(4, 'big', signed=True)})


def framed(codec: int, block: bytes, count: int, base_timestamp_ms: int) -> bytes:
    """Return a batch around this compressed block of `count` records."""
    batch = batch_of_records([b''], base_timestamp_ms, count=count)[:HEADER_BYTES] + block
    return finished(batch, {8: (len(batch) - 12).to_bytes(4, 'big'), 22: bytes((codec,))})


def finished(batch: bytes | bytearray, changes: dict[int, bytes]) -> bytes:
    """Return a batch after `changes`, which maps positions to new bytes, with a matching checksum."""
    changed = bytearray(batch)
    for position, replacement in changes.items():
        changed[position : position + len(replacement)] = replacement
    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, 'big')
    return bytes(changed)
