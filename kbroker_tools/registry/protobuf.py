"""Protobuf values as Arrow columns.

| Protobuf | Arrow |
| --- | --- |
| message, repeated, map | struct, list, map |
| int32, sint32, sfixed32; int64, sint64, sfixed64 | int32; int64 |
| uint32, fixed32; uint64, fixed64 | int64; decimal128(20, 0) |
| float, double, bool, string, bytes | float32, float64, bool, string, binary |
| enum | string: the name, or the number in digits if it has no name |
| google.protobuf.Timestamp | timestamp in microseconds, UTC |
| google.protobuf.Struct, Value, ListValue | string: JSON |

These are the types of Spark's `from_protobuf` with `upcast.unsigned.ints`, which cannot read the last row. A message
without fields has no column. A field that is not set is null, and so is a field of proto3 without `optional` that is
zero, false or empty. A list or map is never null.

Values are read by the field numbers of the reader's schema. The writer's schema says only which message a value is.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker_tools.registry.errors import RegistryError
from kbroker_tools.registry.formats import Read, Undecodable
from kbroker_tools.registry.proto_files import descriptor_of, file_of, files_in, files_of, from_text, to_text
from kbroker_tools.registry.proto_text import message_at

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

TIMESTAMP = 'google.protobuf.Timestamp'
AS_JSON = ('google.protobuf.Struct', 'google.protobuf.Value', 'google.protobuf.ListValue')
MOST_FIELDS = 10_000

Convert = Callable[[Any], Any]


class ProtobufFormat:
    """The reader's message, as descriptors in Base64 and the name of the message, with a colon between them."""

    kind = 'protobuf'
    has_indexes = True

    def __init__(self, text: str):
        files, _, message = text.rpartition(':')
        self.text = text
        self._descriptor = descriptor_of(from_text(files), message)
        self.type, self._convert = _Columns().message(self._descriptor, ())

    @classmethod
    def from_option(cls, schema: str) -> ProtobufFormat:
        path, _, message = schema.rpartition(':')
        if not path or not message:
            raise RegistryError(f'found {schema!r}, expected DESCRIPTOR-FILE:package.Message')
        return cls(f'{to_text(files_in(Path(path)))}:{message}')

    @classmethod
    def from_registry(cls, text: str, references: Mapping[str, str], message: str | None) -> ProtobufFormat:
        files = files_of(text, references)
        name = message or message_at(files[-1], [0])
        if name is None:
            raise RegistryError('found a .proto file without a message, expected one')
        return cls(f'{to_text(files)}:{name}')

    def own_values(self) -> Read:
        from google.protobuf.message_factory import GetMessageClass
        parse, convert = GetMessageClass(self._descriptor).FromString, self._convert

        def value_of(data: bytes, at: int) -> Any:
            found = convert(parse(data[at:] if at else data))
            if found is None:
                if len(data) > at:
                    raise Undecodable('found no known field')
                return convert.empty()
            return found
        return value_of

    def values_of(self, text: str, references: Mapping[str, str], indexes: tuple[int, ...]) -> Read:
        try:
            name = message_at(file_of('writer.proto', text), indexes)
        except RegistryError as error:
            raise Undecodable(str(error)) from None
        if name != self._descriptor.full_name:
            raise Undecodable(f'found a message {name}, expected {self._descriptor.full_name}')
        return self.own_values()


class _MessageReader:
    """The conversion of one type of message to a dict. A call returns None if no known field is set."""

    def __init__(self, fields: dict[int, tuple[str, Convert]], many: list[str]):
        self._fields, self._many = fields, many

    def empty(self) -> dict[str, Any]:
        return {name: [] for name in self._many}

    def __call__(self, message: Any) -> dict[str, Any] | None:
        found, is_any = self.empty(), False
        for field, value in message.ListFields():
            known = self._fields.get(field.number)
            if known is not None and not field.is_extension:
                found[known[0]] = known[1](value)
                is_any = True
        return found if is_any else None

    def inner(self, message: Any) -> dict[str, Any]:
        """Return the dict of a message in a field. The field is set, also if the message is empty."""
        found = self(message)
        return self.empty() if found is None else found


class _Columns:
    """The walk over a message that finds the types and the conversions of its fields."""

    def __init__(self) -> None:
        self._count = 0

    def message(self, descriptor: Descriptor, path: tuple[str, ...]) -> tuple[pa.StructType, _MessageReader]:
        import pyarrow as pa
        if descriptor.full_name in path:
            raise RegistryError(f'found a Protobuf schema in which {descriptor.full_name} contains itself: a column '
                                'cannot have a recursive type; expected a schema without recursion')
        types: list[pa.Field] = []
        readers: dict[int, tuple[str, Convert]] = {}
        many: list[str] = []
        for field in descriptor.fields:
            self._count += 1
            if self._count > MOST_FIELDS:
                raise RegistryError(f'found a Protobuf schema with more than {MOST_FIELDS} fields, expected fewer')
            found = self._field(field, (*path, descriptor.full_name))
            if found is not None:
                types.append(pa.field(field.name, found[0]))
                readers[field.number] = field.name, found[1]
                if is_many(field):
                    many.append(field.name)
        if not types and not path:
            raise RegistryError(f'found a Protobuf message {descriptor.full_name} without fields, expected one or more')
        return pa.struct(types), _MessageReader(readers, many)

    def _field(self, field: FieldDescriptor, path: tuple[str, ...]) -> tuple[pa.DataType, Convert] | None:
        """Return the type and the conversion of a field. Return None if its message has no fields."""
        import pyarrow as pa
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            key, value = (self._one(inner.fields_by_name[name], path) for name in ('key', 'value'))
            if key is None or value is None:
                return None
            key_of, value_of = key[1], value[1]
            return pa.map_(key[0], value[0]), lambda found: [(key_of(each), value_of(found[each])) for each in found]
        one = self._one(field, path)
        if one is None or not is_many(field):
            return one
        convert = one[1]
        return pa.list_(pa.field('element', one[0])), lambda found: [convert(each) for each in found]

    def _one(self, field: FieldDescriptor, path: tuple[str, ...]) -> tuple[pa.DataType, Convert] | None:
        import pyarrow as pa
        if field.message_type is not None:
            return self._inner(field.message_type, path)
        if field.enum_type is not None:
            names: dict[int, str] = {}
            for each in field.enum_type.values:
                names.setdefault(each.number, each.name)    # the first of several names, as in Java
            return pa.string(), lambda number: names.get(number) or str(number)
        if field.cpp_type == field.CPPTYPE_UINT64:
            return pa.decimal128(20, 0), Decimal
        if field.type == field.TYPE_BYTES:
            return pa.binary(), _same
        return {field.CPPTYPE_INT32: pa.int32(), field.CPPTYPE_INT64: pa.int64(), field.CPPTYPE_UINT32: pa.int64(),
                field.CPPTYPE_DOUBLE: pa.float64(), field.CPPTYPE_FLOAT: pa.float32(), field.CPPTYPE_BOOL: pa.bool_(),
                field.CPPTYPE_STRING: pa.string()}[field.cpp_type], _same

    def _inner(self, message: Descriptor, path: tuple[str, ...]) -> tuple[pa.DataType, Convert] | None:
        import pyarrow as pa
        if message.full_name == TIMESTAMP:
            return pa.timestamp('us', 'UTC'), _microseconds
        if message.full_name in AS_JSON:
            return pa.string(), _json_of
        kind, reader = self.message(message, path)
        return (kind, reader.inner) if kind.num_fields else None


def is_many(field: FieldDescriptor) -> bool:
    """Return True for a list or a map."""
    repeated = getattr(field, 'is_repeated', None)
    return bool(repeated) if repeated is not None else field.label == field.LABEL_REPEATED


def _same(value: Any) -> Any:
    return value


def _microseconds(message: Any) -> int:
    return int(message.seconds) * 1_000_000 + int(message.nanos) // 1000


def _json_of(message: Any) -> str:
    import json

    from google.protobuf.json_format import MessageToDict
    return json.dumps(MessageToDict(message), ensure_ascii=False, separators=(',', ':'))
