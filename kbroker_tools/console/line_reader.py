"""The conversion of input lines to records. `parse.key`, `parse.headers` and the other reader properties have the
meaning that Kafka gives them.

    header:value,header:value <tab> key <tab> value

Kafka's console producer decodes lines as UTF-8 and loses other bytes. This reader keeps all bytes.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kbroker_tools.base.command import ToolError

Headers = list[tuple[str, bytes | None]]

PROPERTIES = ('parse.key', 'key.separator', 'parse.headers', 'headers.delimiter', 'headers.separator',
              'headers.key.separator', 'null.marker', 'ignore.error')


class LineError(ToolError):
    """A line that cannot be converted to a record. The message contains the line number."""


class LineReader:
    """A converter of lines to records. The constructor raises ToolError if a property is unknown or if properties
    contradict each other."""

    def __init__(self, properties: Mapping[str, str]):
        for name in properties:
            if name not in PROPERTIES:
                raise ToolError(f'--reader-property: found {name}, expected one of {", ".join(PROPERTIES)}')
        self.parses_key = _is_true(properties, 'parse.key')
        self._parses_headers = _is_true(properties, 'parse.headers')
        self._ignores_errors = _is_true(properties, 'ignore.error')
        self._key_separator = properties.get('key.separator', '\t').encode()
        self._headers_delimiter = properties.get('headers.delimiter', '\t').encode()
        self._headers_separator = properties.get('headers.separator', ',').encode()
        self._header_key_separator = properties.get('headers.key.separator', ':').encode()
        marker = properties.get('null.marker')
        self._null_marker = None if marker is None else marker.encode()
        self._check_differences()
        try:
            self._headers_pattern = re.compile(self._headers_separator)
        except re.error as error:
            raise ToolError(f'headers.separator must be a regular expression: {error}') from None
        self.is_plain = not (self.parses_key or self._parses_headers or self._null_marker is not None)
        """True if no property is set that splits a line, so that the whole line is the value."""

    def _check_differences(self) -> None:
        named = {'headers.delimiter': self._headers_delimiter, 'headers.separator': self._headers_separator,
                 'headers.key.separator': self._header_key_separator}
        pairs = [('headers.delimiter', 'headers.separator'), ('headers.delimiter', 'headers.key.separator'),
                 ('headers.separator', 'headers.key.separator')]
        for one, other in pairs:
            if named[one] == named[other]:
                raise ToolError(f'{one} and {other} may not be equal')
        named = {'key.separator': self._key_separator, **named}
        for name in ('key.separator', 'headers.separator', 'headers.delimiter', 'headers.key.separator'):
            if named[name] == self._null_marker:
                raise ToolError(f'null.marker and {name} may not be equal')

    def read(self, line: bytes, number: int) -> tuple[bytes | None, bytes | None, Headers]:
        """Return (key, value, headers) of a line. Raise LineError, which contains `number` as the line number, if the
        line is not a record."""
        if self.is_plain:
            return None, line, []
        start = 0
        headers: Headers = []
        if self._parses_headers:
            text = self._part(line, start, self._headers_delimiter, 'headers delimiter', number)
            if text is not None:
                start += len(text) + len(self._headers_delimiter)
                if text != self._null_marker:
                    headers = self._read_headers(text, number)
        key = None
        if self.parses_key:
            key = self._part(line, start, self._key_separator, 'key separator', number)
            if key is not None:
                start += len(key) + len(self._key_separator)
        return self._or_null(key), self._or_null(line[start:]), headers

    def _part(self, line: bytes, start: int, separator: bytes, name: str, number: int) -> bytes | None:
        end = line.find(separator, start)
        if end >= 0:
            return line[start:end]
        if self._ignores_errors:
            return None
        raise LineError(f"No {name} found on line number {number}: '{_shown(line)}'")

    def _read_headers(self, text: bytes, number: int) -> Headers:
        headers: Headers = []
        for pair in self._split(text):
            name, separator, value = pair.partition(self._header_key_separator)
            if not separator and not self._ignores_errors:
                raise LineError(f"No header key separator found in pair '{_shown(pair)}' on line number {number}")
            if separator and name == self._null_marker:
                raise LineError(f"Header keys should not be equal to the null marker '{_shown(name)}' as they can't be "
                                f'null (line number {number})')
            try:
                headers.append((name.decode(), self._or_null(value) if separator else None))
            except UnicodeDecodeError:
                raise LineError(f"A header key has to be UTF-8: found '{_shown(name)}' on line number "
                                f'{number}') from None
        return headers

    def _split(self, text: bytes) -> list[bytes]:
        """Split a text at the separator as Java does: empty parts at the end are dropped, and text without a separator
        is one part."""
        parts, start = [], 0
        for match in self._headers_pattern.finditer(text):
            if match.end() > 0:
                parts.append(text[start:match.start()])
                start = match.end()
        if not parts:
            return [text]
        parts.append(text[start:])
        while parts and not parts[-1]:
            parts.pop()
        return parts

    def _or_null(self, text: bytes | None) -> bytes | None:
        return None if text == self._null_marker else text


class LineSplitter:
    r"""A splitter of input into whole lines. Input arrives in parts. As in Kafka's reader, a line ends with `\n`,
    `\r\n` or `\r`."""

    def __init__(self) -> None:
        self._rest = b''

    def feed(self, data: bytes) -> list[bytes]:
        r"""Add input. Return the lines that are complete now. A line that ends with `\r` is complete only when the next
        byte has arrived, because that byte may be `\n`."""
        data = self._rest + data
        if b'\r' not in data:
            *lines, self._rest = data.split(b'\n')
            return lines
        ended = max(data.rfind(b'\n'), data.rfind(b'\r', 0, -1)) + 1
        self._rest = data[ended:]
        return data[:ended].splitlines()

    def finish(self) -> Iterator[bytes]:
        """Yield the last line if it has no line ending."""
        if self._rest:
            yield from self._rest.splitlines()
        self._rest = b''


def parse_properties(option: str, pairs: tuple[str, ...]) -> dict[str, str]:
    """Return `NAME=VALUE` options as {name: value}. An option without `=` has an empty value. Raise ToolError if a name
    is empty."""
    properties = {}
    for pair in pairs:
        name, _, value = pair.partition('=')
        if not name.strip():
            raise ToolError(f'{option}: found {pair!r}, expected NAME=VALUE')
        properties[name.strip()] = value
    return properties


def _is_true(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, '').strip().lower() == 'true'


def _shown(text: bytes) -> str:
    return text.decode('utf-8', 'backslashreplace')
