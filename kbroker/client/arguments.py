"""Checks of arguments whose mistakes would otherwise show late, or not at all."""
from __future__ import annotations

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
