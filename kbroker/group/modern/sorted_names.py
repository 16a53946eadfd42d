"""A function that sorts many names in parts."""
from __future__ import annotations

from collections.abc import Collection, Generator
from heapq import merge

from kbroker.base.long_work import Pace

RUN_NAMES = 2_000
"""The number of names that are sorted between two yields. Sorting this many names takes 0.3 ms."""


def sorted_in_parts(names: Collection[str]) -> Generator[None, None, list[str]]:
    """Return the sorted names, as `sorted` does. This is a generator, which sorts in parts."""
    if len(names) <= RUN_NAMES:
        return sorted(names)
    unsorted, runs = list(names), []
    for start in range(0, len(unsorted), RUN_NAMES):
        runs.append(sorted(unsorted[start:start + RUN_NAMES]))
        yield
    pace, found = Pace(), []
    for name in merge(*runs):
        found.append(name)
        if pace.spend():
            yield
    return found
