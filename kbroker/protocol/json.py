"""Prints messages as JSON, in the format of Kafka's generated JSON converters and Jackson.

Fields have Kafka's names, and are in the order of the message table. Fields that the version or Kafka lacks, and tagged
fields that have their defaults, are omitted. A uuid is printed in base64url without padding, bytes in base64, and a
float64 like Java's Double.toString prints it. There is no white space.
"""
from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from kbroker.protocol import schema
from kbroker.protocol.plan import Message

TextOf = Callable[[Any], str]

# Maps field names in the message tables to Kafka's names, where `kafka_name` cannot derive the capital letters.
NAMES = {'kraft_version': 'kRaftVersion', 'kraft_version_feature': 'kRaftVersionFeature'}
ESCAPED = re.compile(r'\\\\|\\u(....)')
LEAST_PLAIN_DOUBLE, LEAST_LARGE_DOUBLE = Decimal('1e-3'), Decimal('1e7')


class _Field(NamedTuple):
    prefix: str
    """The quoted name with a colon."""
    attribute: str
    text_of: TextOf
    is_tagged: bool
    default: object


class JsonWriter:
    """Prints messages of one class in one version. Creating a JsonWriter takes far longer than printing a message with
    it."""

    def __init__(self, message_class: type[Message], version: int, overrides: Mapping[str, TextOf] | None = None):
        """Create a writer. `overrides` maps paths of fields, such as `members.subscription`, to functions that print
        the fields instead."""
        self._message_class: Any = message_class
        self._version = version
        self._overrides = dict(overrides or {})
        self._fields = self._plan(message_class.schema.struct, '')  # type: ignore[attr-defined]

    def text(self, message: Message) -> str:
        return _object_text(self._fields, message)

    def _plan(self, struct: schema.Struct, path: str) -> list[_Field]:
        return [
            _Field(f'"{kafka_name(field.name)}":', field.name, self._text_of(field, path), field.tag is not None,
                   self._default(field))
            for field in struct.fields if self._version in field.versions and not field.is_private
        ]

    def _text_of(self, field: schema.Field, path: str) -> TextOf:
        if path + field.name in self._overrides:
            return self._overrides[path + field.name]
        if field.struct is not None:
            fields = self._plan(field.struct, f'{path}{field.name}.')
            one: TextOf = lambda message: _object_text(fields, message)  # noqa: E731
        else:
            one = TEXT_OF[field.type]
        if field.is_array:
            return lambda values: '[' + ','.join([one(value) for value in values]) + ']'
        return one

    def _default(self, field: schema.Field) -> object:
        if isinstance(field.default, schema.Struct):
            return getattr(self._message_class, field.default.name)()
        return field.default


def json_text(message: Message, version: int) -> str:
    """Return a message as JSON. To print many messages of one class, create a JsonWriter instead."""
    return JsonWriter(type(message), version).text(message)


def object_text(fields: Iterable[tuple[str, str]]) -> str:
    """Return a JSON object with these (name, value) fields. The values must be JSON texts."""
    return '{' + ','.join([f'"{name}":{value}' for name, value in fields]) + '}'


def kafka_name(name: str) -> str:
    """Return Kafka's spelling of a name: `transactionalId` for `transactional_id`."""
    first, *others = name.split('_')
    return NAMES.get(name) or first + ''.join([word.capitalize() for word in others])


def string_text(value: str) -> str:
    """Return a quoted string with escaped control characters. The escapes have upper-case hexadecimal digits, unlike
    those of Python's json."""
    text = encode_basestring(value)
    if '\\u' in text:
        text = ESCAPED.sub(lambda match: match[0] if match[1] is None else '\\u' + match[1].upper(), text)
    return text


def bytes_text(value: bytes) -> str:
    return f'"{base64.b64encode(value).decode()}"'


def uuid_text(value: bytes) -> str:
    """Return the 16 bytes of a UUID in the format of Kafka's Uuid: 22 characters in quotes."""
    return f'"{base64.urlsafe_b64encode(value).rstrip(b"=").decode()}"'


def double_text(value: float) -> str:
    """Return a float in the format of Java's Double.toString, for example 1048576.0, 1.0E7 or 1.0E-4. NaN and
    infinities are quoted."""
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    number = Decimal(repr(value))
    if value == 0 or LEAST_PLAIN_DOUBLE <= abs(number) < LEAST_LARGE_DOUBLE:
        text = f'{number:f}'
        return text if '.' in text else text + '.0'
    sign, digits, _ = number.normalize().as_tuple()
    if len(digits) == 1:        # Java uses two digits if they are more precise: 4.9E-324
        sign, digits, _ = Decimal(f'{value:.1e}').as_tuple()
    first, *others = map(str, digits)
    return f'{"-" if sign else ""}{first}.{"".join(others)}E{number.adjusted()}'


def _object_text(fields: list[_Field], message: Message) -> str:
    parts = []
    for prefix, attribute, text_of, is_tagged, default in fields:
        value = getattr(message, attribute)
        if is_tagged and value == default:
            continue
        parts.append(prefix + ('null' if value is None else text_of(value)))
    return '{' + ','.join(parts) + '}'


# Fields of type `records` have no function here, because Produce and Fetch messages are never printed.
TEXT_OF: dict[str, TextOf] = {
    'bool': lambda value: 'true' if value else 'false',
    'int8': str,
    'int16': str,
    'uint16': str,
    'int32': str,
    'int64': str,
    'float64': double_text,
    'uuid': uuid_text,
    'string': string_text,
    'bytes': bytes_text,
}
