"""Escapes for log lines that contain a client's text. The text cannot begin a line, reorder a line, or fill it.

The formatters of `logs` escape every message. `shown` also limits the length. Use `shown` for each name that a client
chooses, such as client ids, groups, members, transactional ids and users.
"""
import json
from collections.abc import Mapping
from typing import Any

MOST_SHOWN = 256
MOST_OF_A_LINE = 16 * 1024


def escaped(text: str) -> str:
    """Return `text` with escapes such as \\n, \\x1b and \\u202e. Only visible characters and the ordinary blank remain.

    Control characters, marks of direction, invisible characters, line separators and surrogates are escaped.
    """
    if text.isprintable():
        return text
    return ''.join(char if char.isprintable() else char.encode('unicode_escape').decode('ascii') for char in text)


def shown(text: str | None, most: int = MOST_SHOWN) -> str:
    """Return the first `most` characters of `text`, escaped, with the number of omitted characters.

    For None, return `none`.
    """
    if text is None:
        return 'none'
    if len(text) <= most:
        return escaped(text)
    return f'{escaped(text[:most])}... ({len(text) - most} more characters)'


def quoted(text: str) -> str:
    """Return a text for a log line, in quotes if it is empty or has blanks or punctuation of the line.

    Without the quotes, a name with blanks could look like a further part of the line.
    """
    found = escaped(text).replace('"', '\\x22')
    return f'"{found}"' if not found or any(char in ' =,' for char in found) else found


def json_line(fields: Mapping[str, Any]) -> str:
    """Return `fields` as a JSON object on one line, with JSON's escapes for the characters that `escaped` escapes."""
    line = json.dumps(fields, ensure_ascii=False, default=str)
    if line.isprintable():
        return line
    return ''.join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)
