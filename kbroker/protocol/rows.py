"""Keys and values of the coordinators' topics: an int16, then a message.

In a key the int16 is the type of the row, and the body is version 0 of its key message. The types of
`__consumer_offsets`, `__transaction_state` and `__share_group_state` overlap, so a key is read with the topic that it
comes from. In a value the int16 is the version of the body. A null value is a tombstone and never gets here.
"""
import functools
from typing import Any, TypeVar

from kbroker.errors import ProtocolError
from kbroker.protocol import messages, schema
from kbroker.protocol.codec import decode, encode
from kbroker.protocol.plan import Message

TYPE_BYTES = 2

M = TypeVar('M', bound=Message)


class RowError(ValueError):
    """A key or value is not what its table says, or of a version that this broker does not know."""


@functools.cache
def row_classes(topic: str) -> dict[int, tuple[type[Message], type[Message]]]:
    """The classes of key and value of each type of row that the topic has."""
    return {
        declaration.key: (
            getattr(messages, declaration.name), getattr(messages, declaration.name.removesuffix('Key') + 'Value')
        )
        for declaration in schema.declarations().values()
        if declaration.kind == 'row'
        and declaration.topic == topic
        and declaration.name.endswith('Key')
        and declaration.key is not None
    }


def encode_row_key(key: Message) -> bytes:
    """Raises EncodeError."""
    if key.row_type is None or key.row_topic is None or row_classes(key.row_topic)[key.row_type][0] is not type(key):
        raise TypeError(f'{type(key).__name__} is not the key of a row')
    return key.row_type.to_bytes(TYPE_BYTES, 'big') + encode(key, 0)


def encode_row_value(value: Message, version: int) -> bytes:
    """Raises EncodeError."""
    return version.to_bytes(TYPE_BYTES, 'big') + encode(value, version)


def decode_row_key(topic: str, data: Any) -> Message | None:
    """The key of a row of `topic`; None when its type is unknown, as it is after a downgrade: skip the row then.

    Raises RowError when the bytes do not fit the type.
    """
    classes = row_classes(topic).get(_int16(data, 'key'))
    return None if classes is None else _decode(classes[0], data, 0)


def decode_row_value(value_class: type[M], data: Any) -> M:
    """Raises RowError, for a version that `value_class` does not have too."""
    version = _int16(data, value_class.__name__)
    known = schema.declarations()[value_class.__name__].versions
    if version not in known:
        raise RowError(f'{value_class.__name__} version {version} found, {known.first} to {known.last} expected')
    return _decode(value_class, data, version)


def _int16(data: Any, what: str) -> int:
    if len(data) < TYPE_BYTES:
        raise RowError(f'{what} of {len(data)} bytes, at least {TYPE_BYTES} expected')
    return int.from_bytes(data[:TYPE_BYTES], 'big', signed=True)


def _decode(message_class: type[M], data: Any, version: int) -> M:
    try:
        return decode(message_class, data, version, TYPE_BYTES)
    except ProtocolError as error:
        raise RowError(str(error)) from None
