"""JSON values as Arrow columns.

The schema is a DDL text. That of a registry is a JSON Schema, from which the DDL text is made. The types are those of
Spark's `from_json`, and so are the conversions: a field that is not named is dropped, a missing field is null, a column
of type string takes any JSON value as its text, and a value with one field that does not fit is undecodable. Anything
after the first object is dropped.

Three results differ from Spark's. A number in a column of type string keeps its digits: Spark makes 1.5 of 1.50. A
number that is too large for tinyint is undecodable: Spark makes another number of it. A value that is not
UTF-8 is undecodable as a whole.
"""
from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any

from kbroker_tools.registry.ddl import from_ddl, to_ddl
from kbroker_tools.registry.formats import Read, Undecodable, refuse_message
from kbroker_tools.registry.json_schema import columns_of

if TYPE_CHECKING:
    import pyarrow as pa

BLANKS = ' \t\r\n'
WHOLE = re.compile(r'-?[0-9]+')
NUMBER = re.compile(r'-?[0-9.]+(?:[eE][-+]?[0-9]+)?')
DATE = re.compile(r'[0-9]{4}-[0-9]{2}-[0-9]{2}')
TIME = re.compile(r'[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?'
                  r'(?:Z|[-+][0-9]{2}(?::?[0-9]{2})?)?)?')
NOT_NUMBERS = {'NaN': 'nan', 'Infinity': 'inf', '-Infinity': '-inf'}
EXACT = Context(prec=60)
MOST_EXPONENT = 400
"""The largest exponent of a number that becomes a decimal. A larger one would fill the memory with digits."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Convert = Callable[[Any], Any]


class JsonFormat:
    """The columns of JSON values, as DDL text."""

    kind = 'json'
    has_indexes = False

    def __init__(self, text: str):
        self.text = text
        self.type = from_ddl(text)
        self._convert = _fields(self.type)

    @classmethod
    def from_option(cls, schema: str) -> JsonFormat:
        return cls(schema)

    @classmethod
    def from_registry(cls, text: str, references: Mapping[str, str], message: str | None) -> JsonFormat:
        refuse_message(message)
        return cls(to_ddl(columns_of(text, references)))

    def own_values(self) -> Read:
        convert, parse = self._convert, json.JSONDecoder(parse_float=_Number, parse_int=_Number,
                                                         parse_constant=_Number).raw_decode

        def value_of(data: bytes, at: int) -> Any:
            text = (data[at:] if at else data).decode().lstrip(BLANKS)
            if text[:1] != '{':
                raise Undecodable('found no object')
            return convert(parse(text)[0])
        return value_of

    def values_of(self, text: str, references: Mapping[str, str], indexes: tuple[int, ...]) -> Read:
        """The schema of the writer does not matter: a value has the names of its fields."""
        return self.own_values()


class _Number(str):
    """The digits of a number in JSON. Only the type of the column decides what number it is."""

    __slots__ = ()


def _fields(kind: pa.StructType) -> Convert:
    converts = [(each.name, _convert_to(each.type)) for each in kind]

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Undecodable('found no object')
        found = {}
        for name, to in converts:
            each = value.get(name)
            if each is not None:
                found[name] = to(each)
        return found
    return convert


def _convert_to(kind: pa.DataType) -> Convert:
    import pyarrow as pa
    types = pa.types
    if types.is_struct(kind):
        return _fields(kind)
    if types.is_map(kind):
        return _map(_convert_to(kind.item_type))
    if types.is_list(kind):
        return _list(_convert_to(kind.value_type))
    if types.is_decimal(kind):
        return _decimal(kind.scale)
    if types.is_timestamp(kind):
        return _timestamp if kind.tz else _local_timestamp
    if types.is_integer(kind):
        return _whole
    if types.is_floating(kind):
        return _float
    return {pa.bool_(): _boolean, pa.string(): _string, pa.binary(): _binary, pa.date32(): _date}[kind]


def _map(convert: Convert) -> Convert:
    def convert_all(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise Undecodable('found no object')
        return [(key, None if each is None else convert(each)) for key, each in value.items()]
    return convert_all


def _list(convert: Convert) -> Convert:
    def convert_all(value: Any) -> list[Any]:
        if type(value) is not list:
            raise Undecodable('found no array')
        return [None if each is None else convert(each) for each in value]
    return convert_all


def _string(value: Any) -> str:
    return value if type(value) is str else _text_of(value)


def _text_of(value: Any) -> str:
    """Return the JSON text of a value, with its numbers as they were."""
    if type(value) is _Number:
        return str(value)
    if type(value) is dict:
        return '{' + ','.join(f'{json.dumps(key, ensure_ascii=False)}:{_text_of(each)}'
                              for key, each in value.items()) + '}'
    if type(value) is list:
        return '[' + ','.join(map(_text_of, value)) + ']'
    return json.dumps(value, ensure_ascii=False)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise Undecodable('found no boolean')
    return value


def _whole(value: Any) -> int:
    if type(value) is not _Number or len(value) > 20 or not WHOLE.fullmatch(value):
        raise Undecodable('found no whole number')
    return int(value)


def _float(value: Any) -> float:
    if type(value) is _Number:
        return float(value)
    return float(NOT_NUMBERS[value])


def _decimal(scale: int) -> Convert:
    unit = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> Decimal:
        if type(value) not in (_Number, str) or not NUMBER.fullmatch(value):
            raise Undecodable('found no number')
        found = Decimal(value)
        if abs(found.adjusted()) > MOST_EXPONENT:
            raise Undecodable('found a number with too large an exponent')
        return found.quantize(unit, ROUND_HALF_UP, EXACT)
    return convert


def _binary(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError):
        raise Undecodable('found no Base64') from None


def _date(value: Any) -> date:
    if type(value) is not str or not DATE.fullmatch(value):
        raise Undecodable('found no date')
    return date.fromisoformat(value)


def _timestamp(value: Any) -> int:
    """Return microseconds. A number is seconds, and a text without a zone is in UTC."""
    if type(value) is _Number:
        return _whole(value) * 1_000_000
    found = _time(value)
    since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _local_timestamp(value: Any) -> int:
    found = _time(value)
    if found.tzinfo:
        raise Undecodable('found a time with a zone')
    return _timestamp(value)


def _time(value: Any) -> datetime:
    if type(value) is not str or not TIME.fullmatch(value):
        raise Undecodable('found no time')
    return datetime.fromisoformat(value)
