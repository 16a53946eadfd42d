"""The share of its work that a soak does: `make soak SOAK_SHARE=0.1`.

A test with a duration or a count does this share of it. A test function with many cases runs this share of the cases,
and at least one. Even a short soak therefore runs every test function that is marked `soak`.
"""
from __future__ import annotations

from argparse import ArgumentTypeError
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar('T')


def soak_share_of_text(text: str) -> float:
    """Parse the value of the option. Return the share. Raise ArgumentTypeError unless it is above 0 and at most 1."""
    try:
        share = float(text)
    except ValueError:
        share = 0
    if not 0 < share <= 1:
        raise ArgumentTypeError(f'found {text}, expected a number above 0 and at most 1')
    return share


def share_of(count: int, share: float, least: int = 1) -> int:
    """Return this share of `count`, but at least `least` and at most `count`."""
    return min(count, max(least, round(count * share)))


def sample(values: Sequence[T], share: float, seed: int) -> list[T]:
    """Return this share of the values, at least one, in their order and at equal distances. The seed shifts the choice.
    """
    count = len(values)
    chosen = share_of(count, share)
    return [values[place] for place in sorted((seed + number * count // chosen) % count for number in range(chosen))]


def left_out(nodeids: Sequence[str], share: float, seed: int) -> set[str]:
    """Return the test ids that a soak of this share omits."""
    functions: defaultdict[str, list[str]] = defaultdict(list)
    for nodeid in nodeids:
        functions[nodeid.partition('[')[0]].append(nodeid)
    return set(nodeids).difference(*(sample(cases, share, seed) for cases in functions.values()))
