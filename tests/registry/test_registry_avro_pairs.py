"""Random pairs of Avro schemas: the columns have what fastavro's own resolution of the two schemas returns."""
import io
import json
import random

import fastavro
import pytest
from fastavro.utils import generate_one
from test_registry_avro import written

from kbroker_tools.registry.avro import AvroFormat
from kbroker_tools.registry.columns import to_column

PRIMITIVES = {'boolean': True, 'int': 3, 'long': 4, 'float': 0.5, 'double': 1.5, 'string': 'd', 'bytes': 'd'}
WIDER = {'int': ['long', 'double'], 'long': ['double'], 'float': ['double']}
DEEPEST = 3


class Schemas:
    """A random schema of a writer, and a later version of it that can read its values."""

    def __init__(self, seed):
        self.chance, self.names = random.Random(seed), 0

    def name(self):
        self.names += 1
        return f'N{self.names}'

    def record(self, depth=0):
        return {'type': 'record', 'name': self.name(), 'fields': [
            {'name': f'f{number}', 'type': self.any(depth + 1)} for number in range(self.chance.randint(1, 4))]}

    def any(self, depth, with_union=True):
        kinds = [*PRIMITIVES] if depth >= DEEPEST else [*PRIMITIVES, 'record', 'array', 'map', 'enum', 'fixed']
        kind = self.chance.choice([*kinds, *(['union', 'union'] if with_union else [])])
        match kind:
            case 'record':
                return self.record(depth)
            case 'array':
                return {'type': 'array', 'items': self.any(depth + 1)}
            case 'map':
                return {'type': 'map', 'values': self.any(depth + 1)}
            case 'enum':
                return {'type': 'enum', 'name': self.name(), 'symbols': ['A', 'B', 'C']}
            case 'fixed':
                return {'type': 'fixed', 'name': self.name(), 'size': self.chance.randint(1, 4)}
            case 'union':
                return self.union(depth)
        return kind

    def union(self, depth):
        members = {json.dumps(each)[:12]: each for each in [
            'null', *(self.any(depth + 1, False) for _ in range(self.chance.randint(1, 3)))]}
        if 'string' in members.values():    # fastavro reads bytes as the first of both
            members.pop('"bytes"', None)
        found = list(members.values())
        self.chance.shuffle(found)
        return found

    def later(self, schema):
        """Return a version that reads values of a schema: fields come, go and move, and numbers get wider."""
        if isinstance(schema, str):
            return self.chance.choice([schema, *WIDER.get(schema, [])])
        if isinstance(schema, list):
            return [each if isinstance(each, str) else self.later(each) for each in schema]
        match schema['type']:
            case 'record':
                fields = [{'name': each['name'], 'type': self.later(each['type'])} for each in schema['fields']
                          if self.chance.random() < 0.8]
                kind = self.chance.choice([*PRIMITIVES])
                fields.append({'name': 'more', 'type': kind, 'default': PRIMITIVES[kind]})
                self.chance.shuffle(fields)
                return {**schema, 'fields': fields}
            case 'array':
                return {**schema, 'items': self.later(schema['items'])}
            case 'map':
                return {**schema, 'values': self.later(schema['values'])}
        return schema


def plain(value, schema):
    """Return a value of a column as fastavro returns it: a struct of members is the member that is not null."""
    if isinstance(schema, list):
        members = [each for each in schema if each != 'null']
        if len(members) == 1:
            return None if value is None else plain(value, members[0])
        if not isinstance(value, dict) or 'member0' not in value:
            return value        # the members are a narrow and a wide number
        return next((plain(value[f'member{number}'], each) for number, each in enumerate(members)
                     if value[f'member{number}'] is not None), None)
    match schema if isinstance(schema, str) else schema['type']:
        case 'record':
            return {each['name']: plain(value[each['name']], each['type']) for each in schema['fields']}
        case 'array':
            return [plain(each, schema['items']) for each in value]
        case 'map':
            return {key: plain(each, schema['values']) for key, each in value}
        case 'bytes':
            return value if value != b'd' else 'd'      # fastavro returns a default of bytes as a text
    return value


@pytest.mark.parametrize('seed', range(60))
def test_a_pair_of_schemas_is_resolved_as_by_fastavro(seed):
    random.seed(seed)       # of `generate_one`
    schemas = Schemas(seed)
    writer = schemas.record()
    reader = schemas.later(writer)
    chosen = AvroFormat(json.dumps(reader))
    read = chosen.values_of(json.dumps(writer), {}, ())
    for _ in range(3):
        data = written(writer, generate_one(fastavro.parse_schema(writer)))
        judged = fastavro.schemaless_reader(io.BytesIO(data), writer, reader)
        column, unfit = to_column([read(data, 0)], chosen.type)
        assert unfit == []
        assert plain(column.to_pylist()[0], reader) == judged
        for end in range(len(data)):
            with pytest.raises((EOFError, IndexError, ValueError)):    # what fastavro raises at the end
                read(data[:end], 0)
