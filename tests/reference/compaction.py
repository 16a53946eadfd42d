"""A slow compaction of a whole log, written from Kafka's rules. The tests compare `kbroker.log.cleaner` with it.

A log is a list of batches. To find aborted transactions, this code searches the list for markers. The cleaner uses the
transaction index instead.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from dataclasses import dataclass

import cramjam
import lz4.frame
import zstandard
from reference.record import Batch, Record, decode_batch, decode_records

CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, HORIZON = 0x07, 0x08, 0x10, 0x20, 0x40


def decompress(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return zlib.decompress(data, 31)
    if codec == 2:
        return _snappy(data)
    if codec == 3:
        return bytes(lz4.frame.decompress(data))
    return zstandard.ZstdDecompressor().decompressobj().decompress(data) if codec == 4 else data


def _snappy(data: bytes) -> bytes:
    position, out = 16, b''
    while position < len(data):
        (size,) = struct.unpack_from('>i', data, position)
        out += bytes(cramjam.snappy.decompress_raw(data[position + 4 : position + 4 + size]))
        position += 4 + size
    return out


@dataclass
class Stored:
    """A batch in a log, with its header and its decoded records."""

    header: Batch
    records: list[Record]
    data: bytes | None = None
    """The bytes that the batch was read from. None if compaction has changed the batch."""

    @classmethod
    def read(cls, data: bytes) -> Stored:
        header = decode_batch(data)
        records = decode_records(decompress(header.attributes & CODEC, header.records), header.records_count)
        return cls(header, records, data)

    def has(self, bit: int) -> bool:
        return bool(self.header.attributes & bit)

    @property
    def last_offset(self) -> int:
        return self.header.last_offset

    def offset(self, record: Record) -> int:
        return self.header.base_offset + record.offset_delta

    def timestamp_ms(self, record: Record) -> int:
        return self.header.base_timestamp_ms + record.timestamp_delta_ms

    @property
    def marker(self) -> str | None:
        if not self.has(CONTROL) or not self.records:
            return None
        return {0: 'abort', 1: 'commit'}.get(struct.unpack('>hh', (self.records[0].key or b'')[:4])[1])

    def face(self) -> tuple[object, ...]:
        """Return the fields that two equal batches must share. The base timestamp is included only if it is a delete
        horizon, because otherwise the writer may choose it."""
        header = self.header
        return (
            header.base_offset,
            header.last_offset_delta,
            header.partition_leader_epoch,
            header.attributes,
            header.max_timestamp_ms,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.records_count,
            header.base_timestamp_ms if self.has(HORIZON) else None,
            [
                (self.offset(record), self.timestamp_ms(record), record.key, record.value, record.headers)
                for record in self.records
            ],
        )


def marker_of(batches: list[Stored], number: int) -> Stored | None:
    """Return the marker that ends the transaction of batch `number`, which is the next marker of its producer, or
    None."""
    producer_id = batches[number].header.producer_id
    return next(
        (batch for batch in batches[number + 1 :] if batch.header.producer_id == producer_id and batch.marker), None
    )


def is_aborted(batches: list[Stored], number: int) -> bool:
    batch = batches[number]
    if not batch.has(TRANSACTIONAL) or batch.has(CONTROL):
        return False
    marker = marker_of(batches, number)
    return marker is not None and marker.marker == 'abort'


def has_data(batches: list[Stored], number: int) -> bool:
    """Return whether the log still has a data batch of the transaction that marker `number` ends."""
    producer_id = batches[number].header.producer_id
    for batch in reversed(batches[:number]):
        if batch.header.producer_id == producer_id and batch.has(TRANSACTIONAL):
            if batch.marker:
                return False
            if not batch.has(CONTROL):
                return True
    return False


@dataclass
class Rules:
    first_dirty_offset: int
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    high_watermark: int
    last_records: dict[int, tuple[int, int]]
    """Maps each active producer id to (last offset of its last data batch, or -1; its epoch)."""

    def is_needed_husk(self, batch: Stored) -> bool:
        if batch.last_offset == self.high_watermark - 1:
            return True
        if batch.header.producer_id not in self.last_records:
            return False
        last_offset, epoch = self.last_records[batch.header.producer_id]
        if last_offset >= 0:
            return batch.last_offset == last_offset
        return batch.has(CONTROL) and batch.header.producer_epoch == epoch


def last_offsets(batches: list[Stored], rules: Rules) -> dict[bytes, int]:
    found = {}
    for number, batch in enumerate(batches):
        if not batch.has(CONTROL) and not is_aborted(batches, number):
            for record in batch.records:
                if record.key is not None and rules.first_dirty_offset <= batch.offset(record) < rules.end_offset:
                    found[record.key] = batch.offset(record)
    return found


def compact(batches: list[Stored], rules: Rules) -> list[Stored]:
    """Return the log after one compaction of all batches below `rules.end_offset`."""
    last = last_offsets(batches, rules)
    return [
        kept
        for number, batch in enumerate(batches)
        if (kept := batch if batch.header.base_offset >= rules.end_offset else _compact(batches, number, rules, last))
        is not None
    ]


def _compact(batches: list[Stored], number: int, rules: Rules, last: dict[bytes, int]) -> Stored | None:
    batch = batches[number]
    horizon_ms = batch.header.base_timestamp_ms if batch.has(HORIZON) else None
    is_over = horizon_ms is not None and rules.now_ms >= horizon_ms
    if batch.has(CONTROL):
        may_go = batch.marker is not None and not has_data(batches, number)
        records = [] if may_go and is_over else batch.records
        wants_horizon = may_go
    elif is_aborted(batches, number):
        records, wants_horizon = [], False
    else:
        records = [
            record
            for record in batch.records
            if record.key is not None
            and batch.offset(record) >= last.get(record.key, -1)
            and (record.value is not None or not is_over)
        ]
        wants_horizon = any(record.value is None for record in records)
    if not records:
        return _husk(batch) if rules.is_needed_husk(batch) else None
    if wants_horizon and horizon_ms is None:
        return _changed(batch, records, rules.now_ms + rules.delete_retention_ms)
    return batch if len(records) == len(batch.records) else _changed(batch, records, horizon_ms)


def _husk(batch: Stored) -> Stored:
    attributes = batch.header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
    return Stored(
        dataclasses.replace(batch.header, attributes=attributes, base_timestamp_ms=-1, records_count=0, records=b''), []
    )


def _changed(batch: Stored, records: list[Record], horizon_ms: int | None) -> Stored:
    base_ms = batch.header.base_timestamp_ms if horizon_ms is None else horizon_ms
    max_ms = max(batch.timestamp_ms(record) for record in records)
    header = dataclasses.replace(
        batch.header,
        attributes=batch.header.attributes | (0 if horizon_ms is None else HORIZON),
        records_count=len(records),
        base_timestamp_ms=base_ms,
        max_timestamp_ms=batch.header.max_timestamp_ms if batch.has(LOG_APPEND_TIME) else max_ms,
    )
    return Stored(
        header,
        [dataclasses.replace(record, timestamp_delta_ms=batch.timestamp_ms(record) - base_ms) for record in records],
    )


def committed_values(batches: list[Stored], end_offset: int) -> dict[bytes, bytes]:
    """Return {key: last committed value} for the records below `end_offset`. Omit keys whose last record is a
    tombstone."""
    values: dict[bytes, bytes] = {}
    for number, batch in enumerate(batches):
        if batch.has(CONTROL) or is_aborted(batches, number):
            continue
        for record in batch.records:
            if record.key is not None and batch.offset(record) < end_offset:
                values.pop(record.key, None)
                if record.value is not None:
                    values[record.key] = record.value
    return values
