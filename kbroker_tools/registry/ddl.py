"""Columns as DDL text, in the syntax of Spark: `id bigint, names array<string>, home struct<street: string>`."""
from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kbroker_tools.registry.errors import RegistryError, unicode_only

if TYPE_CHECKING:
    import pyarrow as pa

TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|'((?:[^'\\]|\\.)*)'|([<>(),:]))")
END = re.compile(r'\s*')
PLAIN_NAME = re.compile(r'[A-Za-z_]\w*')
DEEPEST = 50
NAMES = {'boolean': 'boolean', 'tinyint': 'tinyint', 'byte': 'tinyint', 'smallint': 'smallint', 'short': 'smallint',
         'int': 'int', 'integer': 'int', 'bigint': 'bigint', 'long': 'bigint', 'float': 'float', 'real': 'float',
         'double': 'double', 'string': 'string', 'varchar': 'string', 'char': 'string', 'character': 'string',
         'binary': 'binary', 'date': 'date', 'timestamp': 'timestamp', 'timestamp_ltz': 'timestamp',
         'timestamp_ntz': 'timestamp_ntz'}
"""Maps each name of a type to the name that `to_ddl` writes."""


def arrow_types() -> dict[str, pa.DataType]:
    """Return the types of Arrow by the names that `to_ddl` writes."""
    import pyarrow as pa
    return {'boolean': pa.bool_(), 'tinyint': pa.int8(), 'smallint': pa.int16(), 'int': pa.int32(),
            'bigint': pa.int64(), 'float': pa.float32(), 'double': pa.float64(), 'string': pa.string(),
            'binary': pa.binary(), 'date': pa.date32(), 'timestamp': pa.timestamp('us', 'UTC'),
            'timestamp_ntz': pa.timestamp('us')}


def from_ddl(text: str) -> pa.StructType:
    """Return the columns of a DDL text. Raise RegistryError if it has others, or none."""
    with unicode_only():
        return _Parser(text).fields('', False, 0)


def to_ddl(columns: pa.StructType) -> str:
    """Return the DDL text of columns that `from_ddl` returned, or that have the same types."""
    return ', '.join(f'{_quoted(each.name)} {_text_of(each.type)}' for each in columns)


def _quoted(name: str) -> str:
    return name if PLAIN_NAME.fullmatch(name) else f'`{name.replace("`", "``")}`'


def _text_of(kind: pa.DataType) -> str:
    import pyarrow as pa
    if pa.types.is_struct(kind):
        return f'struct<{", ".join(f"{_quoted(each.name)}: {_text_of(each.type)}" for each in kind)}>'
    if pa.types.is_map(kind):
        return f'map<{_text_of(kind.key_type)}, {_text_of(kind.item_type)}>'
    if pa.types.is_list(kind):
        return f'array<{_text_of(kind.value_type)}>'
    if pa.types.is_decimal(kind):
        return f'decimal({kind.precision},{kind.scale})'
    return next(name for name, each in arrow_types().items() if each == kind)


class _Parser:
    def __init__(self, text: str):
        self._text, self._at = text, 0
        self._types = arrow_types()

    def _peek(self) -> tuple[str, str]:
        """Return the kind of the next token (name, word, text, mark, '' at the end) and the token."""
        match = TOKEN.match(self._text, self._at)
        if match is None:
            if END.fullmatch(self._text, self._at):
                return '', ''
            raise self._wrong(self._text[self._at:].strip()[:20], 'columns such as id bigint, name string')
        self._end = match.end()
        for kind, found in zip(('name', 'word', 'text', 'mark'), match.groups(), strict=True):
            if found is not None:
                return kind, found.replace('``', '`') if kind == 'name' else found
        raise AssertionError('a token has a group')

    def _take(self) -> tuple[str, str]:
        found = self._peek()
        if found[0]:
            self._at = self._end
        return found

    def _takes(self, token: str) -> bool:
        kind, found = self._peek()
        if kind in ('word', 'mark') and found.lower() == token:
            self._at = self._end
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise self._wrong(self._peek()[1] or 'the end', token)

    def _wrong(self, found: str, expected: str) -> RegistryError:
        return RegistryError(f'found {self._text!r}, which is not a schema: found {found!r}, expected {expected}')

    def fields(self, end: str, is_struct: bool, depth: int) -> pa.StructType:
        import pyarrow as pa
        found: list[pa.Field] = []
        names: set[str] = set()
        while True:
            kind, name = self._take()
            if kind not in ('name', 'word'):
                raise self._wrong(name or 'the end', 'the name of a column, such as in id bigint, name string')
            if name in names:
                raise self._wrong(name, 'each name once')
            names.add(name)
            self._takes(':')
            found.append(pa.field(name, self._type(depth + 1)))
            if self._takes('not'):
                self._expect('null')    # a value without the field has null all the same
            if self._takes('comment') and self._take()[0] != 'text':
                raise self._wrong('comment', "a text in ' after it")
            if self._peek()[1] == end and self._peek()[0] in ('', 'mark'):
                self._take()
                return pa.struct(found)
            self._expect(',')

    def _type(self, depth: int) -> pa.DataType:
        import pyarrow as pa
        kind, given = self._take()
        name = given.lower()
        if depth > DEEPEST:
            raise self._wrong(given, f'at most {DEEPEST} levels')
        if kind == 'word' and name == 'struct':
            self._expect('<')
            return self.fields('>', True, depth)
        if kind == 'word' and name == 'array':
            self._expect('<')
            element = self._type(depth + 1)
            self._expect('>')
            return pa.list_(pa.field('element', element))
        if kind == 'word' and name == 'map':
            self._expect('<')
            key = self._type(depth + 1)
            if key != pa.string():
                raise self._wrong(str(key), 'string as the keys of a map: the keys of JSON are texts')
            self._expect(',')
            value = self._type(depth + 1)
            self._expect('>')
            return pa.map_(key, value)
        if kind == 'word' and name in ('decimal', 'dec', 'numeric'):
            return self._decimal()
        if kind != 'word' or name not in NAMES:
            raise self._wrong(given or 'the end', f'a type: {", ".join(self._types)}, decimal, array, map or struct')
        if name in ('varchar', 'char', 'character'):
            self._numbers()
        return self._types[NAMES[name]]

    def _decimal(self) -> pa.DataType:
        import pyarrow as pa
        numbers = self._numbers() or [10, 0]
        precision, scale = numbers if len(numbers) == 2 else [numbers[0], 0]
        if not 0 < precision <= 38 or not 0 <= scale <= precision:
            raise self._wrong(f'decimal({precision},{scale})', 'a precision of 1 to 38, and a scale up to it')
        return pa.decimal128(precision, scale)

    def _numbers(self) -> list[int]:
        """Take numbers in parentheses, if they follow."""
        if not self._takes('('):
            return []
        found: list[int] = []
        while len(found) < 2:
            _, text = self._take()
            if not text.isdecimal() or len(text) > 9:
                raise self._wrong(text or 'the end', 'a number')
            found.append(int(text))
            if not self._takes(','):
                break
        self._expect(')')
        return found
