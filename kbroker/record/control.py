"""Reads and writes control records, which the broker itself writes to a partition.

The key of a control record has a version int16 (0) and a type int16. The value of an end-of-transaction marker has a
version int16 (0) and the coordinator epoch int32. Later versions of the format may append fields, so readers read only
these fields and ignore any further bytes.
"""

import enum
import struct
from typing import NamedTuple

from kbroker.record.batch import CorruptBatchError, encode_batch
from kbroker.record.records import decode_records

_KEY = struct.Struct('>hh')
_END_TXN_VALUE = struct.Struct('>hi')
_VERSION = 0


class ControlType(enum.IntEnum):
    """The type in the key of a control record. Readers skip records of unknown types."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTxnMarker(NamedTuple):
    control_type: ControlType
    coordinator_epoch: int


def encode_control_key(control_type: ControlType) -> bytes:
    return _KEY.pack(_VERSION, control_type)


def read_control_type(key: bytes | None) -> ControlType:
    """Return the type in the key of a control record. Raise CorruptBatchError if the key has fewer than 4 bytes or a
    negative version.
    """
    if key is None or len(key) < _KEY.size:
        raise CorruptBatchError(f'found a control key of {len(key or b"")} bytes, expected at least {_KEY.size}')
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatchError(f'found version {version} of a control key, expected 0 or more')
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


def encode_end_txn_marker(
    *, commit: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int
) -> bytearray:
    """Return the batch of 78 bytes that ends a transaction in a partition. The log later sets its base offset and
    leader epoch.
    """
    key = encode_control_key(ControlType.COMMIT if commit else ControlType.ABORT)
    return encode_batch(
        [(timestamp_ms, key, _END_TXN_VALUE.pack(_VERSION, coordinator_epoch))],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_end_txn_marker(batch: bytes | bytearray | memoryview) -> EndTxnMarker:
    """Return the marker in a transactional control batch. Raise CorruptBatchError if the batch has no marker."""
    records = decode_records(batch)
    if len(records) != 1:
        raise CorruptBatchError(f'found {len(records)} records in a control batch, expected 1')
    control_type = read_control_type(records[0].key)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        raise CorruptBatchError(f'found a control record of type {control_type.name}, expected ABORT or COMMIT')
    value = records[0].value
    if value is None or len(value) < _END_TXN_VALUE.size:
        raise CorruptBatchError(f'found a marker of {len(value or b"")} bytes, expected at least {_END_TXN_VALUE.size}')
    version, coordinator_epoch = _END_TXN_VALUE.unpack_from(value)
    if version < 0:
        raise CorruptBatchError(f'found version {version} of a marker, expected 0 or more')
    return EndTxnMarker(control_type, coordinator_epoch)
