"""Checks of the arguments that a program gives to a client. They report a mistake at the call that makes it."""
from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar('T')

MOST_MS = 2**31 - 1
"""The largest value of a setting that is a time, in ms."""


def list_of(given: Iterable[T], what: str, kind: type[T]) -> list[T]:
    """Return a collection as a list. Raise TypeError for a single string, and for an element that is not of type
    `kind`.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f'found {given!r:.100} as {what}s, expected a list or another collection of {kind.__name__}')
    elements = list(given)
    for element in elements:
        if not isinstance(element, kind):
            raise TypeError(f'found {type(element).__name__} as a {what}, expected {kind.__name__}')
    return elements


def names_of(given: Iterable[str], what: str) -> list[str]:
    """Return names as a list. Raise TypeError for a single string, and for an element that is not a string."""
    return list_of(given, what, str)


def topics_of(given: Iterable[str]) -> frozenset[str]:
    """Return the topics of a subscription, given as one name or several. Raise TypeError if a name is not a string."""
    return frozenset([given] if isinstance(given, str) else names_of(given, 'topic'))


def partition_of(given: object) -> tuple[str, int]:
    """Return a partition as (topic, number). Raise TypeError if the argument is not a topic and an integer."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise TypeError(f'found {given!r:.100} as a partition, expected a pair of a topic and a number')
    topic, partition = given
    if not isinstance(topic, str):
        raise TypeError(f'found {type(topic).__name__} as a topic, expected str')
    return topic, number_of(partition, f'a partition of {topic}')


def partitions_of(given: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return partitions as a list of (topic, number). Raise TypeError if an element is not such a pair."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f'found {given!r:.100} as partitions, expected pairs of a topic and a number')
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        raise TypeError(f'found the partition {given!r:.100} alone, expected a list of partitions')
    return [partition_of(each) for each in given]


def by_partition(given: Mapping[tuple[str, int], T], what: str) -> dict[tuple[str, int], T]:
    """Return the mapping as a dict. `what` names its values in errors. Raise TypeError if a key is not a partition."""
    if not isinstance(given, Mapping):
        raise TypeError(f'found {type(given).__name__} as {what}s, expected a dict from partitions to {what}s')
    return {partition_of(at): value for at, value in given.items()}


def number_of(given: object, what: str) -> int:
    """Return the argument as an int. Raise TypeError if it is not an integer, or is True or False."""
    if isinstance(given, bool) or not hasattr(given, '__index__'):
        raise TypeError(f'found {type(given).__name__} as {what}, expected int')
    return operator.index(given)


def milliseconds_of(given: object, what: str) -> int:
    """Return a time in ms as an integer.

    Raise TypeError if it is not an integer, ValueError if it is below 0.
    """
    found = number_of(given, f'{what} in ms')
    if found < 0:
        raise ValueError(f'found {found} as {what}, expected 0 or more')
    return found


def check_subscription(topics: frozenset[str], pattern: object, regex: str | None) -> None:
    """Check that a subscription has topics, a regex or both, or only a pattern.

    Raise ValueError otherwise, TypeError for a pattern that is neither a string nor an re.Pattern.
    """
    if pattern is not None and not isinstance(pattern, str | re.Pattern):
        raise TypeError(f'found {type(pattern).__name__} as pattern, expected str or re.Pattern')
    if pattern is not None and (topics or regex is not None):
        raise ValueError('found a pattern beside topics or a regex, expected the pattern alone')
    if not topics and pattern is None and regex is None:
        raise ValueError('found no topics, pattern or regex, expected one of them; `unsubscribe` ends a subscription')
