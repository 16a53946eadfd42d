"""Java's properties syntax, which `server.properties` is written in."""
import re
from collections.abc import Iterator

ESCAPES = {'t': '\t', 'n': '\n', 'r': '\r', 'f': '\f'}
BLANKS = ' \t\f'


def read_properties(text: str) -> tuple[dict[str, str], list[str]]:
    """The settings of a properties file, and a warning for each name that stands in it twice (the last one wins).

    `#` and `!` open comment lines; a line that ends in an odd number of backslashes goes on in the next one, whose
    leading blanks are dropped; `=`, `:` or blanks part name and value; `\\uXXXX`, `\\t`, `\\n`, `\\r`, `\\f` are
    characters and any other character after a backslash stands for itself. ValueError names the line of a bad escape.
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
    """(number of the first line, line) with comments and blank lines dropped and continuations joined."""
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
    """(name, value), both still escaped."""
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
    # A pair of \u escapes stands for one character above U+FFFF, as Java writes it.
    return unescaped.encode('utf-16', 'surrogatepass').decode('utf-16')
