"""A parser of Java's properties syntax, the format of `server.properties`."""
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

ESCAPES = {'t': '\t', 'n': '\n', 'r': '\r', 'f': '\f'}
BLANKS = ' \t\f'


MOST_TEXT_BYTES = 16 << 20
"""The most bytes of a text that a user supplies: a settings file, or a plan of offsets."""


def read_text(path: Path) -> str:
    """Return the text of a user's file or pipe.

    Raise ValueError if the text is not UTF-8. Raise OSError if it cannot be read or exceeds MOST_TEXT_BYTES: a sparse
    file or a device may be larger than the memory.
    """
    with path.open('rb') as file:
        content = file.read(MOST_TEXT_BYTES + 1)
        if len(content) > MOST_TEXT_BYTES:
            found = max(os.fstat(file.fileno()).st_size, len(content))
            raise OSError(errno.EFBIG, f'found {found} bytes, expected at most {MOST_TEXT_BYTES}', str(path))
    return content.decode()


def read_properties(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the settings of a properties file, and a warning for each name that occurs twice. The last value counts.

    - Lines that begin with `#` or `!` are comments.
    - A line that ends in an odd number of backslashes continues on the next line, whose leading blanks are dropped.
    - `=`, `:` or blanks separate the name and the value.
    - `\\uXXXX`, `\\t`, `\\n`, `\\r` and `\\f` are escapes. A backslash before any other character is removed.

    Raise ValueError, which contains the line number, for a bad escape.
    """
    found: dict[str, str] = {}
    warnings = []
    for number, line in _logical_lines(text):
        name, value = _split(line)
        try:
            name, value = _unescape(name), _unescape(value)
        except ValueError as error:
            raise ValueError(f'line {number}: {error}') from None
        if name in found:
            warnings.append(f'line {number}: {name} is given again; the last value holds')
        found[name] = value
    return found, warnings


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text) of each logical line: continued lines are joined, comments and blank lines
    omitted.
    """
    started_at = 0
    parts: list[str] = []
    for number, raw in enumerate(re.split(r'\r\n|\r|\n', text), 1):
        line = raw.lstrip(BLANKS)
        if not parts:
            if not line or line[0] in '#!':
                continue
            started_at = number
        backslashes = len(line) - len(line.rstrip('\\'))
        if backslashes % 2:
            parts.append(line[:-1])
            continue
        yield started_at, ''.join(parts) + line
        parts = []
    if parts:
        yield started_at, ''.join(parts)


def _split(line: str) -> tuple[str, str]:
    """Split a logical line into (name, value), both still escaped."""
    position = 0
    while position < len(line) and line[position] not in '=:' + BLANKS:
        position += 2 if line[position] == '\\' else 1
    name, rest = line[:position], line[position:].lstrip(BLANKS)
    if rest[:1] in ('=', ':'):
        rest = rest[1:].lstrip(BLANKS)
    return name, rest


def _unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] != 'u':
            return ESCAPES.get(code, code)
        if len(code) != 5:
            raise ValueError('found \\u without four hexadecimal digits after it')
        return chr(int(code[1:], 16))

    unescaped = re.sub(r'\\(u[0-9a-fA-F]{4}|.)', character, text)
    # Java writes a character above U+FFFF as a pair of \u escapes, which this decodes to one character.
    return unescaped.encode('utf-16', 'surrogatepass').decode('utf-16')
