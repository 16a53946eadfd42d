"""Encoding and decoding of metadata records in record batches.

A batch of the metadata log is uncompressed and has no producer. All of its records have the timestamp of the batch.
Data records have no key. The key of a control record consists of its version (int16, always 0) and its type (int16).
Its body begins with the version of the body (int16).
"""
from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from kbroker.base.errors import CorruptLogError, KafkaError, NewerFormatError, ProtocolError
from kbroker.log.fs import File
from kbroker.metadata.features import record_version
from kbroker.protocol.codec import decode, encode
from kbroker.protocol.messages import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from kbroker.protocol.metadata_records import decode_metadata_record, encode_metadata_record
from kbroker.record.batch import BatchHeader, CorruptBatchError, check_crc, encode_batch, iter_batches
from kbroker.record.records import decode_records

MAX_BATCH_BYTES = 8 * 1024 * 1024
MAX_RECORDS = 10_000
"""The most records and the most bytes of one atomic change, as in Apache Kafka."""

CHUNK_BYTES = 2 * MAX_BATCH_BYTES
"""The number of bytes to read at one time. It exceeds the size of the largest batch."""

CONTROL_TYPES: dict[int, type] = {
    2: LeaderChangeMessage,
    3: SnapshotHeaderRecord,
    4: SnapshotFooterRecord,
    5: KRaftVersionRecord,
    6: VotersRecord,
}
_TYPE_OF_CONTROL = {message: type_ for type_, message in CONTROL_TYPES.items()}
_KEY = struct.Struct('>hh')
Row = tuple[int, None, bytes]
_VERSION = struct.Struct('>h')


def encode_data(records: Iterable[Any], *, base_offset: int, epoch: int, timestamp_ms: int,
                metadata_version: int) -> bytearray:
    """Return one batch of metadata records.

    `metadata_version` determines the version in which each record is encoded.
    """
    rows = [encode_row(record, timestamp_ms, metadata_version) for record in records]
    return encode_batch(rows, base_offset=base_offset, partition_leader_epoch=epoch)


def encode_row(record: Any, timestamp_ms: int, metadata_version: int) -> Row:
    """Return a metadata record as a row of a batch: (timestamp, key, value).

    The key is None, the value is the encoded record.
    """
    return timestamp_ms, None, encode_metadata_record(record, record_version(record, metadata_version))


def encode_control(records: Iterable[Any], *, base_offset: int, epoch: int, timestamp_ms: int) -> bytearray:
    """Return one encoded batch of control records. Like Apache Kafka 4.0 to 4.4, write every body in version 0."""
    rows = [(timestamp_ms, _KEY.pack(0, _TYPE_OF_CONTROL[type(record)]), encode(record, 0)) for record in records]
    return encode_batch(rows, base_offset=base_offset, partition_leader_epoch=epoch, control=True)


def decode_batch(header: BatchHeader, batch: memoryview) -> list[Any]:
    """Return the records of a batch. The caller has checked its checksum.

    Raise NewerFormatError for an unknown record, CorruptLogError for an invalid one.
    """
    decode_one = _decode_control if header.is_control else _decode_data
    found = []
    try:
        for record in decode_records(batch):
            found.append(decode_one(record))
    except NewerFormatError as error:
        newer = NewerFormatError(f'metadata batch at offset {header.base_offset}, record {len(found)}: {error}')
        newer.records = found
        raise newer from error
    except (CorruptLogError, KafkaError, ProtocolError, ValueError) as error:
        raise CorruptLogError(f'metadata batch at offset {header.base_offset}, record {len(found)}: {error}') from error
    return found


def _decode_data(record: Any) -> Any:
    if record.value is None:
        raise ValueError('found no value, expected a metadata record')
    message, version = decode_metadata_record(record.value)
    if version > message.versions[1]:
        # Apache Kafka reads a newer version with the layout that it knows. kbroker rejects it, because its meaning is
        # unknown.
        raise NewerFormatError(f'found version {version} of {type(message).__name__}, expected at most '
                               f'{message.versions[1]}')
    return message


def _decode_control(record: Any) -> Any:
    if record.key is None or len(record.key) < _KEY.size or record.value is None or len(record.value) < _VERSION.size:
        raise ValueError('found a control record without type or body')
    _, type_ = _KEY.unpack_from(record.key)
    if type_ not in CONTROL_TYPES:
        raise NewerFormatError(f'found control record type {type_}, expected one of {sorted(CONTROL_TYPES)}')
    message = CONTROL_TYPES[type_]
    version, = _VERSION.unpack_from(record.value)
    low, high = message.versions  # type: ignore[attr-defined]
    if version > high:
        raise NewerFormatError(f'found version {version} of {message.__name__}, expected {low} to {high}')
    if version < low:
        raise ValueError(f'found version {version} of {message.__name__}, expected {low} to {high}')
    return decode(message, record.value, version)


def sound_batches(file: File, size_bytes: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield (position, header, bytes) of each batch in the first `size_bytes` of a file.

    Stop before the first batch that is torn or damaged.
    """
    position, found = 0, True
    while found and position < size_bytes:
        found = False
        chunk = file.read_at(min(CHUNK_BYTES, size_bytes - position), position)
        try:
            for header, batch in iter_batches(chunk):
                check_crc(batch, header)
                yield position, header, batch
                position += header.size_bytes
                found = True
        except CorruptBatchError:
            return
