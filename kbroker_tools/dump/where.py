"""The parser of `--where`. A record is selected if it meets all terms, for example `offset>=100 and
time<2026-11-20T14:00 and transactional`."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from kbroker.settings.durations import time_ms
from kbroker_tools.dump.selection import Selection

TERM = re.compile(r'\s*(?P<name>[A-Za-z][\w-]*)\s*(?:(?P<sign><=|>=|==|=|<|>)\s*(?P<value>[^\s,<>=]+))?\s*')
JOINT = re.compile(r'\s*(?:,|and\b|&&?|$)\s*', re.IGNORECASE)
RANGE = re.compile(r'(?P<first>.*)\.\.(?P<last>.*)')
NAMES = 'offset, time, producer-id, transactional or control'
INT64 = range(-(1 << 63), 1 << 63)


class WhereError(ValueError):
    """A term of `--where` is invalid. The message quotes the term and names the terms that are allowed."""


def parse_where(text: str) -> Selection:
    """Parse terms that are joined by `and` or by commas. Several terms may have the same name. Raise WhereError if a
    term is invalid.

    `offset` and `time` accept `<`, `<=`, `=`, `>=` and `>`. After `=`, they also accept a range `first..last`, which
    includes both ends. Either end may be omitted. `producer-id` accepts only `=`. `transactional` and `control` have no
    value. A time is a number of milliseconds since the epoch, or a date such as `2026-11-20` or
    `2026-11-20T14:03:07.120`. A date is in UTC by default.
    """
    selection = Selection()
    for name, sign, value in _terms(text):
        match name.lower().replace('_', '-'), sign:
            case ('transactional' | 'control') as flag, None:
                setattr(selection, flag, True)
            case 'transactional' | 'control', _:
                raise WhereError(f'found {sign!r} after {name!r}, expected the word alone')
            case 'producer-id', '=' | '==':
                selection.producer_id = _number(value)
            case 'producer-id', _:
                raise WhereError(f'found {name + (sign or "")!r}, expected producer-id=NUMBER')
            case 'offset', str():
                first, last = _bounds(name, sign, value, _number)
                selection.first_offset = max(selection.first_offset, first)
                selection.last_offset = min(selection.last_offset, last)
            case 'time' | 'timestamp', str():
                first, last = _bounds(name, sign, value, _time_ms)
                selection.first_timestamp_ms = max(selection.first_timestamp_ms, first)
                selection.last_timestamp_ms = min(selection.last_timestamp_ms, last)
            case 'offset' | 'time' | 'timestamp', None:
                raise WhereError(f'found {name!r} alone, expected a comparison such as {name}>=100')
            case _:
                raise WhereError(f'found {name!r}, expected {NAMES}')
    return selection


def _terms(text: str) -> Iterator[tuple[str, str | None, str]]:
    position = 0
    while True:
        term = TERM.match(text, position)
        if term is None:
            raise WhereError(f'found {text[position:].strip()!r} at column {position + 1}, expected {NAMES}')
        yield term['name'], term['sign'], term['value'] or ''
        joint = JOINT.match(text, term.end())
        if joint is None:
            raise WhereError(f'found {text[term.end():].strip()!r} at column {term.end() + 1}, expected `and` or '
                             'the end')
        position = joint.end()
        if position == len(text) and not joint.group().strip():
            return


def _bounds(name: str, sign: str, value: str, read: Callable[[str], int]) -> tuple[int, int]:
    """Return (first, last), the lowest and the highest value that the term selects."""
    first, last = INT64[0], INT64[-1]
    ends = RANGE.fullmatch(value)
    if ends is not None:
        if sign not in ('=', '=='):
            raise WhereError(f'found the range {value!r} after {sign!r}, expected {name}={value}')
        return (read(ends['first']) if ends['first'] else first), (read(ends['last']) if ends['last'] else last)
    found = read(value)
    match sign:
        case '<':
            return first, max(found - 1, first)
        case '<=':
            return first, found
        case '>':
            return min(found + 1, last), last
        case '>=':
            return found, last
        case _:
            return found, found


def _number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise WhereError(f'found {text!r}, expected a number') from None
    if number not in INT64:
        raise WhereError(f'found {text}, expected a number of at most 64 bits')
    return number


def _time_ms(text: str) -> int:
    if re.fullmatch(r'-?\d{9,}', text):
        return _number(text)
    try:
        return time_ms(text)
    except ValueError:
        raise WhereError(f'found {text!r}, expected a time: milliseconds, or a date such as '
                         '2026-11-20T14:03:07 (UTC)') from None
