"""A parser of JAAS, the language of `sasl.jaas.config`. A text is one login module with its options:

    org.example.SomeLoginModule required username="alice" password="...";

Kafka reads it with Java's `StreamTokenizer`. This module follows the same rules:

* A word consists of letters, digits, `.`, `-`, `_`, `$` and characters of U+00A0 and above. It does not begin with a
  digit, `.` or `-`, because there Java reads a number.
* `"` and `'` quote any text within one line. A backslash begins one of the escapes `\\a \\b \\f \\n \\r \\t \\v`, or an
  octal code of up to three digits. Before any other character, it is removed.
* `//` and `/* */` are comments. A single `/` outside quotes comments out the rest of its line, too.

The values are secrets. So errors contain positions, but no part of the text.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

FLAGS = ('required', 'requisite', 'sufficient', 'optional')
ESCAPES = {'a': '\a', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', 'v': '\v'}
OCTAL = '01234567'


class JaasError(ValueError):
    """Raised if the text is not exactly one login module.

    The message has the position, the kind of token found and the kind expected.
    """


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A login module: its class name, its flag in lower case, and its options, which contain secrets."""

    name: str
    flag: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def short_name(self) -> str:
        """The class name without the package."""
        return self.name.rpartition('.')[2]


def parse_jaas(text: str) -> LoginModule:
    """Parse `MODULE FLAG (KEY=VALUE)* ;`. If a key occurs twice, its last value counts, as in Java.

    Raise JaasError for any other text.
    """
    reader = _Reader(text)
    name = reader.text_of(reader.next(), 'the class name of a login module')
    flag = reader.next()
    if flag.kind not in TEXTS or flag.text.lower() not in FLAGS:
        reader.fail(flag, f'one of {", ".join(FLAGS)}', 'another word')
    options: dict[str, str] = {}
    number = 0
    while (token := reader.next()).kind != ';':
        number += 1
        key = reader.text_of(token, f'option {number} as KEY=VALUE, or ; after the last option')
        equals = reader.next()
        if equals.kind != '=':
            reader.fail(equals, f'= after the key of option {number}')
        value = reader.next()
        options[key] = reader.text_of(value, f'the value of option {number}, in quotes unless it begins with a letter')
    rest = reader.next()
    if rest.kind != END:
        reader.fail(rest, 'the end: one login module only')
    return LoginModule(name, flag.text.lower(), options)


END, WORD, QUOTED, NUMBER = 'the end', 'a word', 'a quoted text', 'a number'
TEXTS = (WORD, QUOTED)


class _Token(NamedTuple):
    kind: str
    """A token. `kind` is END, WORD, QUOTED or NUMBER; for any other character, it is the character itself."""
    text: str
    position: int


class _Reader:
    def __init__(self, text: str):
        self._tokens = _tokens(text)

    def next(self) -> _Token:
        return next(self._tokens)

    def text_of(self, token: _Token, expected: str) -> str:
        if token.kind not in TEXTS:
            self.fail(token, expected)
        return token.text

    def fail(self, token: _Token, expected: str, found: str | None = None) -> NoReturn:
        if found is None or token.kind not in TEXTS:
            found = token.kind if token.kind in (END, NUMBER, *TEXTS, ';', '=') else 'a character outside quotes'
        raise JaasError(f'found {found} at character {token.position + 1}, expected {expected}')


def _tokens(text: str) -> Iterator[_Token]:
    """Yield the tokens of the text, then END without limit."""
    at = 0
    while at < len(text):
        start, character = at, text[at]
        if character <= ' ':
            at += 1
        elif character == '/':
            at = _after_comment(text, at)
        elif character in '"\'':
            value, at = _quoted(text, at)
            yield _Token(QUOTED, value, start)
        elif _begins_number(text, at):
            at = _after_number(text, at)
            yield _Token(NUMBER, '', start)
        elif _is_word(character) and character != '-':
            while at < len(text) and _is_word(text[at]):
                at += 1
            yield _Token(WORD, text[start:at], start)
        else:
            at += 1
            yield _Token(character, character, start)
    while True:
        yield _Token(END, '', len(text))


def _is_word(character: str) -> bool:
    return character >= '\xa0' or (character.isascii() and (character.isalnum() or character in '.-_$'))


def _begins_number(text: str, at: int) -> bool:
    if text[at] == '-':
        at += 1
    return text[at:at + 1] == '.' or text[at:at + 1] in tuple('0123456789')


def _after_number(text: str, at: int) -> int:
    at += text[at] == '-'
    has_point = False
    while at < len(text) and (text[at] in '0123456789' or (text[at] == '.' and not has_point)):
        has_point = has_point or text[at] == '.'
        at += 1
    return at


def _after_comment(text: str, at: int) -> int:
    if text.startswith('/*', at):
        end = text.find('*/', at + 2)
        return len(text) if end < 0 else end + 2
    while at < len(text) and text[at] not in '\r\n':
        at += 1
    return at


def _quoted(text: str, start: int) -> tuple[str, int]:
    """Return the text in the quotes that open at index `start`, and the index after the closing quote."""
    quote, at = text[start], start + 1
    parts: list[str] = []
    while at < len(text) and text[at] not in '\r\n':
        character = text[at]
        at += 1
        if character == quote:
            return ''.join(parts), at
        if character == '\\':
            if at == len(text):
                break
            character, at = _escaped(text, at)
        parts.append(character)
    place = 'end' if at >= len(text) else 'line end'
    raise JaasError(f'found the {place} within the quotes that open at character {start + 1}, expected {quote}')


def _escaped(text: str, at: int) -> tuple[str, int]:
    """Return the character of an escape, and the index after the escape. `at` is the index after the backslash."""
    first = text[at]
    if first not in OCTAL:
        return ESCAPES.get(first, first), at + 1
    end = at + 1
    # An octal code has three digits only if the first is at most 3. Its value is then below 256.
    while end < len(text) and text[end] in OCTAL and end - at < (3 if first <= '3' else 2):
        end += 1
    return chr(int(text[at:end], 8)), end
