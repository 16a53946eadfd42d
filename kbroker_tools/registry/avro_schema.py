"""Parsed Avro schemas, their references, and the Arrow types of their values.

| Avro | Arrow |
| --- | --- |
| record | struct |
| array, map | list, map |
| union of null and a type | the type; it may be null |
| union of int and long, or of float and double | int64, float64 |
| another union | struct of `member0`, `member1` ..., of which one is not null; null has no number |
| enum, string | string |
| bytes, fixed | binary |
| decimal | decimal128; with more than 38 digits it is refused |
| date | date32 |
| timestamp-millis, timestamp-micros | timestamp in microseconds, UTC |
| local-timestamp-millis, local-timestamp-micros | timestamp in microseconds, without a zone |
| time-millis, time-micros, and other logical types | the type without the logical type |

These are the types of Spark's `from_avro`.
"""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kbroker_tools.registry.errors import RegistryError, unicode_only

if TYPE_CHECKING:
    import pyarrow as pa

Node = Any
"""A parsed schema: a name, a list (union) or a dict."""
NAMED = ('record', 'error', 'enum', 'fixed')
PRIMITIVES = ('null', 'boolean', 'int', 'long', 'float', 'double', 'bytes', 'string')
DEEPEST = 50
MOST_NODES = 10_000
"""The most types in a schema whose named types are written out. A small text can name the same type very often."""
DATES = {('int', 'date')}
UTC_TIMES = {('long', 'timestamp-millis'), ('long', 'timestamp-micros')}
LOCAL_TIMES = {('long', 'local-timestamp-millis'), ('long', 'local-timestamp-micros')}
MILLIS = ('timestamp-millis', 'local-timestamp-millis')


class AvroSchema:
    """A parsed schema with the named types that it uses."""

    def __init__(self, text: str, references: Mapping[str, str] | None = None):
        """Parse a schema. `references` has the texts of the schemas that it uses, each after those that it uses itself.

        Raise RegistryError if one is not a schema.
        """
        self._named: dict[str, Any] = {}
        for each in (references or {}).values():
            self._parse(each)
        self.root: Node = self._parse(text)

    def _parse(self, text: str) -> Node:
        import fastavro
        try:
            return fastavro.parse_schema(json.loads(text), self._named)
        except (ValueError, RecursionError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, KeyError,
                TypeError, AttributeError) as error:    # fastavro raises the last three for JSON of a wrong shape
            raise RegistryError(f'found {_start(text)}, which is not an Avro schema: {_line(error)}') from None

    def node(self, node: Node) -> Node:
        """Return the definition of a named type, and any other schema as it is."""
        if isinstance(node, str) and node not in PRIMITIVES:
            return self._named[node]
        if isinstance(node, dict) and isinstance(node['type'], (dict, list)):
            return self.node(node['type'])
        return node

    def text(self) -> str:
        """Return the schema as JSON, with the types that it refers to."""
        return json.dumps(self._written(self.root, set()), separators=(',', ':'))

    def _written(self, node: Node, seen: set[str]) -> Node:
        if isinstance(node, list):
            return [self._written(each, seen) for each in node]
        if isinstance(node, str):
            if node in PRIMITIVES or node in seen:
                return node
            return self._written(self._named[node], seen)
        found = {key: each for key, each in node.items() if not key.startswith('__')}
        if found['type'] in NAMED:
            seen.add(found['name'])
        for key in ('items', 'values'):
            if key in found:
                found[key] = self._written(found[key], seen)
        if 'fields' in found:
            found['fields'] = [{**each, 'type': self._written(each['type'], seen)} for each in found['fields']]
        if isinstance(found['type'], (dict, list)):
            found['type'] = self._written(found['type'], seen)
        return found

    def arrow_type(self) -> pa.StructType:
        """Return the type of the values. Raise RegistryError if they cannot be columns."""
        import pyarrow as pa
        with unicode_only():
            found = _Types(self).of(self.root, ())
        if not pa.types.is_struct(found):
            raise RegistryError(f'found an Avro schema of type {kind_of(self.node(self.root))}, expected a record')
        return found


def kind_of(node: Node) -> str:
    """Return the type of a schema: `record`, `union`, `long` ..."""
    return 'union' if isinstance(node, list) else node if isinstance(node, str) else node['type']


def logical_of(node: Node) -> tuple[str, str]:
    """Return the type and the logical type of a schema. The logical type is '' if there is none."""
    return kind_of(node), str(node.get('logicalType', '')) if isinstance(node, dict) else ''


def is_decimal(node: Node) -> bool:
    kind, logical = logical_of(node)
    return logical == 'decimal' and kind in ('bytes', 'fixed')


def branches(union: Sequence[Node]) -> list[Node]:
    """Return the types of a union, without null."""
    return [each for each in union if each != 'null']


def is_plain_union(schema: AvroSchema, union: Sequence[Node]) -> bool:
    """Return True if a union is a column of one type, and False if it is a struct of its members."""
    kinds = {kind_of(schema.node(each)) for each in branches(union)}
    return len(branches(union)) <= 1 or kinds == {'int', 'long'} or kinds == {'float', 'double'}


def share_a_name(node: Any, want: Any) -> bool:
    """Return True if a named type of the writer has the name or an alias of the reader's, whatever the namespace is."""
    names = [each.rpartition('.')[2] for each in (want['name'], *want.get('aliases', ()))]
    return node['name'].rpartition('.')[2] in names


def names_in(node: Node) -> set[str]:
    """Return the names of the named types in a schema."""
    if isinstance(node, list):
        return set().union(*map(names_in, node))
    if not isinstance(node, dict):
        return set()
    inner = [node.get('items'), node.get('values'), *(each['type'] for each in node.get('fields', ()))]
    return {node['name']}.union(*map(names_in, inner)) if 'name' in node else set().union(*map(names_in, inner))


class _Types:
    def __init__(self, schema: AvroSchema):
        self._schema, self._nodes = schema, 0

    def of(self, given: Node, path: tuple[str, ...]) -> pa.DataType:
        """Return the type of a schema. `path` has the names of the records and fields around it."""
        import pyarrow as pa
        self._nodes += 1
        if self._nodes > MOST_NODES or len(path) > 2 * DEEPEST:
            raise RegistryError(f'found an Avro schema with more than {MOST_NODES} types or {DEEPEST} levels, expected '
                                'fewer')
        node = self._schema.node(given)
        kind, logical = logical_of(node)
        if kind == 'union':
            return self._union(node, path)
        if kind in ('record', 'error'):
            if node['name'] in path:
                raise RegistryError(f'found an Avro schema in which {node["name"]} contains itself: a column cannot '
                                    'have a recursive type; expected a schema without recursion')
            if not node['fields']:
                raise RegistryError(f'found an Avro record {node["name"]} without fields, expected one or more')
            names: set[str] = set()
            for each in node['fields']:
                if each['name'] in names:
                    raise RegistryError(f'found the field {each["name"]} of the Avro record {node["name"]} again, '
                                        'expected each name once')
                names.add(each['name'])
            return pa.struct([pa.field(each['name'], self.of(each['type'], (*path, node['name'], each['name'])))
                              for each in node['fields']])
        if kind == 'array':
            return pa.list_(pa.field('element', self.of(node['items'], (*path, '', 'element'))))
        if kind == 'map':
            return pa.map_(pa.string(), self.of(node['values'], (*path, '', 'value')))
        if is_decimal(node):
            return _decimal(node)
        if kind == 'null':
            raise RegistryError(f'found the Avro field {".".join(path[1::2])} of type null, expected a type that a '
                                'column can have')
        return _primitive(kind, logical)

    def _union(self, node: Sequence[Node], path: tuple[str, ...]) -> pa.DataType:
        import pyarrow as pa
        types = [self.of(each, (*path, '', f'member{number}')) for number, each in enumerate(branches(node))]
        if not types:
            return self.of('null', path)
        if is_plain_union(self._schema, node):
            return pa.int64() if pa.int64() in types else pa.float64() if pa.float64() in types else types[0]
        return pa.struct([pa.field(f'member{number}', each) for number, each in enumerate(types)])


def _decimal(node: Node) -> pa.DataType:
    import pyarrow as pa
    precision, scale = node.get('precision'), node.get('scale', 0)
    if not isinstance(precision, int) or not 0 < precision <= 38 or not 0 <= scale <= precision:
        raise RegistryError(f'found an Avro decimal with precision {precision} and scale {scale}, expected a precision '
                            'of 1 to 38')
    return pa.decimal128(precision, scale)


def _primitive(kind: str, logical: str) -> pa.DataType:
    import pyarrow as pa
    if (kind, logical) in DATES:
        return pa.date32()
    if (kind, logical) in UTC_TIMES:
        return pa.timestamp('us', 'UTC')
    if (kind, logical) in LOCAL_TIMES:
        return pa.timestamp('us')
    return {'boolean': pa.bool_(), 'int': pa.int32(), 'long': pa.int64(), 'float': pa.float32(),
            'double': pa.float64(), 'bytes': pa.binary(), 'fixed': pa.binary(), 'string': pa.string(),
            'enum': pa.string()}[kind]


def _start(text: str) -> str:
    return repr(text if len(text) <= 60 else f'{text[:60]}...')


def _line(error: Exception) -> str:
    return ' '.join(str(error).split())[:200]
