"""Merges the batches of a share state record by record. The tests compare `group/share/merge` with it."""
from __future__ import annotations

from collections.abc import Iterable

Batch = tuple[int, int, int, int]


def merge_batches(old: Iterable[Batch], new: Iterable[Batch], start_offset: int) -> tuple[Batch, ...]:
    states: dict[int, tuple[int, int]] = {}
    for first, last, state, count in [*old, *new]:
        for offset in range(max(first, start_offset), last + 1):
            states[offset] = max(states.get(offset, (-1, -1)), (count, state))
    found: list[Batch] = []
    for offset, (count, state) in sorted(states.items()):
        if found and found[-1][1:] == (offset - 1, state, count):
            found[-1] = found[-1][0], offset, state, count
        else:
            found.append((offset, offset, state, count))
    return tuple(found)
