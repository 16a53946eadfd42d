"""A slow codec for messages, with which the tests compare kbroker/protocol/codec.pyx.

It is written from Kafka's protocol guide with the module `struct`, and shares only the parsed message tables with
kbroker. Decoded structs are dicts. As in Kafka's generated classes, fields that the version lacks, and absent tagged
fields, have their defaults.
"""
import struct

from kbroker.protocol import schema

NUMBERS = {
    'int8': struct.Struct('>b'),
    'int16': struct.Struct('>h'),
    'uint16': struct.Struct('>H'),
    'int32': struct.Struct('>i'),
    'int64': struct.Struct('>q'),
    'float64': struct.Struct('>d'),
}


class Malformed(Exception):
    pass


def default_of(field: schema.Field):
    if field.is_array and field.default is not None:
        return []
    if isinstance(field.default, schema.Struct):
        return {inner.name: default_of(inner) for inner in field.default.fields}
    return field.default


# ---- encode

def encode(message: schema.Message, version: int, values: dict) -> bytes:
    return _struct_bytes(message.struct, version, version >= message.declaration.flexible_from, values)


def unsigned_varint(value: int) -> bytes:
    groups = []
    while True:
        groups.append(value % 128)
        value //= 128
        if value == 0:
            break
    return bytes([group + 128 for group in groups[:-1]] + groups[-1:])


def _struct_bytes(shape: schema.Struct, version: int, flexible: bool, values: dict) -> bytes:
    fields = [field for field in shape.fields if version in field.versions]
    body = b''.join(_field_bytes(field, version, flexible, values[field.name]) for field in fields if field.tag is None)
    if not flexible:
        return body
    tagged = sorted(
        (field.tag, field) for field in fields if field.tag is not None and values[field.name] != default_of(field)
    )
    body += unsigned_varint(len(tagged))
    for tag, field in tagged:
        value = _field_bytes(field, version, flexible, values[field.name])
        if value == b'\xff' and _is_struct_or_null(field, version):
            value = unsigned_varint(0)
        body += unsigned_varint(tag) + unsigned_varint(len(value)) + value
    return body


def _is_struct_or_null(field: schema.Field, version: int) -> bool:
    """Return whether a field is a nullable struct in this version. An int8 says whether this struct is present, or, in
    a tagged field, an unsigned varint."""
    return field.type == 'struct' and not field.is_array and field.may_be_null(version)


def _field_bytes(field: schema.Field, version: int, flexible: bool, value) -> bytes:
    compact = flexible and not field.inflexible
    if field.is_array:
        elements = (
            b''
            if value is None
            else b''.join(_element_bytes(field, version, flexible, compact, each) for each in value)
        )
        return _length_bytes(value, compact, 'int32') + elements
    if field.type == 'struct' and field.may_be_null(version):
        return b'\xff' if value is None else b'\x01' + _element_bytes(field, version, flexible, compact, value)
    return _element_bytes(field, version, flexible, compact, value)


def _element_bytes(field: schema.Field, version: int, flexible: bool, compact: bool, value) -> bytes:
    if field.type == 'struct':
        return _struct_bytes(field.struct, version, flexible, value)
    if field.type == 'bool':
        return b'\x01' if value else b'\x00'
    if field.type == 'uuid':
        return value
    if field.type in NUMBERS:
        return NUMBERS[field.type].pack(value)
    raw = value.encode('utf-8') if isinstance(value, str) else value
    return _length_bytes(raw, compact, 'int16' if field.type == 'string' else 'int32') + bytes(raw or b'')


def _length_bytes(value, compact: bool, classic: str) -> bytes:
    if compact:
        return unsigned_varint(0 if value is None else len(value) + 1)
    return NUMBERS[classic].pack(-1 if value is None else len(value))


# ---- decode

def decode(message: schema.Message, version: int, data: bytes) -> dict:
    """Decode a message. Raise Malformed if the bytes are invalid."""
    reader = _Reader(data)
    values = _read_struct(reader, message.struct, version, version >= message.declaration.flexible_from)
    reader.finish()
    return values


class _Reader:
    def __init__(self, data: bytes):
        self.rest = bytes(data)

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.rest):
            raise Malformed(f'{count} bytes')
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def number(self, type_name: str):
        codec = NUMBERS[type_name]
        return codec.unpack(self.take(codec.size))[0]

    def unsigned_varint(self) -> int:
        value = 0
        for power in range(5):
            group = self.take(1)[0]
            value += group % 128 * 128 ** power
            if group < 128:
                return value
        raise Malformed('varint')

    def finish(self) -> None:
        if self.rest:
            raise Malformed(f'{len(self.rest)} bytes left over')


def _read_struct(reader: _Reader, shape: schema.Struct, version: int, flexible: bool) -> dict:
    values = {field.name: default_of(field) for field in shape.fields}
    fields = [field for field in shape.fields if version in field.versions]
    for field in fields:
        if field.tag is None:
            values[field.name] = _read_field(reader, field, version, flexible)
    if flexible:
        by_tag = {field.tag: field for field in fields if field.tag is not None}
        for _ in range(reader.unsigned_varint()):
            field = by_tag.get(reader.unsigned_varint())
            inner = _Reader(reader.take(reader.unsigned_varint()))
            if field is not None:
                if not _is_struct_or_null(field, version):
                    values[field.name] = _read_field(inner, field, version, flexible)
                elif inner.unsigned_varint() == 0:
                    values[field.name] = None
                else:
                    values[field.name] = _read_struct(inner, field.struct, version, flexible)
                inner.finish()
    return values


def _read_field(reader: _Reader, field: schema.Field, version: int, flexible: bool):
    compact = flexible and not field.inflexible
    nullable = field.may_be_null(version)
    if not field.is_array:
        if field.type == 'struct' and nullable and reader.number('int8') < 0:
            return None
        return _read_element(reader, field, version, flexible, compact, nullable)
    count = _read_length(reader, compact, 'int32', nullable)
    if count is None:
        return None
    elements = []
    for _ in range(count):
        elements.append(_read_element(reader, field, version, flexible, compact, False))
    return elements


def _read_element(reader: _Reader, field: schema.Field, version: int, flexible: bool, compact: bool, nullable: bool):
    if field.type == 'struct':
        return _read_struct(reader, field.struct, version, flexible)
    if field.type == 'bool':
        return reader.take(1) != b'\x00'
    if field.type == 'uuid':
        return reader.take(16)
    if field.type in NUMBERS:
        return reader.number(field.type)
    length = _read_length(reader, compact, 'int16' if field.type == 'string' else 'int32', nullable)
    if length is None:
        return None
    if field.type != 'string':
        return reader.take(length)
    if length > 32767:
        raise Malformed('long string')
    try:
        return reader.take(length).decode('utf-8')
    except UnicodeDecodeError as error:
        raise Malformed(str(error)) from None


def _read_length(reader: _Reader, compact: bool, classic: str, nullable: bool) -> int | None:
    length = reader.unsigned_varint() - 1 if compact else reader.number(classic)
    if compact:
        length = (length + 2**31) % 2**32 - 2**31
    if length < 0 and not nullable:
        raise Malformed(f'length {length}')
    return None if length < 0 else length
