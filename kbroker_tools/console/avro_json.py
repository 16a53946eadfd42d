"""Avro values as JSON, in the encoding that Avro's specification has for JSON: `{"name": {"string": "paper"}}`.

Logical types are shown as the numbers and bytes that the value has. So a value is encoded from its text to the same
bytes.
"""
from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

INTEGERS = {'int': 31, 'long': 63}
"""Maps the types of whole numbers to their bits without the sign."""
NAMED = ('record', 'error', 'enum', 'fixed')
PARTS = {'array': 'items', 'map': 'values'}
MOST_NODES = 10_000
"""The most types in a schema whose named types are written out. A small text can name the same type very often."""
MOST_FLOAT = 3.4028235e38
ODD_NUMBERS = {'NaN': math.nan, 'Infinity': math.inf, '-Infinity': -math.inf}
"""Numbers that JSON does not have, as Java's encoder writes them."""


class AvroJson:
    """A converter between the bytes and the JSON of values with one schema.

    `references` has the texts of the schemas that it uses, each after those that it uses itself. The constructor raises
    RegistryError if one is invalid.
    """

    def __init__(self, text: str, references: Mapping[str, str] | None = None):
        import fastavro

        from kbroker_tools.registry.avro_schema import AvroSchema
        self._names: dict[str, Any] = {}
        whole = json.loads(AvroSchema(text, references).text())
        self._schema = fastavro.parse_schema(_without_logical_types(whole), self._names)
        self._nodes = 0
        self._problem = self._why_unreadable(self._schema, ())

    def read(self, data: bytes) -> Any:
        """Return the JSON of a value. Raise ValueError if the bytes are not exactly one value of the schema, or if a
        value of the schema may have any depth or any number of items in a few bytes."""
        import fastavro
        if self._problem is not None:
            raise ValueError(self._problem)
        stream = io.BytesIO(data)
        try:
            datum = fastavro.schemaless_reader(stream, self._schema, None, return_named_type=True)
        except RecursionError:
            raise ValueError('the value is nested too deeply') from None
        except Exception as error:      # fastavro passes on whatever its reader runs into
            raise ValueError(f'the bytes are no value of the schema: {str(error) or type(error).__name__}') from None
        if stream.tell() != len(data):
            raise ValueError(f'found {len(data)} bytes, expected {stream.tell()}')
        return self._shown(self._schema, datum)

    def write(self, text: bytes) -> bytes:
        """Return the bytes of a value from its JSON text. Raise ValueError, which names the field, if the text does not
        fit the schema.

        The type of a union's value may be left out. Then the first type that fits is taken. A field that is missing
        gets its default.
        """
        import fastavro
        stream = io.BytesIO()
        try:
            fastavro.schemaless_writer(stream, self._schema, self._datum(self._schema, json.loads(text), ''))
        except RecursionError:
            raise ValueError('the value is nested too deeply') from None
        return stream.getvalue()

    def _full(self, schema: Any) -> tuple[str, Any]:
        """Return the type of a schema, and the schema itself instead of its name."""
        if isinstance(schema, list):
            return 'union', schema
        if isinstance(schema, str):
            schema = self._names.get(schema, schema)
        return (schema, schema) if isinstance(schema, str) else self._of_dict(schema)

    def _of_dict(self, schema: Mapping[str, Any]) -> tuple[str, Any]:
        kind = schema['type']
        return (kind, schema) if isinstance(kind, str) and kind not in self._names else self._full(kind)

    def _why_unreadable(self, schema: Any, around: tuple[str, ...]) -> str | None:
        """Return why values of a schema cannot be read safely. A deep value overflows the stack of fastavro's compiled
        reader, and ends the process. `around` has the names of the records around the schema."""
        self._nodes += 1
        if self._nodes > MOST_NODES:
            return f'the schema has more than {MOST_NODES} types'
        kind, schema = self._full(schema)
        if kind in ('record', 'error'):
            if schema['name'] in around:
                return f'{schema["name"]} contains itself: values of such a schema may be nested too deeply'
            parts, around = [field['type'] for field in schema['fields']], (*around, schema['name'])
        elif kind in PARTS:
            parts = [schema[PARTS[kind]]]
        else:
            parts = schema if kind == 'union' else []
        problem = next(filter(None, (self._why_unreadable(each, around) for each in parts)), None)
        if problem is None and kind == 'array' and self._has_no_bytes(schema['items']):
            return 'an array has items without bytes: a few bytes may be any number of them'
        return problem

    def _has_no_bytes(self, schema: Any) -> bool:
        kind, schema = self._full(schema)
        if kind in ('record', 'error'):
            return all(self._has_no_bytes(field['type']) for field in schema['fields'])
        return kind == 'null' or (kind == 'fixed' and schema['size'] == 0)

    # ---- bytes to JSON

    def _shown(self, schema: Any, datum: Any) -> Any:
        kind, schema = self._full(schema)
        if kind in ('bytes', 'fixed'):
            return datum.decode('latin-1')
        if kind in ('float', 'double'):
            return datum if math.isfinite(datum) else 'NaN' if datum != datum else f'{datum}inity'.title()
        if kind == 'array':
            return [self._shown(schema['items'], each) for each in datum]
        if kind == 'map':
            return {name: self._shown(schema['values'], each) for name, each in datum.items()}
        if kind in ('record', 'error'):
            return {field['name']: self._shown(field['type'], datum[field['name']]) for field in schema['fields']}
        return self._shown_of_union(schema, datum) if kind == 'union' else datum

    def _shown_of_union(self, schemas: list[Any], datum: Any) -> Any:
        if datum is None:
            return None
        name, datum = datum if isinstance(datum, tuple) else (None, datum)
        for each in schemas:
            kind, full = self._full(each)
            if full['name'] == name if kind in NAMED else name is None and _IS_OF[kind](datum):
                return {name or kind: self._shown(each, datum)}
        raise ValueError(f'found a {type(datum).__name__} in a union, expected one of its types')

    # ---- JSON to bytes

    def _datum(self, schema: Any, found: Any, where: str) -> Any:
        kind, schema = self._full(schema)
        if kind == 'union':
            return self._datum_of_union(schema, found, where)
        if kind in ('record', 'error') and isinstance(found, dict):
            return self._datum_of_record(schema, found, where)
        if kind == 'array' and isinstance(found, list):
            return [self._datum(schema['items'], each, f'{where}[{at}]') for at, each in enumerate(found)]
        if kind == 'map' and isinstance(found, dict):
            return {name: self._datum(schema['values'], each, _below(where, name)) for name, each in found.items()}
        if kind in ('bytes', 'fixed') and isinstance(found, str):
            return _bytes_of(found, schema, where)
        if kind in ('float', 'double') and isinstance(found, str) and found in ODD_NUMBERS:
            return ODD_NUMBERS[found]
        if kind in ('float', 'double') and isinstance(found, int | float) and not isinstance(found, bool):
            return _float(found, MOST_FLOAT if kind == 'float' else math.inf, where)
        if kind == 'enum' and found in schema['symbols']:
            return found
        if kind in _IS_OF and kind not in ('array', 'map', 'bytes') and _IS_OF[kind](found):
            return found
        raise ValueError(f'{where or "the value"}: found {_named(found)}, expected {_expected(kind, schema)}')

    def _datum_of_record(self, schema: Any, found: dict[str, Any], where: str) -> dict[str, Any]:
        datum = {}
        for field in schema['fields']:
            name = field['name']
            if name in found:
                datum[name] = self._datum(field['type'], found[name], _below(where, name))
            elif 'default' in field:
                datum[name] = self._datum(field['type'], field['default'], _below(where, name))
            else:
                raise ValueError(f'{_below(where, name)}: missing, and the schema has no default')
        for name in found:
            if name not in datum:
                raise ValueError(f'{_below(where, name)}: found a field that the schema does not have, expected '
                                 f'{", ".join(datum) or "none"}')
        return datum

    def _datum_of_union(self, schemas: list[Any], found: Any, where: str) -> Any:
        names = {full['name'] if kind in NAMED else kind: each for each in schemas for kind, full in [self._full(each)]}
        if found is None and 'null' in names:
            return None
        if isinstance(found, dict) and len(found) == 1 and (tagged := next(iter(found))) in names:
            return tagged, self._datum(names[tagged], found[tagged], _below(where, tagged))
        for name, each in names.items():
            try:
                return name, self._datum(each, found, where)
            except ValueError:
                continue
        raise ValueError(f'{where or "the value"}: found {_named(found)}, expected one of {", ".join(names)}')


def _is_whole(bits: int) -> Callable[[Any], bool]:
    return lambda datum: isinstance(datum, int) and not isinstance(datum, bool) and -1 << bits <= datum < 1 << bits


_IS_OF: dict[str, Callable[[Any], bool]] = {
    'null': lambda datum: datum is None,
    'boolean': lambda datum: isinstance(datum, bool),
    **{kind: _is_whole(bits) for kind, bits in INTEGERS.items()},
    'float': lambda datum: isinstance(datum, float),
    'double': lambda datum: isinstance(datum, float),
    'bytes': lambda datum: isinstance(datum, bytes),
    'string': lambda datum: isinstance(datum, str),
    'array': lambda datum: isinstance(datum, list),
    'map': lambda datum: isinstance(datum, dict),
}


def _bytes_of(text: str, schema: Any, where: str) -> bytes:
    try:
        data = text.encode('latin-1')
    except UnicodeEncodeError:
        raise ValueError(f'{where or "the value"}: found {_named(text)}, expected bytes as characters up to U+00FF'
                         ) from None
    size = schema['size'] if isinstance(schema, dict) and 'size' in schema else len(data)
    if len(data) != size:
        raise ValueError(f'{where or "the value"}: found {len(data)} bytes, expected {size}')
    return data


def _float(found: float, most: float, where: str) -> float:
    try:
        number = float(found)
    except OverflowError:
        number = math.inf
    if math.isinf(number) or abs(number) > most:
        raise ValueError(f'{where or "the value"}: found a number too large for its type, expected at most {most}')
    return number


def _below(where: str, name: str) -> str:
    return f'{where}.{name}' if where else name


def _named(found: Any) -> str:
    text = json.dumps(found, ensure_ascii=False)
    return text if len(text) <= 60 else f'{text[:60]}...'


def _expected(kind: str, schema: Any) -> str:
    if kind == 'enum':
        return f'one of {", ".join(schema["symbols"])}'
    if kind in NAMED:
        return f'{kind} {schema["name"]}'
    return f'{kind} of {INTEGERS[kind] + 1} bits' if kind in INTEGERS else kind


def _without_logical_types(schema: Any) -> Any:
    """Return the schema with the types that the bytes have."""
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: each if name == 'default' else _without_logical_types(each)
            for name, each in schema.items() if name != 'logicalType' or 'type' not in schema}
