"""A compiler of `.proto` texts to file descriptors.

Java's serializers register the text of a `.proto` file, and Python's a descriptor. The compiler `protoc` is a program
of several MB for each platform, and Python's parsers of the text need a parser generator. This one reads what decides
the bytes of a message: names, numbers and types. It skips options, services, extensions and ranges. The descriptor pool
of the Protobuf package resolves the names of types and checks the file.
"""
from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker_tools.registry.errors import RegistryError

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto

TOKEN = re.compile(r'''\s+|//[^\n]*|/\*.*?\*/|(?P<token>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*'|'''
                   r'''\.?[A-Za-z_][\w.]*|[-+]?[\w.]+|[{}\[\]()<>=;,:/?&|!*%^$@#~-])''', re.DOTALL)
SCALARS = {'double': 1, 'float': 2, 'int64': 3, 'uint64': 4, 'int32': 5, 'fixed64': 6, 'fixed32': 7, 'bool': 8,
           'string': 9, 'bytes': 12, 'uint32': 13, 'sfixed32': 15, 'sfixed64': 16, 'sint32': 17, 'sint64': 18}
"""The numbers of the types in `descriptor.proto`."""
GROUP = 10
OPTIONAL, REQUIRED, REPEATED = 1, 2, 3
LABELS = {'optional': OPTIONAL, 'required': REQUIRED, 'repeated': REPEATED}
CLOSING = {'{': '}', '[': ']', '(': ')', '<': '>'}
DEEPEST = 50


def compile_text(name: str, text: str) -> FileDescriptorProto:
    """Return the descriptor of a `.proto` text. Raise RegistryError if the text is not a `.proto` file."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    found = FileDescriptorProto(name=name, syntax='proto2')
    _Parser(text).file(found)
    return found


class _Parser:
    def __init__(self, text: str):
        self._tokens: list[str] = []
        self._lines: list[int] = []
        position = line = 0
        while position < len(text):
            match = TOKEN.match(text, position)
            if match is None:
                raise _wrong(line, repr(text[position]), 'a .proto file')
            if match['token']:
                self._tokens.append(match['token'])
                self._lines.append(line)
            line += match[0].count('\n')
            position = match.end()
        self._at = 0
        self._is_proto3 = False

    # ---- tokens

    @property
    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ''

    def _take(self, expected: str = '') -> str:
        found = self._next
        if not found or (expected and found != expected):
            line = self._lines[self._at] if found else (self._lines or [0])[-1]
            raise _wrong(line, repr(found) if found else 'the end', repr(expected) if expected else 'more')
        self._at += 1
        return found

    def _takes(self, token: str) -> bool:
        if self._next == token:
            self._at += 1
            return True
        return False

    def _word(self) -> str:
        found = self._take()
        if not re.fullmatch(r'\.?[A-Za-z_][\w.]*', found):
            raise _wrong(self._lines[self._at - 1], repr(found), 'a name')
        return found

    def _number(self) -> int:
        sign = -1 if self._takes('-') else 1
        found = self._take()
        octal = len(found) > 1 and found[0] == '0' and found.isdecimal()
        try:
            number = sign * int(found, 8 if octal else 0)
        except ValueError:
            raise _wrong(self._lines[self._at - 1], repr(found), 'a number') from None
        if not -1 << 31 <= number < 1 << 31:
            raise _wrong(self._lines[self._at - 1], str(number), 'a number of 32 bits')
        return number

    def _string(self) -> str:
        found = self._take()
        if found[0] not in '"\'':
            raise _wrong(self._lines[self._at - 1], repr(found), 'a text in quotes')
        return found[1:-1]

    def _skip_statement(self) -> None:
        """Skip tokens to a semicolon, or to the end of a block."""
        while True:
            token = self._take()
            if token in CLOSING:
                self._skip_block(CLOSING[token])
                if token == '{':
                    self._takes(';')
                    return
            elif token == ';':
                return

    def _skip_block(self, end: str) -> None:
        ends = [end]
        while ends:
            token = self._take()
            if token == ends[-1]:
                ends.pop()
            elif token in CLOSING and token != '<':
                ends.append(CLOSING[token])

    def _skip_options(self) -> None:
        """Skip the options in brackets after a field."""
        if self._takes('['):
            self._skip_block(']')

    # ---- statements

    def file(self, found: FileDescriptorProto) -> None:
        while self._next:
            match self._next:
                case 'syntax':
                    self._at += 1
                    self._take('=')
                    found.syntax = self._string()
                    self._take(';')
                    if found.syntax not in ('proto2', 'proto3'):
                        raise _wrong(0, f'syntax {found.syntax}', 'proto2 or proto3')
                    self._is_proto3 = found.syntax == 'proto3'
                case 'edition':
                    raise _wrong(self._lines[self._at], 'an edition', 'syntax proto2 or proto3')
                case 'package':
                    self._at += 1
                    found.package = self._word()
                    self._take(';')
                case 'import':
                    self._import(found)
                case 'message':
                    self._at += 1
                    self._message(found.message_type.add(), self._word(), 0)
                case 'enum':
                    self._at += 1
                    self._enum(found.enum_type.add())
                case 'option' | 'service' | 'extend':
                    self._skip_statement()
                case ';':
                    self._at += 1
                case other:
                    raise _wrong(self._lines[self._at], repr(other), 'message, enum, import or option')

    def _import(self, found: FileDescriptorProto) -> None:
        self._at += 1
        if self._next in ('public', 'weak') and self._take() == 'public':
            found.public_dependency.append(len(found.dependency))
        found.dependency.append(self._string())
        self._take(';')

    def _message(self, found: DescriptorProto, name: str, depth: int) -> None:
        if depth > DEEPEST:
            raise _wrong(self._lines[self._at - 1], f'more than {DEEPEST} nested messages', 'fewer')
        found.name = name
        optional: list[int] = []        # the positions of proto3's optional fields
        self._take('{')
        while not self._takes('}'):
            match self._next, self._tokens[self._at + 1:self._at + 3]:
                case 'message', [_, '{']:
                    self._at += 1
                    self._message(found.nested_type.add(), self._word(), depth + 1)
                case 'enum', [_, '{']:
                    self._at += 1
                    self._enum(found.enum_type.add())
                case 'oneof', [_, '{']:
                    self._oneof(found, depth)
                case ('extend', [_, '{']) | ('option' | 'reserved' | 'extensions', _):
                    self._skip_statement()
                case ';', _:
                    self._at += 1
                case _:
                    self._field(found, depth, optional)
        for position in optional:
            # The pool requires a oneof of its own for such a field, after all others.
            field = found.field[position]
            field.oneof_index = len(found.oneof_decl)
            field.proto3_optional = True
            found.oneof_decl.add(name=f'_{field.name}')

    def _oneof(self, found: DescriptorProto, depth: int) -> None:
        self._at += 1
        index = len(found.oneof_decl)
        found.oneof_decl.add(name=self._word())
        self._take('{')
        while not self._takes('}'):
            if self._next == 'option':
                self._skip_statement()
            elif not self._takes(';'):
                self._field(found, depth, [])
                found.field[-1].oneof_index = index

    def _field(self, found: DescriptorProto, depth: int, optional: list[int]) -> None:
        label = OPTIONAL
        is_labelled = self._next in LABELS and self._tokens[self._at + 2:self._at + 3] != ['=']
        if is_labelled:
            label = LABELS[self._take()]
            if label == OPTIONAL and self._is_proto3:
                optional.append(len(found.field))
        if self._next == 'map' and self._tokens[self._at + 1:self._at + 2] == ['<']:
            self._map(found)
            return
        kind = self._word()
        name = self._word()
        field = found.field.add(name=name, label=label)
        self._take('=')
        field.number = self._number()
        self._skip_options()
        if kind == 'group':
            field.name, field.type, field.type_name = name.lower(), GROUP, name
            self._message(found.nested_type.add(), name, depth + 1)
            return
        self._take(';')
        _set_type(field, kind)

    def _map(self, found: DescriptorProto) -> None:
        self._at += 2
        key = self._word()
        self._take(',')
        value = self._word()
        self._take('>')
        name = self._word()
        entry = found.nested_type.add(name=_camel(name) + 'Entry')
        entry.options.map_entry = True
        for number, (part, kind) in enumerate([('key', key), ('value', value)], 1):
            _set_type(entry.field.add(name=part, number=number, label=OPTIONAL), kind)
        self._take('=')
        found.field.add(name=name, number=self._number(), label=REPEATED,
                        type_name=entry.name)
        self._skip_options()
        self._take(';')

    def _enum(self, found: EnumDescriptorProto) -> None:
        found.name = self._word()
        self._take('{')
        while not self._takes('}'):
            if self._takes(';'):
                continue
            if self._next in ('option', 'reserved') and self._tokens[self._at + 1:self._at + 2] != ['=']:
                if self._next == 'option' and self._tokens[self._at + 1:self._at + 3] == ['allow_alias', '=']:
                    found.options.allow_alias = self._tokens[self._at + 3:self._at + 4] == ['true']
                self._skip_statement()
                continue
            name = self._word()
            self._take('=')
            found.value.add(name=name, number=self._number())
            self._skip_options()
            self._take(';')


def _set_type(field: object, kind: str) -> None:
    """Set the type of a field. The pool finds out whether a name is a message or an enum."""
    if kind in SCALARS:
        field.type = SCALARS[kind]  # type: ignore[attr-defined]
    else:
        field.type_name = kind  # type: ignore[attr-defined]


def _camel(name: str) -> str:
    return ''.join(part[:1].upper() + part[1:] for part in name.split('_'))


def message_at(file: FileDescriptorProto, indexes: Sequence[int]) -> str | None:
    """Return the full name of the message that message indexes name. Return None if there is none."""
    messages, names = file.message_type, [file.package] if file.package else []
    for index in indexes:
        if not 0 <= index < len(messages):
            return None
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return '.'.join(names)


def _wrong(line: int, found: str, expected: str) -> RegistryError:
    return RegistryError(f'line {line + 1}: found {found}, expected {expected}')
