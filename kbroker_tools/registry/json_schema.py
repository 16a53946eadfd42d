"""The columns of a JSON Schema.

| JSON Schema | DDL |
| --- | --- |
| `object` with `properties`, also in `allOf` | `struct` |
| `object` with only `additionalProperties` | `map<string, ...>` |
| `array` with `items` | `array` |
| `string`, `boolean`, `integer`, `number` | `string`, `boolean`, `bigint`, `double` |
| with `connect.type`, as Kafka Connect writes it | the type of that name, such as `int` or `binary` |
| `null` beside another type, in `type`, `anyOf` or `oneOf` | the other type |
| anything else | `string`: the JSON text |

`format` does not matter, because validators may ignore it: a date is a string.
"""
from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbroker_tools.registry.ddl import arrow_types
from kbroker_tools.registry.errors import RegistryError, unicode_only

if TYPE_CHECKING:
    import pyarrow as pa

CONNECT = {'int8': 'tinyint', 'int16': 'smallint', 'int32': 'int', 'int64': 'bigint', 'float32': 'float',
           'float64': 'double', 'bytes': 'binary'}
PLAIN = {'string': 'string', 'boolean': 'boolean', 'integer': 'bigint', 'number': 'double'}
DEEPEST = 50
MOST_NODES = 10_000


def columns_of(text: str, references: Mapping[str, str]) -> pa.StructType:
    """Return the columns of a JSON Schema. `references` has the texts of others by the names that `$ref` uses.

    Raise RegistryError if the schema has no columns.
    """
    import pyarrow as pa
    walk = _Walk(_parsed(text), {name: _parsed(each) for name, each in references.items()})
    with unicode_only():
        found = walk.type_of(walk.root, walk.root, ())
    if not pa.types.is_struct(found):
        raise RegistryError('found a JSON Schema without properties, expected an object with properties')
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RegistryError(f'found a text that is not a JSON Schema: {" ".join(str(error).split())}') from None


class _Walk:
    def __init__(self, root: Any, documents: Mapping[str, Any]):
        self.root, self._documents = root, documents
        self._nodes = 0
        self._types = arrow_types()

    def type_of(self, node: Any, document: Any, path: tuple[str, ...]) -> pa.DataType:
        """Return the type of a schema. `document` is the schema that contains it, and `path` has the references on the
        way to it."""
        import pyarrow as pa
        self._nodes += 1
        if self._nodes > MOST_NODES or len(path) > DEEPEST:
            raise RegistryError(f'found a JSON Schema with more than {MOST_NODES} schemas or {DEEPEST} levels, '
                                'expected fewer')
        if not isinstance(node, dict):
            return self._types['string']
        if isinstance(node.get('$ref'), str):
            reference = node['$ref']
            if reference in path:
                raise RegistryError(f'found a JSON Schema in which {reference} contains itself: a column cannot have a '
                                    'recursive type; expected a schema without recursion')
            return self.type_of(*self._resolved(reference, document), (*path, reference))
        path = (*path, '')
        if node.get('connect.type') in CONNECT:
            return self._types[CONNECT[node['connect.type']]]
        for key in ('oneOf', 'anyOf'):
            if isinstance(node.get(key), list) and 'properties' not in node:
                others = [each for each in node[key] if not (isinstance(each, dict) and each.get('type') == 'null')]
                return self.type_of(others[0], document, path) if len(others) == 1 else self._types['string']
        kind = node.get('type')
        if isinstance(kind, list):
            kind = next(iter(others), None) if len(others := [each for each in kind if each != 'null']) == 1 else None
        properties = self._properties(node, document, path)
        if properties and kind in ('object', None):
            return pa.struct([pa.field(name, each) for name, each in properties.items()])
        if kind == 'object' and isinstance(node.get('additionalProperties'), dict):
            return pa.map_(pa.string(), self.type_of(node['additionalProperties'], document, path))
        if kind == 'array' and isinstance(node.get('items'), dict):
            return pa.list_(pa.field('element', self.type_of(node['items'], document, path)))
        return self._types[PLAIN.get(str(kind), 'string')]

    def _properties(self, node: dict[str, Any], document: Any, path: tuple[str, ...]) -> dict[str, pa.DataType]:
        """Return the types of the properties of an object. Those in `allOf` come first."""
        import pyarrow as pa
        found: dict[str, pa.DataType] = {}
        for part in node['allOf'] if isinstance(node.get('allOf'), list) else ():
            inner = self.type_of(part, document, path)
            if pa.types.is_struct(inner):
                found |= {each.name: each.type for each in inner}
        own = node.get('properties')
        for name, each in own.items() if isinstance(own, dict) else ():
            found[name] = self.type_of(each, document, path)
        return found

    def _resolved(self, reference: str, document: Any) -> tuple[Any, Any]:
        """Return the schema that a `$ref` names, and its document."""
        name, _, pointer = reference.partition('#')
        if name:
            matches = [each for each in self._documents if each == name or each.rpartition('/')[2] == name.rpartition(
                '/')[2]]
            if not matches:
                raise RegistryError(f'found a JSON Schema that refers to {name}, expected a reference with this name '
                                    'in the registry')
            document = self._documents[name if name in matches else matches[0]]
        found = document
        for part in pointer.split('/')[1:]:
            part = part.replace('~1', '/').replace('~0', '~')
            if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            elif isinstance(found, dict) and part in found:
                found = found[part]
            else:
                raise RegistryError(f'found a JSON Schema that refers to {reference}, which it does not have')
        return found, document
