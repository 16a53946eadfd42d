"""The writer's and the reader's Avro schema, rewritten so that fastavro returns what the Arrow column needs.

The pair of schemas is rewritten in one walk. The bytes of a value mean the same afterwards:

- Each named type gets a name of its own, which both sides share. So named types match by their place. A record matches
  any record at its place, because the id in the value says that they belong together.
- A member of a union that is a struct column becomes a record with the one field `memberN`. A record has no bytes of
  its own. Without the record, fastavro would not say which member it has read.
- Logical types are removed. Milliseconds and decimals get logical types of this module, whose readers are exact: the
  reader of fastavro rounds a decimal with too many digits.
- Aliases and defaults are resolved here.
- The reader gets the fields that only the writer has. fastavro would skip them, and while it skips, it does not notice
  that the value ends too early. Arrow ignores these fields.

fastavro recurses in C and believes the count of an array. So a writer's schema that contains itself is refused, and an
array whose items have no bytes, because a value of a few bytes could have any number of them.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbroker_tools.registry.avro_logical import (
    DEFAULT,
    Mismatch,
    add_logical_types,
    decimal_of,
    fits,
    put_defaults,
    same_logical,
    with_logical,
)
from kbroker_tools.registry.avro_schema import (
    DEEPEST,
    MILLIS,
    MOST_NODES,
    AvroSchema,
    Node,
    branches,
    is_decimal,
    is_plain_union,
    kind_of,
    logical_of,
    names_in,
    share_a_name,
)

PROMOTIONS = {'int': ('long', 'float', 'double'), 'long': ('float', 'double'), 'float': ('double',),
              'string': ('bytes',), 'bytes': ('string',)}


def pair(writer: AvroSchema, reader: AvroSchema) -> tuple[Any, Any]:
    """Return both schemas, rewritten and parsed by fastavro. Raise Mismatch if they do not fit."""
    import fastavro
    add_logical_types()
    walk = _Walk(writer, reader)
    read = walk.reader(reader.root)
    written = walk.pair(writer.root, reader.root, read)
    parsed = fastavro.parse_schema(read)
    put_defaults(parsed)
    return fastavro.parse_schema(written), parsed


class _Walk:
    """One walk over a pair of schemas. Rewritten schemas of the reader are made first, and name the named types."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema):
        self._writer, self._reader = writer, reader
        self._names = 0
        self._nodes = 0

    def _name(self) -> str:
        self._names += 1
        return f'T{self._names}'

    def _enter(self, depth: int) -> None:
        self._nodes += 1
        if self._nodes > MOST_NODES or depth > 2 * DEEPEST:
            raise Mismatch(f'the schema of the writer contains itself, or has more than {MOST_NODES} types')

    # ---- the reader's side

    def reader(self, given: Node) -> Node:
        """Return the rewritten schema of the reader. Its depth was checked when its Arrow type was made."""
        node = self._reader.node(given)
        kind = kind_of(node)
        if kind == 'union':
            return self._reader_union(node)
        if kind in ('record', 'error'):
            return {'type': 'record', 'name': self._name(), 'fields': [self._reader_field(each)
                                                                       for each in node['fields']]}
        if kind == 'array':
            return {'type': 'array', 'items': self.reader(node['items'])}
        if kind == 'map':
            return {'type': 'map', 'values': self.reader(node['values'])}
        if kind == 'enum':
            default = {'default': node['default']} if 'default' in node else {}
            return {'type': 'enum', 'name': self._name(), 'symbols': node['symbols'], **default}
        return with_logical(node, {'type': kind, 'name': self._name(), 'size': node['size']} if kind == 'fixed'
                            else {'type': kind})

    def _reader_union(self, union: Sequence[Node]) -> Node:
        if is_plain_union(self._reader, union):
            return [each if each == 'null' else self.reader(each) for each in union]
        number, found = 0, []
        for each in union:
            if each == 'null':
                found.append(each)
                continue
            found.append({'type': 'record', 'name': self._name(),
                          'fields': [{'name': f'member{number}', 'type': self.reader(each)}]})
            number += 1
        return found

    def _reader_field(self, field: Any) -> Any:
        found = {'name': field['name'], 'type': self.reader(field['type'])}
        if 'default' in field:
            found[DEFAULT] = [self._default(field['type'], field['default'])]
        return found

    def _default(self, given: Node, value: Any) -> Any:
        """Return the default as fastavro would have read it from a value."""
        node = self._reader.node(given)
        kind = kind_of(node)
        if kind == 'union':
            first = next((each for each in node if fits(kind_of(self._reader.node(each)), value)), node[0])
            found = None if first == 'null' else self._default(first, value)
            if first == 'null' or is_plain_union(self._reader, node):
                return found
            return {f'member{branches(node).index(first)}': found}
        if kind in ('record', 'error'):
            return {each['name']: self._default(each['type'], value[each['name']] if each['name'] in value
                                                else each.get('default')) for each in node['fields']}
        if kind == 'array':
            return [self._default(node['items'], each) for each in value]
        if kind == 'map':
            return {key: self._default(node['values'], each) for key, each in value.items()}
        if kind in ('bytes', 'fixed'):
            data = str(value).encode('latin-1')
            return decimal_of(data, node.get('scale', 0)) if is_decimal(node) else data
        return value * 1000 if logical_of(node)[1] in MILLIS and kind == 'long' else value

    # ---- the writer's side

    def pair(self, given: Node, wanted: Node, read: Node, depth: int = 0) -> Node:
        """Return the rewritten schema of the writer for values that the reader wants. `read` is the rewritten schema of
        the reader."""
        self._enter(depth)
        node, want = self._writer.node(given), self._reader.node(wanted)
        kind, want_kind = kind_of(node), kind_of(want)
        if kind == 'union':
            return self._writer_union(node, wanted, read, depth)
        if want_kind == 'union':
            return self._into_union(node, want, read, depth)
        if kind in ('record', 'error') and want_kind in ('record', 'error'):
            return self._record(node, want, read, depth)
        if kind != want_kind:
            if want_kind not in PROMOTIONS.get(kind, ()) or is_decimal(want):
                raise Mismatch(f'{kind} is not {want_kind}')
            return {'type': kind, 'logicalType': read['logicalType']} if isinstance(read, dict) else kind
        if kind == 'array':
            self._refuse_empty(node['items'], depth)
            return {'type': 'array', 'items': self.pair(node['items'], want['items'], read['items'], depth + 1)}
        if kind == 'map':
            return {'type': 'map', 'values': self.pair(node['values'], want['values'], read['values'], depth + 1)}
        if kind == 'enum':
            return {'type': 'enum', 'name': read['name'], 'symbols': node['symbols']}
        if kind == 'fixed' and node['size'] != want['size']:
            raise Mismatch(f'fixed of {node["size"]} bytes is not fixed of {want["size"]} bytes')
        return same_logical(node, want, read)

    def _record(self, node: Any, want: Any, read: Any, depth: int) -> Node:
        wanted = {each['name']: number for number, each in enumerate(want['fields'])}
        for number, each in enumerate(want['fields']):
            for alias in each.get('aliases', ()):
                wanted.setdefault(alias, number)
        used: set[int] = set()
        fields = []
        for position, each in enumerate(node['fields']):
            number = wanted.get(each['name'], -1)
            if number < 0 or number in used:
                fields.append({'name': _free(f'w{position}', wanted), 'type': self._copy(each['type'], depth + 1)})
                read['fields'].append(fields[-1])
                continue
            used.add(number)
            fields.append({'name': want['fields'][number]['name'],
                           'type': self.pair(each['type'], want['fields'][number]['type'],
                                             read['fields'][number]['type'], depth + 1)})
        for number, each in enumerate(want['fields']):
            if number not in used and 'default' not in each:
                raise Mismatch(f'the writer has no field {each["name"]}, and it has no default')
        return {'type': 'record', 'name': read['name'], 'fields': fields}

    def _writer_union(self, union: Sequence[Node], wanted: Node, read: Node, depth: int) -> Node:
        """Return a union in which each member that fits is rewritten for the reader. A value of another member is
        undecodable."""
        found: list[Node] = [None] * len(union)
        used: set[str] = set()
        # A member that is named like the reader's type comes first: only one member can be read as this type.
        for number, each in sorted(enumerate(union), key=lambda one: not self._is_named_like(one[1], wanted)):
            try:
                if each == 'null' and kind_of(self._reader.node(wanted)) == 'union':
                    found[number] = 'null'
                    continue
                new = self.pair(each, wanted, read, depth + 1)
                if used & names_in(new):
                    raise Mismatch('another member of the union is read as this type')
                used |= names_in(new)
                found[number] = new
            except Mismatch:
                found[number] = self._unread(each, depth + 1)
        if all(isinstance(each, dict) and each.get('name', '').startswith('Unread') for each in found):
            raise Mismatch('no member of the union fits')
        return found

    def _is_named_like(self, given: Node, wanted: Node) -> bool:
        """Return True if a member of the writer's union has the name of a type that the reader wants."""
        node, want = self._writer.node(given), self._reader.node(wanted)
        wants = [self._reader.node(each) for each in want] if isinstance(want, list) else [want]
        return any(kind_of(node) == kind_of(each) and isinstance(each, dict) and 'name' in each
                   and share_a_name(node, each) for each in wants)

    def _unread(self, given: Node, depth: int) -> Node:
        """Return a member of a union that the reader cannot have. Its name occurs in no schema of a reader, and records
        match by name only in unions: fastavro refuses a value of it."""
        if given == 'null':
            return 'null'
        return {'type': 'record', 'name': f'Unread{self._name()}',
                'fields': [{'name': 'unread', 'type': self._copy(given, depth)}]}

    def _into_union(self, node: Node, want: Sequence[Node], read: Sequence[Node], depth: int) -> Node:
        number = self._member(node, want)
        if is_plain_union(self._reader, want):
            return self.pair(node, want[number], read[number], depth + 1)
        wrapped = read[number]
        inner = self.pair(node, want[number], wrapped['fields'][0]['type'], depth + 1)
        return {**wrapped, 'fields': [{'name': wrapped['fields'][0]['name'], 'type': inner}]}

    def _member(self, node: Node, union: Sequence[Node]) -> int:
        """Return the number of the member of the reader's union that a type of the writer has: the same type, or else
        one to which it can be promoted."""
        kind = kind_of(node)
        members = [(number, self._reader.node(each)) for number, each in enumerate(union) if each != 'null']
        same = [(number, each) for number, each in members if kind_of(each) == kind]
        if kind in ('record', 'error', 'enum', 'fixed') and len(same) > 1:
            named = [(number, each) for number, each in same if share_a_name(node, each)]
            if not named:
                raise Mismatch(f'the union has no {node["name"]}')
            same = named
        for number, _ in same:
            return number
        for number, each in members:
            if kind_of(each) in PROMOTIONS.get(kind, ()):
                return number
        raise Mismatch(f'the union has no {kind}')

    def _copy(self, given: Node, depth: int) -> Node:
        """Return the schema of a field that the reader does not have. A text in it need not be UTF-8."""
        self._enter(depth)
        node = self._writer.node(given)
        kind = kind_of(node)
        if kind == 'union':
            return [each if each == 'null' else {'type': 'record', 'name': self._name(), 'fields': [
                {'name': 'member', 'type': self._copy(each, depth + 1)}]} for each in node]
        if kind in ('record', 'error'):
            return {'type': 'record', 'name': self._name(),
                    'fields': [{'name': each['name'], 'type': self._copy(each['type'], depth + 1)}
                               for each in node['fields']]}
        if kind == 'array':
            self._refuse_empty(node['items'], depth)
            return {'type': 'array', 'items': self._copy(node['items'], depth + 1)}
        if kind == 'map':
            return {'type': 'map', 'values': self._copy(node['values'], depth + 1)}
        if kind == 'enum':
            return {'type': 'enum', 'name': self._name(), 'symbols': node['symbols']}
        if kind == 'fixed':
            return {'type': kind, 'name': self._name(), 'size': node['size']}
        return 'bytes' if kind == 'string' else kind

    def _refuse_empty(self, items: Node, depth: int) -> None:
        if self._is_empty(items, depth):
            raise Mismatch('an array has items without bytes')

    def _is_empty(self, given: Node, depth: int) -> bool:
        """Return True if values of a type have no bytes."""
        self._enter(depth)
        node = self._writer.node(given)
        kind = kind_of(node)
        if kind in ('record', 'error'):
            return all(self._is_empty(each['type'], depth + 1) for each in node['fields'])
        return kind == 'null' or (kind == 'fixed' and node['size'] == 0)


def _free(name: str, taken: Any) -> str:
    while name in taken:
        name += '_'
    return name
