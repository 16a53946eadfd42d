"""A line of the ledger of memory.

Each room returns a line for each structure that clients can grow; `daemon` collects them.
"""
from __future__ import annotations

from collections.abc import Callable

from kbroker.base.lean_dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A structure: `now` returns its size, `bound` the largest size, or None if only the disk bounds it.

    `limit` is the name of the setting or of the rule behind the bound.
    """

    what: str
    unit: str
    now: Callable[[], int]
    bound: Callable[[], int | None]
    limit: str
