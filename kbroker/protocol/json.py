"""Messages as text, the way Kafka's generated JSON converters and Jackson print them.

Fields stand in the order of the table by Kafka's names, those that the version lacks are left out, and so are tagged
fields that hold their default. Integers of all sizes are numbers, a uuid is base64url without padding, bytes are
base64, null is null, a float64 is what Java's Double.toString says. There is no space anywhere.
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

# What makes a word begin in Kafka's name of a field, where our name does not tell.
NAMES = {'kraft_version': 'kRaftVersion', 'kraft_version_feature': 'kRaftVersionFeature'}
ESCAPED = re.compile(r'\\\\|\\u(....)')
LEAST_PLAIN_DOUBLE, LEAST_LARGE_DOUBLE = Decimal('1e-3'), Decimal('1e7')


class _Field(NamedTuple):
    prefix: str
    """The name, quoted, and a colon."""
    attribute: str
    text_of: TextOf
    is_tagged: bool
    default: object


class JsonWriter:
    """Prints messages of one class in one version. Making one costs far more than using it."""

    def __init__(self, message_class: type[Message], version: int, overrides: Mapping[str, TextOf] | None = None):
        """`overrides` print fields in another way; they are named from the message on: `members.subscription`."""
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
            for field in struct.fields if self._version in field.versions
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
    """A message in one go; with many of a kind, keep a JsonWriter."""
    return JsonWriter(type(message), version).text(message)


def object_text(fields: Iterable[tuple[str, str]]) -> str:
    """An object of names and values that are JSON texts already."""
    return '{' + ','.join([f'"{name}":{value}' for name, value in fields]) + '}'


def kafka_name(name: str) -> str:
    """`transactional_id` as Kafka writes it: `transactionalId`."""
    first, *others = name.split('_')
    return NAMES.get(name) or first + ''.join([word.capitalize() for word in others])


def string_text(value: str) -> str:
    """Quoted, control characters escaped; hexadecimal digits are upper case, which Python's are not."""
    text = encode_basestring(value)
    if '\\u' in text:
        text = ESCAPED.sub(lambda match: match[0] if match[1] is None else '\\u' + match[1].upper(), text)
    return text


def bytes_text(value: bytes) -> str:
    return f'"{base64.b64encode(value).decode()}"'


def uuid_text(value: bytes) -> str:
    """The 16 bytes as Kafka's Uuid prints them, 22 characters, in quotes."""
    return f'"{base64.urlsafe_b64encode(value).rstrip(b"=").decode()}"'


def double_text(value: float) -> str:
    """As Java's Double.toString prints it: 1048576.0, 1.0E7, 1.0E-4; what is no number stands in quotes."""
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    number = Decimal(repr(value))
    if value == 0 or LEAST_PLAIN_DOUBLE <= abs(number) < LEAST_LARGE_DOUBLE:
        text = f'{number:f}'
        return text if '.' in text else text + '.0'
    sign, digits, _ = number.normalize().as_tuple()
    if len(digits) == 1:        # where two digits tell the number better, Java takes both: 4.9E-324
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


# The `records` of Produce and Fetch are left out: nobody prints those messages.
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
