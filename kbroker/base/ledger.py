"""A line of the ledger of memory.

Each package returns a line for each of its structures that clients can grow. `daemon` collects the lines.
"""
from __future__ import annotations

from collections.abc import Callable

from kbroker.base.lean_dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A structure that clients can grow.

    `now` returns its size. `bound` returns its largest size, or None if only the disk bounds it. `limit` is the name of
    the setting or rule that sets the bound.
    """

    what: str
    unit: str
    now: Callable[[], int]
    bound: Callable[[], int | None]
    limit: str
