"""Checks of arguments whose mistakes would otherwise show late, or not at all."""
from __future__ import annotations

from collections.abc import Iterable


def names_of(given: Iterable[str], what: str) -> list[str]:
    """Return names as a list. Raises TypeError for a single string, whose letters are no names, and for other values.
    """
    if isinstance(given, str | bytes):
        raise TypeError(f'found {given!r} as {what}s, expected a list or another collection of str')
    names = list(given)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f'found {type(name).__name__} as a {what}, expected str')
    return names


def topics_of(given: Iterable[str]) -> frozenset[str]:
    """Return the topics of a subscription, which may be a single name. Raises TypeError."""
    return frozenset([given] if isinstance(given, str) else names_of(given, 'topic'))
