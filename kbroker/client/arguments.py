"""Checks of arguments whose mistakes would otherwise show late, or not at all."""
from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar('T')

MOST_MS = 2**31 - 1
"""The largest value of a time."""


def list_of(given: Iterable[T], what: str, kind: type[T]) -> list[T]:
    """Return a collection as a list. Raises TypeError for a single string, and for an element of another type."""
    if isinstance(given, str | bytes):
        raise TypeError(f'found {given!r} as {what}s, expected a list or another collection of {kind.__name__}')
    elements = list(given)
    for element in elements:
        if not isinstance(element, kind):
            raise TypeError(f'found {type(element).__name__} as a {what}, expected {kind.__name__}')
    return elements


def names_of(given: Iterable[str], what: str) -> list[str]:
    """Return names as a list. Raises as `list_of`: the letters of a string are no names."""
    return list_of(given, what, str)


def topics_of(given: Iterable[str]) -> frozenset[str]:
    """Return the topics of a subscription, which may be a single name. Raises TypeError."""
    return frozenset([given] if isinstance(given, str) else names_of(given, 'topic'))


def check_subscription(topics: frozenset[str], pattern: object, regex: str | None) -> None:
    """Raise TypeError or ValueError for a subscription that a consumer cannot have."""
    if pattern is not None and not isinstance(pattern, str | re.Pattern):
        raise TypeError(f'found {type(pattern).__name__} as pattern, expected str or re.Pattern')
    if pattern is not None and (topics or regex is not None):
        raise ValueError('found a pattern beside topics or a regex, expected the pattern alone')
    if not topics and pattern is None and regex is None:
        raise ValueError('found no topics, pattern or regex, expected one of them; `unsubscribe` ends a subscription')
