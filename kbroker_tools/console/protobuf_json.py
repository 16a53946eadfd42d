"""Protobuf values as JSON, in Protobuf's own mapping, with the names of the schema."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kbroker_tools.registry.errors import RegistryError
from kbroker_tools.registry.proto_files import descriptor_of, files_of
from kbroker_tools.registry.proto_text import message_at

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto


class ProtobufJson:
    """A converter between the bytes and the JSON of one message of a schema.

    `indexes` name the message. The constructor raises RegistryError if the schema is invalid or has no such message.
    """

    def __init__(self, text: str, references: Mapping[str, str], indexes: Sequence[int]):
        from google.protobuf.message_factory import GetMessageClass
        files = files_of(text, references)
        name = message_at(files[-1], indexes)
        if name is None:
            raise RegistryError(f'found no message with the indexes {list(indexes)} in the .proto file')
        self._message = GetMessageClass(descriptor_of(files, name))

    def read(self, data: bytes) -> Any:
        """Return the JSON of a message. Raise ValueError if the bytes are not one."""
        from google.protobuf.json_format import MessageToDict, SerializeToJsonError
        from google.protobuf.message import DecodeError
        try:
            found = self._message.FromString(data)
            return MessageToDict(found, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        except (DecodeError, SerializeToJsonError, RecursionError) as error:
            raise ValueError(f'the bytes are no message of the schema: {_line(error)}') from None

    def write(self, text: bytes) -> bytes:
        """Return the bytes of a message from its JSON text. Raise ValueError if the text does not fit the schema."""
        from google.protobuf.json_format import Parse, ParseError
        from google.protobuf.message import EncodeError
        if not text.lstrip().startswith(b'{'):
            raise ValueError('found no JSON object, expected one')      # Parse takes an empty list for a message
        try:
            return bytes(Parse(text, self._message()).SerializeToString())
        except (ParseError, EncodeError, RecursionError) as error:
            raise ValueError(_line(error)) from None


def indexes_of(text: str, references: Mapping[str, str], message: str | None) -> tuple[int, ...]:
    """Return the message indexes of a full name. None names the first message. Raise RegistryError if the schema has no
    such message."""
    file = files_of(text, references)[-1]
    if message is None:
        return (0,)
    known = []
    for indexes in _all_indexes(file.message_type, ()):
        name = message_at(file, indexes)
        if name == message:
            return indexes
        known.append(str(name))
    raise RegistryError(f'found no message {message}, expected one of {", ".join(known)}')


def _all_indexes(messages: Sequence[DescriptorProto], above: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for number, each in enumerate(messages):
        yield (*above, number)
        yield from _all_indexes(each.nested_type, (*above, number))


def _line(error: Exception) -> str:
    return ' '.join(str(error).split()) or type(error).__name__
