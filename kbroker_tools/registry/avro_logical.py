"""Logical types and defaults of rewritten Avro schemas.

fastavro lets a program add logical types. Those of this module are exact: fastavro's own reader of decimals rounds a
number with too many digits.
"""
from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

from kbroker_tools.registry.avro_schema import MILLIS, Node, is_decimal, logical_of

DEFAULT = 'kbroker_default'
"""The property of a rewritten field with its default, in a list."""
SCALE = 'kbroker_scale'
EXACT = Context(prec=200)
MOST_DECIMAL_BYTES = 64


class Mismatch(Exception):
    """The reader's schema cannot read values of the writer's schema."""


def same_logical(node: Node, want: Node, read: Node) -> Node:
    """Return the schema of a value whose type both sides share. Raise Mismatch if the logical types contradict."""
    kind, logical = logical_of(node)
    wanted = logical_of(want)[1]
    if is_decimal(want) and is_decimal(node) and node.get('scale', 0) != want.get('scale', 0):
        raise Mismatch(f'a decimal of scale {node.get("scale", 0)} is not one of scale {want.get("scale", 0)}')
    if logical and wanted and logical != wanted:
        raise Mismatch(f'{kind} as {logical} is not {wanted}')
    return read


def with_logical(node: Node, found: dict[str, Any]) -> Node:
    """Return the rewritten schema of a value with the logical type that it needs. A primitive type without one is a
    name, which fastavro reads faster than a dict."""
    if is_decimal(node):
        return {**found, 'logicalType': 'kbroker-decimal', SCALE: node.get('scale', 0)}
    kind, logical = logical_of(node)
    if kind == 'long' and logical in MILLIS:
        return {**found, 'logicalType': 'kbroker-millis'}
    return found if len(found) > 1 else kind


def fits(kind: str, value: Any) -> bool:
    """Return True if a default in JSON can be of a type."""
    if kind in ('int', 'long'):
        return isinstance(value, int) and not isinstance(value, bool)
    if kind in ('float', 'double'):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return {'null': value is None, 'boolean': isinstance(value, bool), 'array': isinstance(value, list),
            'map': isinstance(value, dict), 'record': isinstance(value, dict), 'error': isinstance(value, dict),
            }.get(kind, isinstance(value, str))


def put_defaults(parsed: Node) -> None:
    """Set the defaults in a parsed schema. fastavro would refuse to parse the default of a column, such as bytes."""
    if isinstance(parsed, list):
        for each in parsed:
            put_defaults(each)
    elif isinstance(parsed, dict):
        for field in parsed.get('fields', ()):
            if DEFAULT in field:
                field['default'], = field[DEFAULT]
            put_defaults(field['type'])
        put_defaults(parsed.get('items'))
        put_defaults(parsed.get('values'))


def add_logical_types() -> None:
    from fastavro.read import LOGICAL_READERS
    for kind in ('bytes', 'fixed'):
        LOGICAL_READERS[f'{kind}-kbroker-decimal'] = _read_decimal
    for kind in ('int', 'long'):
        LOGICAL_READERS[f'{kind}-kbroker-millis'] = _read_millis


def _read_decimal(data: bytes, writer: Any = None, reader: Any = None) -> Decimal:
    return decimal_of(data, writer[SCALE])


def decimal_of(data: bytes, scale: int) -> Decimal:
    if len(data) > MOST_DECIMAL_BYTES:
        raise ValueError(f'found a decimal of {len(data)} bytes, expected at most {MOST_DECIMAL_BYTES}')
    return EXACT.scaleb(Decimal(int.from_bytes(data, 'big', signed=True)), -scale)


def _read_millis(data: int, writer: Any = None, reader: Any = None) -> int:
    return data * 1000
