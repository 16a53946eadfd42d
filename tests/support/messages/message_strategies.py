"""Hypothesis strategies for every message in every version, derived from the message schemas."""
from hypothesis import strategies as st

from kbroker.protocol import messages, schema
from kbroker.protocol.plan import Message

NAMES = sorted(schema.declarations())
PRIMITIVES = {
    'bool': st.booleans(),
    'int8': st.integers(-(2**7), 2**7 - 1),
    'int16': st.integers(-(2**15), 2**15 - 1),
    'uint16': st.integers(0, 2**16 - 1),
    'int32': st.integers(-(2**31), 2**31 - 1),
    'int64': st.integers(-(2**63), 2**63 - 1),
    'float64': st.floats(allow_nan=False),
    'uuid': st.binary(min_size=16, max_size=16),
    'string': st.text(max_size=20),
    'bytes': st.binary(max_size=200),
    'records': st.binary(max_size=200),
}


def versions_of(name: str) -> list[int]:
    first, last = getattr(messages, name).versions
    return list(range(first, last + 1))


@st.composite
def messages_and_versions(draw, name: str):
    version = draw(st.sampled_from(versions_of(name)))
    message_class = getattr(messages, name)
    return draw(_structs(message_class.schema.struct, message_class, message_class, version)), version


def _structs(struct: schema.Struct, struct_class, message_class, version: int):
    """Return a strategy for a struct. Fields that the version lacks have their defaults, because encoding drops them.
    """
    return st.builds(struct_class, **{
        field.name: _values(field, message_class, version) for field in struct.fields if version in field.versions
    })


def _values(field: schema.Field, message_class, version: int):
    if field.struct is not None:
        values = _structs(field.struct, getattr(message_class, field.struct.name), message_class, version)
    else:
        values = PRIMITIVES[field.type]
    if field.is_array:
        values = st.lists(values, max_size=3)
    return st.none() | values if field.may_be_null(version) else values


def as_values(message: Message) -> dict:
    """Return the message as dicts, as reference.codec reads it."""
    return {name: _as_value(getattr(message, name)) for name in message._layout.names}


def _as_value(value):
    if isinstance(value, Message):
        return as_values(value)
    if isinstance(value, list):
        return [_as_value(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value
