r"""The formatter of `--format`, with the letters of kcat: `%t/%p@%o %k: %s\n`."""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kbroker_tools.base.command import ToolError

if TYPE_CHECKING:
    from kbroker.client.consumed import DeliveredRecords
    from kbroker.record.records import Record

    Field = Callable[[DeliveredRecords, Record], bytes]

LETTERS = {
    't': 'topic', 'p': 'partition', 'o': 'offset', 'T': 'timestamp in ms', 'k': 'key', 's': 'value',
    'K': 'bytes of the key', 'S': 'bytes of the value', 'h': 'headers', '%': 'a percent sign'}
"""Maps each letter after a percent sign to its meaning. K and S are -1 for a null."""
WORDS = ', '.join(f'%{letter} ({meaning})' for letter, meaning in LETTERS.items())

_ESCAPES = {'n': b'\n', 't': b'\t', 'r': b'\r', '0': b'\0', '\\': b'\\'}
_TOKEN = re.compile(r'%(.?)|\\x([0-9A-Fa-f]{2})|\\(.?)|[^%\\]+', re.DOTALL)


class FormatText:
    """A formatter that writes the fields of a record between texts. It adds nothing, not even an end of the line.

    Keys, values and headers are written byte for byte. A null is written as `null.literal`. Raise ToolError for a
    letter or an escape that does not exist.
    """

    def __init__(self, template: str, properties: Mapping[str, str]):
        self._null = properties.get('null.literal', 'null').encode()
        self._headers_separator = properties.get('headers.separator', ',').encode()
        self._parts = [self._part(token) for token in _TOKEN.finditer(template)]

    def text(self, batch: DeliveredRecords, record: Record) -> bytes:
        return b''.join([part if isinstance(part, bytes) else part(batch, record) for part in self._parts])

    def _part(self, token: re.Match[str]) -> bytes | Field:
        letter, byte, escape = token.groups()
        if letter is not None:
            return self._field(letter)
        if byte is not None:
            return bytes.fromhex(byte)
        if escape is None:
            return token[0].encode('utf-8', 'surrogateescape')
        if escape not in _ESCAPES:
            raise ToolError(f'--format: found \\{escape}, expected one of \\n, \\t, \\r, \\0, \\\\ and \\xHH')
        return _ESCAPES[escape]

    def _field(self, letter: str) -> bytes | Field:
        fields: dict[str, bytes | Field] = {
            '%': b'%',
            't': lambda batch, record: batch.topic.encode(),
            'p': lambda batch, record: b'%d' % batch.partition,
            'o': lambda batch, record: b'%d' % record.offset,
            'T': lambda batch, record: b'%d' % record.timestamp_ms,
            'k': lambda batch, record: self._or_null(record.key),
            's': lambda batch, record: self._or_null(record.value),
            'K': lambda batch, record: _length(record.key),
            'S': lambda batch, record: _length(record.value),
            'h': lambda batch, record: self._headers(record),
        }
        if letter not in fields:
            raise ToolError(f'--format: found %{letter}, expected one of {WORDS}')
        return fields[letter]

    def _headers(self, record: Record) -> bytes:
        return self._headers_separator.join(name.encode('utf-8', 'surrogateescape') + b'=' + self._or_null(value)
                                            for name, value in record.headers)

    def _or_null(self, data: bytes | None) -> bytes:
        return self._null if data is None else data


def _length(data: bytes | None) -> bytes:
    return b'-1' if data is None else b'%d' % len(data)
