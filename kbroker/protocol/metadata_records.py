"""Encodes and decodes the records of `__cluster_metadata`.

A record has three unsigned varints, the frame version, the api key and the record version, then the body.
"""
import functools
from typing import Any

from kbroker.base.errors import CorruptLogError, NewerFormatError, ProtocolError
from kbroker.protocol import messages, schema
from kbroker.protocol.codec import decode, encode
from kbroker.protocol.plan import Message

FRAME_VERSION = 1
LONGEST_VARINT = 5


@functools.cache
def _record_classes() -> dict[int, type[Message]]:
    return {
        declaration.key: getattr(messages, declaration.name)
        for declaration in schema.declarations().values()
        if declaration.kind == 'record' and declaration.topic is None and declaration.key is not None
    }


def encode_metadata_record(record: Message, version: int) -> bytes:
    """Encode a record in the given version. Raise EncodeError as `codec.encode` does."""
    if record.api_key is None or _record_classes().get(record.api_key) is not type(record):
        raise TypeError(f'{type(record).__name__} is not a metadata record')
    return bytes((FRAME_VERSION, record.api_key, version)) + encode(record, version)


def decode_metadata_record(data: Any) -> tuple[Message, int]:
    """Return (record, version). Skip unknown tagged fields.

    As in Kafka, a record whose version is above the highest known version is decoded in the highest known version. The
    returned version is that in the bytes.

    Raise NewerFormatError if the frame version or the api key is unknown. Raise CorruptLogError if the body is
    malformed, or bytes follow the body.
    """
    frame_version, position = _unsigned_varint(data, 0)
    if frame_version != FRAME_VERSION:
        error = NewerFormatError if frame_version > FRAME_VERSION else CorruptLogError
        raise error(f'metadata record of frame version {frame_version}, {FRAME_VERSION} expected')
    api_key, position = _unsigned_varint(data, position)
    version, position = _unsigned_varint(data, position)
    record_class = _record_classes().get(api_key)
    if record_class is None:
        raise NewerFormatError(f'metadata record of unknown api key {api_key}, version {version}')
    highest = schema.declarations()[record_class.__name__].versions.last
    try:
        return decode(record_class, data, min(version, highest), position), version
    except ProtocolError as error:
        raise CorruptLogError(f'metadata record of api key {api_key}, version {version}: {error}') from None


def _unsigned_varint(data: Any, position: int) -> tuple[int, int]:
    value = 0
    for i, group in enumerate(data[position:position + LONGEST_VARINT]):
        value |= (group & 0x7f) << 7 * i
        if group < 0x80:
            return value, position + i + 1
    raise CorruptLogError(f'no unsigned varint at byte {position} of the {len(data)} bytes of a metadata record')
