"""Reads the fields of requests to the control port: of JSON bodies, and of query strings.

Each refusal names the field, what was found, and what was expected.
"""
from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from kbroker.base.suggestions import did_you_mean

MOST_SHOWN = 100
"""The most characters of a value in a message."""
MOST_NUMBER = (1 << 63) - 1


class ControlError(Exception):
    """A request that is refused, with its HTTP status. The text is for the client."""

    def __init__(self, text: str, status: int = 400):
        super().__init__(text)
        self.status = status


def shown(value: object) -> str:
    """Return a value as JSON, cut after MOST_SHOWN characters."""
    text = json.dumps(value)
    return text if len(text) <= MOST_SHOWN else f'{text[:MOST_SHOWN]}...'


def parse_body(data: bytes) -> dict[str, Any]:
    """Return the fields of a body, which is one JSON object. An absent body is an object without fields."""
    if not data:
        return {}
    try:
        found = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise ControlError('body: found JSON that is nested too deep, expected one object') from None
    except UnicodeDecodeError:
        raise ControlError('body: found bytes that are not UTF-8, expected one JSON object') from None
    except ValueError as error:
        raise ControlError(f'body: found no JSON ({error}), expected one object') from None
    if not isinstance(found, dict):
        raise ControlError(f'body: found {shown(found)}, expected a JSON object')
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ControlError(f'{twice[:MOST_SHOWN]}: found the field twice, expected it once')
    return fields


def _refuse_constant(text: str) -> NoReturn:
    raise ControlError(f'body: found {text}, expected a number of JSON')


def check_names(fields: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse a field that does not exist, and suggest the nearest name."""
    for name in fields:
        if name not in known:
            expected = f'one of {", ".join(known)}' if known else 'none'
            raise ControlError(f'{name[:MOST_SHOWN]}: found a field that does not exist, expected {expected}'
                               f'{did_you_mean(name[:MOST_SHOWN], known)}')


def number(fields: Mapping[str, Any], name: str, *, least: int = 0, most: int = MOST_NUMBER) -> int:
    """Return a field that has to be there, and to be a whole number within bounds."""
    if name not in fields:
        raise ControlError(f'{name}: found no such field, expected a number from {least} to {most}')
    value = fields[name]
    if type(value) is not int or not least <= value <= most:
        raise ControlError(f'{name}: found {shown(value)}, expected a number from {least} to {most}')
    return value


def number_of_query(query: Mapping[str, str], name: str, *, default: int = 0, most: int = MOST_NUMBER) -> int:
    """Return a field of a query string: a whole number up to `most`, or `default` without it."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most):
        raise ControlError(f'{name}: found {shown(text)}, expected a number from 0 to {most}')
    return int(text)
