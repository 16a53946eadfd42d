"""Decodes the metadata and assignments of consumers in the classic protocol.

The bytes are a version (int16), then a ConsumerProtocolSubscription or ConsumerProtocolAssignment message.
"""
from __future__ import annotations

import struct
from typing import Any

from kbroker.base.errors import ProtocolError
from kbroker.protocol.codec import decode_prefix, encode
from kbroker.protocol.messages import ConsumerProtocolAssignment

PROTOCOL_TYPE = 'consumer'

_VERSION = struct.Struct('>h')


def encode_message(message: Any, version: int) -> bytes:
    return _VERSION.pack(version) + encode(message, version)


def decode_message(message_class: Any, data: bytes) -> Any:
    """Decode a message. If its version is newer than the newest known version, decode it in the newest known version,
    because newer versions only append fields. Raise ProtocolError if the bytes do not parse."""
    message, _ = decode_prefix(message_class, data, version_of(message_class, data), _VERSION.size)
    return message


def assigned_partitions(data: bytes) -> list[tuple[str, int]]:
    """Return (topic, partition) for each assigned partition, or [] if `data` is empty because the member has no
    assignment yet. Raise ProtocolError if the bytes do not parse."""
    if not data:
        return []
    message = decode_message(ConsumerProtocolAssignment, data)
    return [(topic.topic, partition) for topic in message.assigned_partitions for partition in topic.partitions]


def version_of(message_class: Any, data: bytes) -> int:
    """Return the version of a message, or the newest known version if the message is newer. Raise ProtocolError if the
    version is missing or negative."""
    if len(data) < _VERSION.size:
        raise ProtocolError(f'found {len(data)} bytes, expected a version')
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise ProtocolError(f'found version {version}, expected 0 or more')
    newest: int = message_class.versions[1]
    return min(version, newest)
