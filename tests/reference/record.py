"""A slow codec for record batches, written from the description of the format. The tests compare `kbroker.record` with
it."""

from __future__ import annotations

import heapq
import struct
from dataclasses import dataclass, field

from reference.crc32c import crc32c

HEADER = struct.Struct('>qiibIhiqqqhii')
ATTRIBUTES_AT = 21


class Malformed(Exception):
    """Raised if bytes violate the format."""


@dataclass
class Record:
    offset_delta: int
    timestamp_delta_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]] = field(default_factory=list)


@dataclass
class Batch:
    base_offset: int = 0
    partition_leader_epoch: int = -1
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp_ms: int = 0
    max_timestamp_ms: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    records_count: int = 0
    records: bytes = b''

    def encode(self) -> bytes:
        size = HEADER.size - 12 + len(self.records)

        def with_crc(crc: int) -> bytes:
            return (
                HEADER.pack(
                    self.base_offset,
                    size,
                    self.partition_leader_epoch,
                    2,
                    crc,
                    self.attributes,
                    self.last_offset_delta,
                    self.base_timestamp_ms,
                    self.max_timestamp_ms,
                    self.producer_id,
                    self.producer_epoch,
                    self.base_sequence,
                    self.records_count,
                )
                + self.records
            )

        return with_crc(crc32c(with_crc(0)[ATTRIBUTES_AT:]))

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


def decode_batch(data: bytes) -> Batch:
    base_offset, size, epoch, magic, crc, *rest = HEADER.unpack_from(data)
    if magic != 2 or size + 12 != len(data) or crc != crc32c(data[ATTRIBUTES_AT:]):
        raise Malformed('header')
    batch = Batch(base_offset, epoch, *rest)
    batch.records = data[HEADER.size :]
    return batch


def encode_varint(value: int) -> bytes:
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    out = []
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def encode_blob(blob: bytes | None) -> bytes:
    return encode_varint(-1) if blob is None else encode_varint(len(blob)) + blob


def encode_record(record: Record) -> bytes:
    body = b'\0' + encode_varint(record.timestamp_delta_ms) + encode_varint(record.offset_delta)
    body += encode_blob(record.key) + encode_blob(record.value) + encode_varint(len(record.headers))
    for key, value in record.headers:
        body += encode_blob(key) + encode_blob(value)
    return encode_varint(len(body)) + body


class Reader:
    def __init__(self, data: bytes, is_strict: bool = False):
        self.data = data
        self.position = 0
        self.is_strict = is_strict

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.position:
            raise Malformed(f'{size} bytes at {self.position} of {len(self.data)}')
        self.position += size
        return self.data[self.position - size : self.position]

    def varint(self, bits: int = 32) -> int:
        raw = 0
        for i in range((bits + 6) // 7):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                raw &= (1 << bits) - 1
                return -(raw >> 1) - 1 if raw & 1 else raw >> 1
        raise Malformed('varint')

    def blob(self) -> bytes | None:
        size = self.varint()
        return None if size == -1 or (size < 0 and not self.is_strict) else self.take(size)

    def end(self) -> None:
        if self.position != len(self.data):
            raise Malformed('bytes left')


def decode_records(data: bytes, count: int, *, is_strict: bool = False) -> list[Record]:
    """Return the records in `data`, the records of a batch. Each negative length means null, or, with `is_strict`, only
    -1."""
    reader = Reader(data)
    records = []
    for _ in range(count):
        body = Reader(reader.take(reader.varint()), is_strict)
        body.take(1)
        timestamp_delta_ms, offset_delta = body.varint(64), body.varint()
        record = Record(offset_delta, timestamp_delta_ms, body.blob(), body.blob())
        headers_count = body.varint()
        if headers_count < 0:
            raise Malformed('header count')
        for _ in range(headers_count):
            record.headers.append((body.take(body.varint()), body.blob()))
        body.end()
        records.append(record)
    reader.end()
    return records


def delivered(batches: list[Batch], aborted: list[tuple[int, int]]) -> list[int]:
    """Return the base offsets of the batches that a read_committed consumer delivers. Keep the aborted transactions in
    a heap, as Kafka's consumer does."""
    waiting = [(first_offset, producer_id) for producer_id, first_offset in aborted]
    heapq.heapify(waiting)
    aborting: set[int] = set()
    admitted = []
    for batch in batches:
        if batch.producer_id >= 0:
            while waiting and waiting[0][0] <= batch.last_offset:
                aborting.add(heapq.heappop(waiting)[1])
        is_transactional, is_control = batch.attributes & 0x10, batch.attributes & 0x20
        if is_control:
            records = decode_records(batch.records, batch.records_count)
            if records and struct.unpack_from('>hh', records[0].key or b'')[1] == 0:
                aborting.discard(batch.producer_id)
        elif not (is_transactional and batch.producer_id in aborting):
            admitted.append(batch.base_offset)
    return admitted
